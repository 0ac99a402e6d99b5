#include "experiments/memory/memory.hpp"

#include "experiments/record/run_writer.hpp"
#include "gpu/transports/slot_map.hpp"
#include "reference/ranks/cpu_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::OpKind;
using layouts::Part;
using layouts::Pass;
using layouts::Pool;
using layouts::Schedule;

constexpr std::size_t index_of(Pool pool) { return static_cast<std::size_t>(pool); }

std::int64_t sum_of(const std::array<std::int64_t, layouts::pool_count>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// Number of statistics of one token and head in a pool: maximum and sum of the running softmax, lse, delta.
std::int64_t cpu_statistics(const layouts::Problem& problem, Pool pool) {
    std::int64_t numbers = 0;
    for (const auto& tensor : layouts::tensors(pool))
        if (tensor.statistic) numbers += width(problem, tensor);
    return numbers;
}

/// Bytes of message buffers. Each lane has a vector that is resized to each of its messages, so its capacity counts. If
/// ranks fetch, the rank also has a copy of its K and V for them.
std::int64_t message_bytes(const Schedule& pass, int rank) {
    struct Buffer {
        std::int64_t size = 0, capacity = 0;
    };
    std::vector<Buffer> lanes(static_cast<std::size_t>(pass.lanes()));
    auto ops = pass.ops(rank);
    bool fetches = false;
    while (const auto* op = ops.next()) {
        if (!op->transfers()) continue;
        fetches |= op->kind == OpKind::fetch;
        auto& [size, capacity] = lanes[static_cast<std::size_t>(op->lane())];
        if (op->bytes > capacity) capacity = std::max(op->bytes, 2 * size);
        size = op->bytes;
    }
    const auto given = pass.problem().latent.is_given() ? Pool::latent : Pool::kv;
    std::int64_t sum = fetches ? pass.bytes(given, 0, pass.part(rank, {0, heads_of(pass.problem(), given)})) : 0;
    for (const auto& lane : lanes) sum += lane.capacity;
    return sum;
}

/// Largest number of rows that begin and end in one attend. Their running softmax is in no slot.
std::int64_t rows_of_one_attend(const Schedule& forward, int rank) {
    std::int64_t most = 0;
    auto ops = forward.ops(rank);
    while (const auto* op = ops.next())
        if (op->kind == OpKind::attend && op->begins && op->ends) most = std::max(most, op->rows().tokens.size());
    return most;
}

/// Largest number of tokens whose gradients are gathered to be compressed in one operation.
std::int64_t tokens_compressed_at_once(const Schedule& backward, int rank) {
    std::int64_t most = 0;
    auto ops = backward.ops(rank);
    while (const auto* op = ops.next())
        if (op->kind == OpKind::compress) most = std::max(most, op->part.tokens.size());
    return most;
}

template <class Real>
MemoryNeed cpu_need(const Schedule& forward, const Schedule* backward, int rank) {
    const auto& problem = forward.problem();
    const auto tokens = [&](Pool pool) { return forward.block_tokens(forward.own_block(pool, rank)); };
    const auto bytes = [&](Pool pool, std::int64_t heads, std::int64_t of_tokens) {
        return problem.batch * of_tokens * heads * width(problem, pool) * static_cast<std::int64_t>(sizeof(Real));
    };
    const auto own_statistics = [&](Pool pool) {
        return forward.keeps(pool) ? problem.batch * tokens(pool) * heads_of(problem, pool) *
                                         cpu_statistics(problem, pool) * static_cast<std::int64_t>(sizeof(Real))
                                   : 0;
    };
    const auto own = [&](Pool pool) {
        return forward.keeps(pool) ? bytes(pool, heads_of(problem, pool), tokens(pool)) - own_statistics(pool) : 0;
    };
    const auto matrices = problem.latent.is_given() ? problem.kv_heads * problem.expanded_dim() * problem.latent.rank *
                                                          static_cast<std::int64_t>(sizeof(Real))
                                                    : 0;
    MemoryNeed need;
    need.inputs = own(Pool::q) + own(Pool::kv) + own(Pool::latent) + matrices;
    need.results = own(Pool::state) + own(Pool::output);
    if (backward) {
        need.inputs += own(Pool::dout);
        need.results += own(Pool::dq) + own(Pool::dkv) + own(Pool::dlatent) + matrices;
    }
    need.statistics = reference::BlockAttention<Real>(problem, {}).workspace_bytes() + own_statistics(Pool::state) +
                      (backward ? own_statistics(Pool::dout) : 0);
    need.statistics +=
        rows_of_one_attend(forward, rank) * (problem.value_dim + 2) * static_cast<std::int64_t>(sizeof(Real));
    if (backward)
        need.statistics += tokens_compressed_at_once(*backward, rank) * problem.expanded_dim() *
                           static_cast<std::int64_t>(sizeof(Real));
    for (const auto* pass : {&forward, backward}) {
        if (!pass) continue;
        std::array<std::int64_t, layouts::pool_count> slots{};
        for (const auto& group : pass->slots())
            slots[index_of(group.pool)] += group.count * bytes(group.pool, group.heads, group.tokens);
        if (sum_of(slots) >= sum_of(need.slots)) need.slots = slots;
        need.staging = std::max(need.staging, message_bytes(*pass, rank));
    }
    return need;
}

/// Estimates the bytes of the lists that tell kernels about the mask, for tiles of 128 x 128, the commonest size: 16
/// bytes for each row and for each work tile, 4 for each key, and 4 for each tile of a work tile that is not empty,
/// unless the work tile before has the same tiles.
class Lists {
public:
    void add(const Schedule& pass, const layouts::Op& attend) {
        const auto& rows = attend.rows();
        const auto& keys = attend.part;
        if (rows_.insert(key_of(rows)).second) bytes_ += 16 * (rows.tokens.size() + padding);
        if (keys_.insert(key_of(keys)).second) bytes_ += 4 * (keys.tokens.size() + padding);
        if (!pairs_.insert({pass.options().pass, key_of(rows), key_of(keys)}).second) return;
        const bool forward = pass.options().pass == Pass::forward;
        const auto items = tiles(forward ? rows.tokens.size() : keys.tokens.size());
        const auto across = tiles(forward ? keys.tokens.size() : rows.tokens.size());
        const auto all = static_cast<double>(rows.tokens.size()) * static_cast<double>(keys.tokens.size());
        const auto seen = all > 0 ? static_cast<double>(attend.pair_count) / all : 0;
        bytes_ += 16 * items + counters;
        auto listed = static_cast<double>(across);  // once
        if (seen < 1) {
            const auto apart = std::min(1.0, seen + 0.05) * static_cast<double>(items) * static_cast<double>(across);
            constexpr double much = 16384;
            listed += apart < much ? apart : apart * share_that_differs(pass, rows, keys);
        }
        bytes_ += static_cast<std::int64_t>(4 * listed);
    }

    std::int64_t bytes() const { return bytes_; }

private:
    using Key = std::tuple<int, std::int64_t, std::int64_t>;
    static constexpr std::int64_t tile = 128, padding = 256, counters = 64;

    static Key key_of(const Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }
    static std::int64_t tiles(std::int64_t tokens) { return (tokens + tile - 1) / tile; }

    /// Share of the row tiles that see other key tiles than the row tile before, estimated from a sample.
    static double share_that_differs(const Schedule& pass, const Part& rows, const Part& keys) {
        constexpr std::int64_t samples = 8;
        const auto row_runs = pass.runs(rows), key_runs = pass.runs(keys);
        constexpr std::size_t many = 64;  // tokens are scattered: assume that all differ
        if (row_runs.size() > many || key_runs.size() > many) return 1;
        const layouts::KeyCounter counter(key_runs);
        const auto tokens = rows.tokens.size();
        const auto seen_by = [&](std::int64_t item) {
            const auto hull =
                layouts::row_hull(pass.mask(), row_runs, item * tile, std::min(item * tile + tile, tokens));
            const auto place = [&](std::int64_t position) {
                return counter.below(std::clamp<std::int64_t>(position, 0, pass.problem().tokens)) / tile;
            };
            return std::array{place(hull.min_begin), place(hull.max_begin), place(hull.min_end), place(hull.max_end)};
        };
        const auto last = tiles(tokens) - 1;
        std::int64_t differ = 0;
        for (std::int64_t i = 0; i < samples; ++i) {
            const auto item = i * (last - 1) / samples;
            differ += seen_by(item) != seen_by(item + 1);
        }
        return static_cast<double>(differ) / samples;
    }

    std::set<Key> rows_, keys_;
    std::set<std::tuple<Pass, Key, Key>> pairs_;
    std::int64_t bytes_ = 0;
};

MemoryNeed gpu_need(const Schedule& forward, const Schedule* backward, int rank, const MemoryModel& model) {
    Lists lists;
    bool output_arrives = false;
    for (const auto* pass : {&forward, backward}) {
        if (!pass) continue;
        auto ops = pass->ops(rank);
        while (const auto* op = ops.next()) {
            if (op->kind == OpKind::attend) lists.add(*pass, *op);
            output_arrives |= op->kind == OpKind::receive && op->pool == Pool::output && op->slot() == 0;
        }
    }
    const gpu::SlotMap map(forward, backward, rank, {model.round_running_output, model.round_results, output_arrives});
    const auto& use = map.memory();
    const auto& problem = forward.problem();
    const auto tokens = forward.block_tokens(rank),
               rows = problem.queries.empty() ? 0 : forward.block_tokens(forward.row_block(rank));
    const auto positions = problem.rotary.rotates() ? 4 * (tokens + rows) : 0;
    return {use.inputs, use.results, use.slots_of_pool, use.work, lists.bytes() + positions, 0};
}

std::vector<int> ranks_to_look_at(const Schedule& schedule) {
    constexpr int all_up_to = 64;
    std::set<int> ranks;
    const int last = schedule.ranks() - 1;
    if (last < all_up_to)
        for (int rank = 0; rank <= last; ++rank) ranks.insert(rank);
    int longest = 0;
    for (int rank = 0; rank <= last; ++rank)
        if (schedule.block_tokens(rank) > schedule.block_tokens(longest)) longest = rank;
    ranks.insert({0, last, longest});
    return {ranks.begin(), ranks.end()};
}

}  // namespace

