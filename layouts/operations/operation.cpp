#include "layouts/operations/operation.hpp"

#include "layouts/basics/require.hpp"

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

const char* to_string(OpKind kind) {
    switch (kind) {
        case OpKind::attend: return "attend";
        case OpKind::merge: return "merge";
        case OpKind::add: return "add";
        case OpKind::send: return "send";
        case OpKind::receive: return "receive";
        case OpKind::fetch: return "fetch";
        case OpKind::copy: return "copy";
        case OpKind::expand: return "expand";
        case OpKind::compress: return "compress";
    }
    return "?";
}

void Op::run_after(OpIndex index) {
    if (index < 0) return;
    require(after_count < static_cast<int>(after_storage.size()), "an operation has more than {} dependencies",
            after_storage.size());
    after_storage[static_cast<std::size_t>(after_count++)] = index;
}

const Op* Ops::next(Handle handle) {
    auto& stream = handle.promise();
    for (;;) {
        if (stream.part) {
            if (const Op* op = next(stream.part)) return op;
            stream.made = stream.part.promise().made;
            std::exchange(stream.part, nullptr).destroy();
        }
        if (!handle.done()) handle.resume();
        if (handle.done()) return nullptr;
        if (!stream.part) return stream.current;
    }
}

Ops Ops::with_op_storage(Op& op) && {
    handle_.promise().place = &op;
    return std::move(*this);
}

Ops Ops::numbered_from(OpIndex first) && {
    handle_.promise().made = first;
    return std::move(*this);
}

}  // namespace ringlab::layouts
