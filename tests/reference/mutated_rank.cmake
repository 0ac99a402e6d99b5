# Writes ${mutated_rank}: reference/ranks/cpu_rank.cpp with the mistakes of mutation.hpp in it, so that the product
# holds none of them. A program that it is linked into takes its make_cpu_rank() instead of the library's.
set(mutated_rank ${CMAKE_CURRENT_BINARY_DIR}/mutated_rank.cpp)
set(rank_source ${PROJECT_SOURCE_DIR}/reference/ranks/cpu_rank.cpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${rank_source})
file(READ ${rank_source} text)

# mistake(WHAT BY) replaces every WHAT.
function(mistake what by)
  string(FIND "${text}" "${what}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "tests/reference/mutated_rank.cmake: reference/ranks/cpu_rank.cpp no longer holds '${what}'")
  endif()
  string(REPLACE "${what}" "${by}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

mistake([[#include "reference/ranks/cpu_rank.hpp"
]] [[#include "reference/ranks/cpu_rank.hpp"
#include "tests/reference/mutation.hpp"
]])
mistake([[pass_->runs(part)]]
  [[(tests::mutation == tests::Mutation::local_mask_coordinates ? std::vector<Run>{Run{0, 1, part.tokens.size()}}
                                                                 : pass_->runs(part))]])
mistake([[rotate_shard(*shard, *own, shard == &of_rows ? problem_ : key_problem_, pass_->mask(), way);]] [[{
            auto positions = *own;
            if (tests::mutation == tests::Mutation::local_rotary_positions)
                for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
            if (tests::mutation == tests::Mutation::gradients_left_rotated && way == Rotation::Way::back) continue;
            rotate_shard(*shard, positions, shard == &of_rows ? problem_ : key_problem_, pass_->mask(), way);
        }]])
mistake([[keys, {b, head}, slots_]]
  [[keys, {b + (tests::mutation == tests::Mutation::dropout_by_rank ? rank_ : 0) +
                               (tests::mutation == tests::Mutation::dropout_by_step ? op.step : 0),
                           head}, slots_]])
mistake([[keys, {b, head},
                                {slots_]]
  [[keys, {b + (tests::mutation == tests::Mutation::dropout_by_rank ? rank_ : 0) +
                               (tests::mutation == tests::Mutation::dropout_by_step ? op.step : 0),
                           head},
                                {slots_]])
mistake([[if (problem_.sinks.empty()) return;]]
  [[if (problem_.sinks.empty() || tests::mutation == tests::Mutation::dropped_sinks) return;]])
mistake([[BlockAttention<Real>::finish(softmax);]] [[BlockAttention<Real>::finish(softmax);
            if (tests::mutation == tests::Mutation::plus_infinity_for_empty_rows)
                for (auto& lse : softmax.maximum) lse = std::isinf(lse) ? -lse : lse;]])
mistake([[const auto kv = place(instruction, Pool::kv);]]
  [[const auto kv =
            tests::mutation == tests::Mutation::stale_block ? own(Pool::kv) : place(instruction, Pool::kv);]])
mistake([[const auto lse = slots_.vector(dout, head, b, lse_field);
            const auto delta = slots_.vector(dout, head, b, delta_field);]]
  [[auto lse = slots_.vector(dout, head, b, lse_field);
            auto delta = slots_.vector(dout, head, b, delta_field);
            std::vector<Real> block_delta;
            if (tests::mutation == tests::Mutation::per_block_statistics) {
                const auto softmax = whole_softmax(op.rows().tokens.size());
                reset(softmax);
                attention_.forward(plan, keys, {b, head}, slots_.matrix(q, head, b), k, v, softmax);
                BlockAttention<Real>::finish(softmax);
                block_delta.resize(softmax.sum.size());
                set_delta(slots_.matrix(dout, head, b), softmax.o, block_delta);
                lse = softmax.maximum;
                delta = block_delta;
            }]])
file(CONFIGURE OUTPUT ${mutated_rank} CONTENT "${text}" @ONLY)