std::int64_t MemoryNeed::scratch() const { return sum_of(slots) + statistics + lists + staging; }

MemoryModel memory_on_gpus(const Policy& policy) {
    MemoryModel model;
    model.round_running_output = policy.running_output_rounded;
    return model;
}

MemoryModel memory_when_judged(const std::string& backend, const Policy& policy) {
    auto model = memory_on_gpus(policy);
    model.round_results = false;  // what is judged is left as it was summed
    if (backend == "cpu") model.executor = MemoryModel::Executor::cpu;
    return model;
}

MemoryNeed memory_need(const Schedule& forward, const Schedule* backward, int rank, const MemoryModel& model) {
    if (model.executor == MemoryModel::Executor::gpu) return gpu_need(forward, backward, rank, model);
    return forward.accumulator() == layouts::DType::fp64 ? cpu_need<double>(forward, backward, rank)
                                                         : cpu_need<float>(forward, backward, rank);
}

MemoryNeed most_memory(const Schedule& forward, const Schedule* backward, const MemoryModel& model) {
    MemoryNeed most;
    for (const auto rank : ranks_to_look_at(forward)) {
        const auto need = memory_need(forward, backward, rank, model);
        if (need.total() > most.total()) most = need;
    }
    return most;
}

MemoryNeed describe_predicted_memory(RunWriter& run, const Plan& plan, const MemoryModel& model) {
    const auto need = most_memory(*plan.forward, plan.backward.get(), model);
    const auto number = [&](const std::string& name, std::int64_t bytes, const char* description) {
        run.dataset("predicted/memory/" + name, std::vector<std::int64_t>{bytes}, {}, "B", description);
    };
    number(
        "inputs", need.inputs,
        "q, k, v and do of the rank that needs most; with a latent that and its matrices, and K and V where they are "
        "expanded at home");
    number("results", need.results, "o, lse, dq, dk and dv, sums in the accumulator's type too");
    std::vector<std::string> pools;
    for (std::size_t pool = 0; pool < need.slots.size(); ++pool) pools.emplace_back(to_string(static_cast<Pool>(pool)));
    run.dimension("pool", std::move(pools), "1", "tensors that lie in one slot");
    run.dataset("predicted/memory/slots", std::vector<std::int64_t>(need.slots.begin(), need.slots.end()), {"pool"},
                "B", "scratch slots of the pass with more of them");
    number("statistics", need.statistics,
           "of rows: running softmax, lse and delta for the backward pass; what arrives in another type; tiles of "
           "scores");
    number("lists", need.lists, "what kernels know of the mask: work lists, bounds of rows, positions of keys");
    number("staging", need.staging, "messages on their way, where a transport copies them");
    run.attribute("memory_predicted", need.total(), "B", "predicted peak of the rank that needs most, all of it");
    return need;
}

void describe_memory_error(RunWriter& run, const MemoryNeed& predicted, const RingRun& measured) {
    std::int64_t most = 0;
    for (const auto& share : measured.memory) most = std::max(most, share.total());
    run.attribute("memory_measured", most, "B", "counted by the backend, the most of any rank");
    run.attribute("prediction_error_memory",
                  static_cast<double>(predicted.total()) / static_cast<double>(std::max<std::int64_t>(most, 1)) - 1,
                  "1", "memory_predicted over memory_measured, less 1");
}

std::string memory_text(std::int64_t bytes) {
    constexpr double mebi = 1024.0 * 1024.0, gibi = 1024 * mebi;
    const auto size = static_cast<double>(bytes);
    if (size < 10 * mebi) return fmt::format("{:.3g} MiB", size / mebi);
    return size < gibi ? fmt::format("{:.0f} MiB", size / mebi) : fmt::format("{:.2f} GiB", size / gibi);
}

}  // namespace ringlab::experiments
