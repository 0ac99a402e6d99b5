#include "sim/report/replay.hpp"

#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/simulation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>

namespace ringlab::sim {
namespace {

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

Owner owner_of(OpKind kind) {
    switch (kind) {
        case OpKind::attend:
        case OpKind::expand:
        case OpKind::compress: return Owner::attends;
        case OpKind::merge:
        case OpKind::add:
        case OpKind::copy: return Owner::sums;
        case OpKind::send:
        case OpKind::receive:
        case OpKind::fetch: return Owner::messages;
    }
    return Owner::attends;
}

/// Shapley weights: the weight of an owner's effect when it joins a set of other owners, by the size of that set, if
/// all orders are equally likely. `others` is the number of other owners.
std::vector<double> shapley_weights(std::size_t others) {
    std::vector<double> weights;
    double sets = 1;  // number of sets of this size
    for (std::size_t size = 0; size <= others; ++size) {
        weights.push_back(1 / (static_cast<double>(others + 1) * sets));
        sets = sets * static_cast<double>(others - size) / static_cast<double>(size + 1);
    }
    return weights;
}

/// Whether two host times differ by at most one percent of the first.
bool is_near(Picoseconds time, double other) {
    return std::abs(static_cast<double>(time) - other) <= 0.01 * static_cast<double>(time);
}

}  // namespace

const char* to_string(Owner owner) {
    switch (owner) {
        case Owner::attends: return "attends";
        case Owner::clock: return "clock";
        case Owner::sums: return "sums";
        case Owner::messages: return "messages";
        case Owner::issue: return "issue";
        case Owner::begin: return "begin";
        case Owner::end: return "end";
    }
    return "?";
}

Owner Attribution::largest() const {
    return *std::ranges::max_element(owners, {}, [&](Owner owner) { return std::abs(effect(owner)); });
}

Replay::Replay(const Schedule& schedule, const Machine& machine, const SimOptions& options,
               const layouts::Timeline& measured)
    : schedule_(schedule),
      machine_(machine),
      options_(options),
      tiles_(make_tiles(schedule, machine, options)),
      program_(layouts::resolve(schedule)) {
    options_.fold = false;
    std::size_t count = 0;
    for (const auto& rank : program_.ranks) {
        first_.push_back(count);
        count += rank.operations;
        std::map<Lane, std::ptrdiff_t> last;
        auto& before = before_.emplace_back();
        for (std::size_t op = 0; op < rank.operations; ++op) {
            auto& one = last.try_emplace(rank.code[op].op.lane(), -1).first->second;
            before.push_back(std::exchange(one, static_cast<std::ptrdiff_t>(op)));
        }
    }
    require(measured.spans.size() == count, "the pass has {} operations, but {} measured spans", count,
            measured.spans.size());
    for (std::size_t rank = 0; rank < first_.size(); ++rank)
        for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
            const auto& span = measured.spans[first_[rank] + op];
            require(
                index(span.rank) == rank && index(span.op) == op && span.kind == program_.ranks[rank].code[op].op.kind,
                "the measured span of operation {} of rank {} is that of another operation", op, rank);
        }
    predicted_ = play({}, true);
    const CostModel cost(schedule_, machine_, options_, predicted_.clocks, tiles_);
    prices_.clocks = predicted_.clocks;
    for (std::size_t rank = 0; rank < first_.size(); ++rank) {
        prices_.ranks.emplace_back().ops.resize(program_.ranks[rank].operations);
        model_begins_.push_back(cost.begin_of_pass(static_cast<int>(rank)));
        model_ends_.push_back(cost.end_of_pass(static_cast<int>(rank)));
        auto& last = last_ends_.emplace_back(0);
        auto& attends = attends_.emplace_back(0);
        for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
            const auto& span = measured.spans[first_[rank] + op];
            last = std::max(last, span.end);
            if (owner_of(span.kind) == Owner::attends) attends += span.end - span.begin;
        }
    }
    find_waits(measured);
    find_prices(measured);
}

Prediction Replay::play(const MeasuredPrices& prices, bool trace) const {
    auto options = options_;
    options.trace = trace;
    options.measured = &prices;
    return simulate(schedule_, machine_, options, tiles_);
}

Picoseconds Replay::ready(const layouts::Timeline& timeline, std::size_t rank, std::size_t op) const {
    Picoseconds time = 0;
    const auto wait_for = [&](std::ptrdiff_t other) {
        if (other >= 0) time = std::max(time, timeline.spans[first_[rank] + index(other)].end);
    };
    for (const auto other : program_.ranks[rank].code[op].op.after()) wait_for(other);
    wait_for(before_[rank][op]);
    return time;
}

