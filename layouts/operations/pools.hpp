#pragma once

#include "layouts/problem/problem.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringlab::layouts {

/// A pool: tensors that share a slot, travel in one message and are used together. What each pool holds stands in
/// pool_table.
enum class Pool : std::uint8_t { kv, dkv, q, state, output, dout, dq, latent, dlatent };
inline constexpr int pool_count = 9;

/// How many numbers a tensor of a pool has for each token and head.
enum class Width : std::uint8_t { head_dim, value_dim, latent, one, two };

/// One tensor of a pool: (batch, tokens, heads, width).
struct PoolTensor {
    const char* name = nullptr;
    Width width = Width::one;
    /// Statistics of rows (m, l, lse, delta) are always in the accumulator's type. All other tensors of a slot have the
    /// slot's element type, see Schedule::dtype().
    bool statistic = false;
};

/// The heads that a pool has.
enum class Heads : std::uint8_t { query, kv, one };

/// What a pool holds.
struct PoolDescription {
    static constexpr std::size_t most_tensors = 3;

    Pool pool = Pool::kv;
    const char* name = nullptr;  ///< in messages to people and in traces
    Heads heads = Heads::query;
    bool input = false;  ///< attention is computed from it; otherwise it is a result of attention
    bool sum = false;    ///< slot 0 is in the accumulator's type, because it is summed up
    std::array<PoolTensor, most_tensors> row{};

    /// In the order in which they lie in a slot and travel.
    constexpr std::span<const PoolTensor> tensors() const {
        std::size_t count = 0;
        while (count < most_tensors && row[count].name) ++count;
        return {row.data(), count};
    }
};

/// Every pool, by number. Schedule (types and bytes), both backends (memory) and the simulator (messages) read this
/// table. A new tensor of rows is one more entry of a row here. A new tensor of keys, such as the scales of an 8-bit
/// payload, also needs the backends to keep fields of different types in one slot: CpuSlots and SlotMap do that for
/// pools of rows only.
inline constexpr std::array<PoolDescription, pool_count> pool_table{{
    {Pool::kv, "K,V", Heads::kv, true, false, {{{"k", Width::head_dim}, {"v", Width::value_dim}}}},
    {Pool::dkv, "dK,dV", Heads::kv, false, true, {{{"dk", Width::head_dim}, {"dv", Width::value_dim}}}},
    {Pool::q, "Q", Heads::query, true, false, {{{"q", Width::head_dim}}}},
    // Running softmax of rows: o is not normalised yet, m is the maximum, l the sum.
    {Pool::state,
     "state",
     Heads::query,
     false,
     true,
     {{{"o", Width::value_dim}, {"m", Width::one, true}, {"l", Width::one, true}}}},
    {Pool::output, "O", Heads::query, false, false, {{{"o", Width::value_dim}, {"lse", Width::one, true}}}},
    // dO, and what the backward pass knows of its rows.
    {Pool::dout, "dO", Heads::query, true, false, {{{"dout", Width::value_dim}, {"lse,delta", Width::two, true}}}},
    {Pool::dq, "dQ", Heads::query, false, true, {{{"dq", Width::head_dim}}}},
    // The latent from which K and V of all heads are expanded, see Problem, and its gradient.
    {Pool::latent, "latent", Heads::one, true, false, {{{"latent", Width::latent}}}},
    {Pool::dlatent, "dlatent", Heads::one, false, true, {{{"dlatent", Width::latent}}}},
}};

constexpr const PoolDescription& description(Pool pool) { return pool_table[static_cast<std::size_t>(pool)]; }
constexpr std::span<const PoolTensor> tensors(Pool pool) { return description(pool).tensors(); }
constexpr const char* to_string(Pool pool) { return description(pool).name; }

/// Whether a pool belongs to query rows and has query heads. The others belong to keys and have kv heads, or one head
/// for all of them.
constexpr bool of_rows(Pool pool) { return description(pool).heads == Heads::query; }

/// Whether a pool is an input of attention, and not a result or a running sum.
constexpr bool is_input(Pool pool) { return description(pool).input; }

/// Number of heads that a pool has in this problem.
int heads_of(const Problem& problem, Pool pool);

/// Numbers of one token and head.
std::int64_t width(const Problem& problem, const PoolTensor& tensor);

/// The same, of all tensors of a pool.
std::int64_t width(const Problem& problem, Pool pool);

}  // namespace ringlab::layouts
