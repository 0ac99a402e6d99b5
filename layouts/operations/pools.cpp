#include "layouts/operations/pools.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

constexpr bool each_pool_has_its_number() {
    for (std::size_t i = 0; i < pool_table.size(); ++i)
        if (static_cast<std::size_t>(pool_table[i].pool) != i) return false;
    return true;
}
static_assert(each_pool_has_its_number(), "pool_table must be in the order of Pool");

constexpr bool statistics_are_last() {
    for (const auto& row : pool_table)
        for (std::size_t i = 1; i < row.tensors().size(); ++i)
            if (row.tensors()[i - 1].statistic && !row.tensors()[i].statistic) return false;
    return true;
}
static_assert(statistics_are_last(), "statistics must be the last tensors of a pool: CPU ranks split them up");

}  // namespace

int heads_of(const Problem& problem, Pool pool) {
    switch (description(pool).heads) {
        case Heads::query: return static_cast<int>(problem.query_heads);
        case Heads::kv: return static_cast<int>(problem.kv_heads);
        case Heads::one: return 1;
    }
    return 0;
}

std::int64_t width(const Problem& problem, const PoolTensor& tensor) {
    switch (tensor.width) {
        case Width::head_dim: return problem.head_dim;
        case Width::value_dim: return problem.value_dim;
        case Width::latent: return problem.latent.width();
        case Width::one: return 1;
        case Width::two: return 2;
    }
    return 0;
}

std::int64_t width(const Problem& problem, Pool pool) {
    std::int64_t numbers = 0;
    for (const auto& tensor : tensors(pool)) numbers += width(problem, tensor);
    return numbers;
}

}  // namespace ringlab::layouts
