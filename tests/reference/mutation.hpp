#pragma once

namespace ringlab::reference::tests {

/// Mistakes that shipped elsewhere: a gate is worth something only if these make it fail. mutated_rank.cmake writes
/// them into a copy of reference/ranks/cpu_rank.cpp.
enum class Mutation {
    none,
    per_block_statistics,          ///< the backward pass takes lse and delta of each block instead of the whole row's
    stale_block,                   ///< the backward pass attends to the rank's own block at every step
    plus_infinity_for_empty_rows,  ///< the forward kernel reports lse = +inf for a row that sees nothing
    local_rotary_positions,        ///< q and k are rotated by their index in the shard
    gradients_left_rotated,        ///< dq and dk are those of rotated q and k
    dropout_by_rank,               ///< what is dropped out depends on the rank
    dropout_by_step,               ///< or on the step, which is another one in the backward pass
    local_mask_coordinates,        ///< the mask is asked with positions inside the shard
    dropped_sinks,                 ///< no row has a sink's logit in its softmax
};

/// The one that is made.
inline Mutation mutation = Mutation::none;

}  // namespace ringlab::reference::tests