Picoseconds Replay::issued(std::size_t rank, std::size_t op) const {
    return predicted_.host_issue[first_[rank] + op].end + prices_.ranks[rank].ops[op].issue_delay;
}

Picoseconds Replay::can_start(const layouts::Timeline& timeline, std::size_t rank, std::size_t op) const {
    const auto own = std::max(ready(timeline, rank, op), issued(rank, op));
    const auto& instruction = program_.ranks[rank].code[op];
    if (instruction.partner < 0) return own;
    const auto peer = index(instruction.op.peer), partner = index(instruction.partner);
    if (partner >= program_.ranks[peer].operations) return own;  // the owner's half of a fetch has no span
    return std::max({own, ready(timeline, peer, partner), issued(peer, partner)});
}

/// Finds issue delays, lags of compute operations, and begins of passes.
void Replay::find_waits(const layouts::Timeline& measured) {
    double all_started = 0, all_issued = 0;
    std::vector<double> slower_host(first_.size(), 0);  // by rank: measured over predicted issue times
    for (std::size_t rank = 0; rank < first_.size(); ++rank) {
        double rank_started = 0, rank_issued = 0;
        for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
            const auto started = std::max<Picoseconds>(0, measured.spans[first_[rank] + op].posted);
            const auto predicted = issued(rank, op), could = ready(measured, rank, op);
            const auto& instruction = program_.ranks[rank].code[op].op;
            auto& price = prices_.ranks[rank].ops[op];
            if (predicted >= could) {
                if (instruction.lane() == compute_lane && before_[rank][op] < 0) continue;  // see below
                price.issue_delay = started - predicted;
                if (!instruction.transfers()) continue;
                rank_started += static_cast<double>(started);
                rank_issued += static_cast<double>(predicted);
            } else if (!instruction.transfers() && !instruction.fused) {
                price.lag = std::max<Picoseconds>(0, started - could);
            }
        }
        if (rank_issued > 0) slower_host[rank] = rank_started / rank_issued;
        all_started += rank_started;
        all_issued += rank_issued;
    }
    // The first compute operation waits both for the host and for the begin of the pass. The rank's messages show how
    // fast the host was, which tells the two apart.
    for (std::size_t rank = 0; rank < first_.size(); ++rank)
        for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
            if (program_.ranks[rank].code[op].op.lane() != compute_lane || before_[rank][op] >= 0) continue;
            const auto started = std::max<Picoseconds>(0, measured.spans[first_[rank] + op].posted);
            const auto predicted = issued(rank, op), could = ready(measured, rank, op), begun = model_begins_[rank];
            auto& price = prices_.ranks[rank];
            if (could > std::max(predicted, begun)) {
                price.ops[op].lag = std::max<Picoseconds>(0, started - could);
                continue;
            }
            price.ops[op].lag = 0;
            const auto slower = slower_host[rank] > 0 ? slower_host[rank]
                                : all_issued > 0      ? all_started / all_issued
                                                      : 1;
            const auto by_host = slower * static_cast<double>(predicted);
            const bool host_decided = is_near(started, by_host) || by_host > static_cast<double>(started);
            price.ops[op].issue_delay = (host_decided ? started : static_cast<Picoseconds>(by_host)) - predicted;
            if (begun > started || (!host_decided && started > std::max(begun, could))) price.begin = started;
        }
}

/// Finds the factors of all operations, and the lags of messages.
void Replay::find_prices(const layouts::Timeline& measured) {
    std::vector<std::vector<Picoseconds>> lags;  // by rank and operation, in the last replay
    for (const auto& rank : prices_.ranks) {
        auto& of_rank = lags.emplace_back();
        for (const auto& price : rank.ops) of_rank.push_back(price.lag);
    }
    // A message may wait for SMs beside an attend, and this wait depends on the factors of attends. So lags of messages
    // are found only when the factors have settled: a lag is the wait that the replay does not reproduce.
    constexpr int most_rounds = 30, rounds_without_lags = 10;
    bool has_lags = false;
    constexpr double enough = 1e-7;  // of the pass
    const auto whole = static_cast<double>(std::max<Picoseconds>(1, measured.makespan()));
    for (int round = 0; round < most_rounds; ++round) {
        const auto replayed = play(prices_, true).timeline;
        double worst = 0;
        for (std::size_t rank = 0; rank < first_.size(); ++rank)
            for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
                const auto& instruction = program_.ranks[rank].code[op];
                const auto &real = measured.spans[first_[rank] + op], &played = replayed.spans[first_[rank] + op];
                if (real.kind == OpKind::receive) continue;
                auto& price = prices_.ranks[rank].ops[op];
                auto end = real.end;
                auto begin = real.begin;
                if (instruction.op.transfers()) {
                    if (instruction.partner >= 0 &&
                        index(instruction.partner) < program_.ranks[index(instruction.op.peer)].operations)
                        end = measured.spans[first_[index(instruction.op.peer)] + index(instruction.partner)].end;
                    const auto waited = played.begin - can_start(replayed, rank, op);
                    if (has_lags) price.lag = std::max<Picoseconds>(0, begin - can_start(measured, rank, op) - waited);
                } else if (instruction.op.fused) {
                    begin = std::min(end, can_start(measured, rank, op));
                }
                const auto wanted = std::max<Picoseconds>(1, end - begin);
                const auto got = played.end - played.begin - lags[rank][op];
                lags[rank][op] = price.lag;
                if (got <= 0) continue;  // free by the model, so there is nothing to scale
                price.factor *= static_cast<double>(wanted) / static_cast<double>(got);
                worst = std::max(worst, std::abs(static_cast<double>(wanted - got)) / whole);
            }
        if (worst < enough && has_lags) break;
        has_lags = has_lags || worst < enough || round + 1 >= rounds_without_lags;
    }
    double predicted = 0, replayed = 0;
    for (std::size_t rank = 0; rank < first_.size(); ++rank)
        for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
            const auto& span = predicted_.timeline.spans[first_[rank] + op];
            if (owner_of(span.kind) != Owner::attends) continue;
            const auto length = static_cast<double>(span.end - span.begin);
            predicted += length;
            replayed += length * prices_.ranks[rank].ops[op].factor;
        }
    if (predicted > 0) attend_ratio_ = replayed / predicted;
}

Attribution Replay::attribute(double seconds, const std::vector<Picoseconds>& ends, double price_ratio) const {
    // The part of an attend's factor that is an error of its price. The rest is an error of the clock.
    const auto of_price = power_limits() ? price_ratio / attend_ratio_ : 1;
    auto clocks = prices_.clocks;
    if (power_limits()) {
        std::size_t last = 0;  // rank
        for (std::size_t rank = 0; rank < ends.size(); ++rank)
            if (last_ends_[rank] + ends[rank] > last_ends_[last] + ends[last]) last = rank;
        const auto traced = layouts::to_seconds(last_ends_[last] + ends[last]);
        const auto attends = layouts::to_seconds(attends_[last]);
        const auto slower = attends > 0 ? std::max(0.1, 1 + (seconds - traced) / attends) : 1;
        for (auto& clock : clocks) clock *= of_price / slower;
    }
    const auto time_with = [&](std::uint32_t replaced) {
        const auto has = [&](Owner owner) { return (replaced >> static_cast<unsigned>(owner) & 1) != 0; };
        MeasuredPrices prices;
        if (has(Owner::clock)) prices.clocks = clocks;
        for (std::size_t rank = 0; rank < first_.size(); ++rank) {
            auto& all = prices.ranks.emplace_back();
            if (has(Owner::begin)) all.begin = prices_.ranks[rank].begin;
            if (has(Owner::end)) all.end = ends[rank];
            for (std::size_t op = 0; op < program_.ranks[rank].operations; ++op) {
                const auto& found = prices_.ranks[rank].ops[op];
                const auto owner = owner_of(program_.ranks[rank].code[op].op.kind);
                auto& price = all.ops.emplace_back();
                if (has(owner)) price.factor = found.factor * (owner == Owner::attends ? of_price : 1);
                if (has(Owner::issue)) price.lag = found.lag, price.issue_delay = found.issue_delay;
            }
        }
        return layouts::to_seconds(play(prices, false).makespan);
    };
    // The owners that can have an effect: the clock only if power limits it.
    std::uint32_t active = 0;
    for (const auto owner : owners)
        if (owner != Owner::clock || power_limits()) active |= 1u << static_cast<unsigned>(owner);
    std::vector<double> times(std::size_t{1} << owners.size());
    for (std::uint32_t set = 0; set < times.size(); ++set)
        if ((set & ~active) == 0) times[set] = time_with(set);
    Attribution found{.predicted = times[0], .measured = seconds, .remainder = seconds - times[active]};
    const auto weights = shapley_weights(index(std::popcount(active)) - 1);
    for (const auto owner : owners) {
        const auto bit = 1u << static_cast<unsigned>(owner);
        if ((active & bit) == 0) continue;
        for (std::uint32_t set = 0; set < times.size(); ++set)
            if ((set & ~active) == 0 && (set & bit) == 0)
                found.effects[index(static_cast<int>(owner))] +=
                    weights[index(std::popcount(set))] * (times[set | bit] - times[set]);
    }
    return found;
}

}  // namespace ringlab::sim
