#include "experiments/planning/advice.hpp"

#include "experiments/inputs/source.hpp"
#include "experiments/planning/candidates.hpp"
#include "experiments/planning/one_rank.hpp"
#include "experiments/study/in_order.hpp"
#include "layouts/require.hpp"
#include "layouts/work.hpp"
#include "sim/max_plus.hpp"
#include "sim/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using layouts::Schedule;

// What the simulator may be asked for: operations of both passes of one candidate, and of all of them. Some seconds.
constexpr std::int64_t most_simulated = 800'000, most_simulated_in_all = 4'000'000;
// Of the recurrence over all ranks, whose operations are hundreds of times cheaper.
constexpr std::int64_t most_recurred = 3'000'000'000;
// One rank's time is so near a bound from below: what it says is slower by more than this cannot be the best.
constexpr double margin = 1.05;
// A candidate whose pairs alone, at the best rate, take so many times the best time is not looked into: large rings are
// costly to lay out, small ones are looked at a little beyond what can win, so that their reasons can be read.
constexpr int large_ring = 256;
constexpr double outrun_large = 1, outrun_small = 2.5;

constexpr std::array passes{Pass::forward, Pass::backward};

/// Of both passes.
struct Played {
    std::array<double, 2> seconds{};
    Losses losses;
    std::int64_t operations = 0;
    std::int64_t operations_of_rank = 0;
    std::int64_t looked_at = 0;  ///< operations, of all ranks that were played
};

/// A candidate and what was found of it.
struct Looked {
    Advised one;
    std::int64_t operations = 0;  ///< that this took
};

class Adviser {
public:
    explicit Adviser(const Question& question) : question_(question), problem_(problem_from(question.config)) {
        config_ = question.config;
        config_.pad = true;
    }

    Advice run() {
        for (const auto& machine : question_.machines) {
            auto some = candidates(question_, machine);
            advice_.all.insert(advice_.all.end(), some.begin(), some.end());
        }
        for (auto& one : advice_.all) set_floor(one);
        std::stable_sort(advice_.all.begin(), advice_.all.end(),
                         [](const Advised& a, const Advised& b) { return a.floor_seconds < b.floor_seconds; });
        look_at_all();
        simulate_the_first();
        correct_the_first();
        std::stable_sort(advice_.all.begin(), advice_.all.end(), [](const Advised& a, const Advised& b) {
            if (a.verdict != b.verdict) return a.verdict < b.verdict;
            return a.verdict == Advised::Verdict::ranked ? a.seconds() < b.seconds() : a.memory < b.memory;
        });
        const bool any = std::any_of(advice_.all.begin(), advice_.all.end(),
                                     [](const Advised& one) { return one.verdict != Advised::Verdict::impossible; });
        require(any, "no layout and schedule is possible: {}",
                advice_.all.empty() ? "none is given" : advice_.all.front().reason);
        return std::move(advice_);
    }

private:
    Plan plan_of(const Advised& one) const {
        auto problem = problem_;
        problem.batch = one.batch;
        return make_plan(one.which, problem, config_, {});
    }

    double best() const {
        double least = std::numeric_limits<double>::infinity();
        for (const auto& one : advice_.all)
            if (one.verdict == Advised::Verdict::ranked && one.method != Advised::Method::none)
                least = std::min(least, one.seconds());
        return least;
    }

    /// Time of the busiest rank's pairs in both passes at the best rate, from mask and layout alone. Where ranks work
    /// on the rows that they own the first, the last and the middle one are looked at, else the mean.
    void set_floor(Advised& one) const {
        try {
            const auto granularity = layouts::layout_granularity(one.which.layout, one.which.ranks);
            const auto tokens = (one.which.tokens + granularity - 1) / granularity * granularity;
            const auto mask = layouts::make_mask(expand_mask(one.which.mask, one.which.tokens, {}), one.which.tokens);
            const auto layout = layouts::make_layout(one.which.layout, tokens, one.which.ranks);
            const auto padded = layouts::pad(mask, tokens);
            const layouts::Run all{0, 1, tokens};
            const layouts::KeyCounter keys({&all, 1});
            auto pairs = static_cast<double>(layouts::visible_pairs(padded, {&all, 1}, keys)) / one.which.ranks;
            const int last = one.which.ranks - 1;
            if (!one.which.algorithm.starts_with("ulysses"))
                for (const int rank : {0, last / 2, last})
                    pairs =
                        std::max(pairs, static_cast<double>(layouts::visible_pairs(padded, layout.shard(rank), keys)));
            const auto& machine = one.machine->machine;
            one.floor_seconds = pairs * static_cast<double>(one.batch * problem_.query_heads) *
                                (problem_.forward_flop_per_cell() / machine.forward.flops +
                                 problem_.backward_flop_per_cell() / machine.backward.flops);
        } catch (const Error& error) {
            one.verdict = Advised::Verdict::impossible;
            one.reason = error.what();
        }
    }

    static bool is_outrun(const Advised& one, double best) {
        return one.floor_seconds > (one.which.ranks > large_ring ? outrun_large : outrun_small) * best;
    }

    /// On several threads, some of them ahead of what is known when their turn comes: what they then need not have
    /// looked at is dropped, so that the advice is that of one thread.
    void look_at_all() {
        std::atomic<double> least = best();
        const auto look = [&](std::size_t i) {
            Looked looked{advice_.all[i]};
            if (looked.one.verdict != Advised::Verdict::impossible && !is_outrun(looked.one, least)) look_at(looked);
            return looked;
        };
        make_in_parallel(advice_.all.size(), threads_of(config_), look, [&](std::size_t i, Looked looked) {
            auto& one = advice_.all[i];
            if (question_.progress) question_.progress(one.name(), i, advice_.all.size());
            if (one.verdict == Advised::Verdict::impossible) return;
            if (is_outrun(one, least)) {
                one.verdict = Advised::Verdict::outrun;
                one.reason = fmt::format("its pairs alone take {:.4g} ms on the busiest rank", one.floor_seconds * 1e3);
                return;
            }
            one = std::move(looked.one);
            advice_.operations += looked.operations;
            least = best();
        });
    }

    void look_at(Looked& looked) const {
        auto& one = looked.one;
        try {
            const auto plan = plan_of(one);
            const auto keep = keeping(config_.keep.front(), plan.problem, config_);
            const auto need =
                footprint(*plan.forward, plan.backward.get(), keep, config_.model_layers, one.machine->capacity);
            one.memory = need.total();
            if (one.memory > one.machine->capacity.device) {
                one.verdict = Advised::Verdict::too_large;
                one.reason = fmt::format("memory: needs {} of {}; {}", memory_text(one.memory),
                                         memory_text(one.machine->capacity.device), need.largest_part());
                return;
            }
            const auto played = play(one, plan, sim::ComputeModel::tiles);
            looked.operations = played.looked_at;
            take(one, played, Advised::Method::one_rank);
        } catch (const Error& error) {
            one.verdict = Advised::Verdict::impossible;
            one.reason = error.what();
        }
    }

    static void take(Advised& one, const Played& played, Advised::Method method) {
        one.forward_seconds = played.seconds[0];
        one.backward_seconds = played.seconds[1];
        one.losses = played.losses;
        one.method = method;
        one.reason = one.losses.reason(one.seconds());
    }

    /// Ranks among which the slowest is likely: the ends, the middle, those on both sides of a host's end.
    static std::set<int> sample(const sim::Machine& machine, int ranks) {
        std::set<int> some{0, ranks / 2, ranks - 1};
        if (ranks > machine.gpus_per_host) some.insert({machine.gpus_per_host - 1, machine.gpus_per_host});
        return some;
    }

    static Played play(const Advised& one, const Plan& plan, sim::ComputeModel model) {
        sim::SimOptions options;
        options.compute = model;
        const auto& machine = one.machine->machine;
        Played played;
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
            const auto& schedule = *plan.schedule(passes[pass]);
            OneRank slowest, busiest;
            for (const auto rank : sample(machine, schedule.ranks())) {
                const auto found = play_one_rank(schedule, machine, options, rank);
                played.looked_at += found.operations;
                if (found.seconds > slowest.seconds) slowest = found;
                if (found.compute >= busiest.compute) busiest = found;
            }
            played.seconds[pass] = slowest.seconds;
            played.operations += slowest.operations * schedule.ranks();
            played.operations_of_rank += slowest.operations;
            add_losses(played.losses, schedule, machine, slowest.seconds, busiest.compute, busiest);
        }
        return played;
    }

    static void add_losses(Losses& losses, const Schedule& schedule, const sim::Machine& machine, double seconds,
                           double compute, const OneRank& busiest) {
        const auto& problem = schedule.problem();
        const auto forward = schedule.options().pass == Pass::forward;
        const auto rate = machine.attention(schedule.options().pass).flops;
        const layouts::Run all{0, 1, problem.tokens};
        const auto pairs =
            static_cast<double>(layouts::visible_pairs(schedule.mask(), {&all, 1}, layouts::KeyCounter({&all, 1})));
        const auto mean = pairs * static_cast<double>(problem.batch * problem.query_heads) / schedule.ranks() *
                          (forward ? problem.forward_flop_per_cell() : problem.backward_flop_per_cell());
        const auto exposed = std::max(0.0, seconds - compute);
        // Where the host is never ahead, what looks like waiting for transfers is waiting for it.
        const bool host_bound = busiest.issue >= 0.9 * seconds;
        (host_bound ? losses.launch : losses.transfer) += exposed;
        losses.imbalance += std::max(0.0, busiest.flop - mean) / rate;
        losses.launch += busiest.launches;
        losses.tail += std::max(0.0, compute - busiest.launches - std::max(busiest.flop, mean) / rate);
    }

    std::vector<Advised*> by_time() {
        std::vector<Advised*> order;
        for (auto& one : advice_.all)
            if (one.verdict == Advised::Verdict::ranked && one.method != Advised::Method::none) order.push_back(&one);
        std::stable_sort(order.begin(), order.end(),
                         [](const Advised* a, const Advised* b) { return a->seconds() < b->seconds(); });
        return order;
    }

    /// The simulator's word on all that may be the best, in order of what one rank said.
    void simulate_the_first() {
        const auto order = by_time();
        double least = std::numeric_limits<double>::infinity();
        std::int64_t simulated = 0;
        std::atomic<bool> over = false;
        const auto attempt = [&](std::size_t i) {
            Looked tried{*order[i]};
            if (over) return tried;
            const auto plan = plan_of(tried.one);
            tried.operations = operations_of(plan);
            if (tried.operations <= most_simulated)
                simulate(tried.one, plan,
                         static_cast<int>(
                             std::min<std::int64_t>(rings_that_share(tried.one), most_simulated / tried.operations)));
            return tried;
        };
        // As one by one, with what is simulated beyond the last that may be the best dropped.
        make_in_parallel(order.size(), threads_of(config_), attempt, [&](std::size_t i, Looked tried) {
            auto& one = *order[i];
            over = over || one.seconds() > margin * least;
            if (over) return;
            if (tried.operations <= most_simulated && simulated + tried.operations <= most_simulated_in_all) {
                if (question_.progress)
                    question_.progress("simulating " + one.name(), advice_.all.size(), advice_.all.size());
                simulated += tried.operations;
                one = std::move(tried.one);
            }
            least = std::min(least, one.seconds());
        });
        advice_.operations += simulated;
    }

    /// Rings side by side that share something with each other: none inside hosts; of whole hosts the spine alone.
    static int rings_that_share(const Advised& one) {
        const auto& machine = one.machine->machine;
        const auto ranks = one.which.ranks;
        const bool shares = ranks > machine.gpus_per_host
                                ? ranks % machine.gpus_per_host != 0 || machine.network.hosts_per_leaf > 0
                                : machine.gpus_per_host % ranks != 0;
        return shares ? one.rings : 1;
    }

    static std::int64_t operations_of(const Plan& plan) {
        std::int64_t count = 0;
        for (const auto pass : passes) {
            auto ops = plan.schedule(pass)->ops(plan.layout().ranks() - 1);
            while (ops.next()) ++count;
        }
        return count * plan.layout().ranks();
    }

    static void simulate(Advised& one, const Plan& plan, int rings) {
        Played played;
        const auto& machine = one.machine->machine;
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
            const auto& schedule = *plan.schedule(passes[pass]);
            sim::SimOptions options;
            options.replicas = rings;
            const auto predicted = sim::simulate(schedule, machine, options);
            int busiest = 0;
            for (int rank = 0; rank < schedule.ranks(); ++rank)
                if (predicted.ranks[static_cast<std::size_t>(rank)].compute >
                    predicted.ranks[static_cast<std::size_t>(busiest)].compute)
                    busiest = rank;
            played.seconds[pass] = layouts::to_seconds(predicted.makespan);
            add_losses(played.losses, schedule, machine, played.seconds[pass],
                       layouts::to_seconds(predicted.ranks[static_cast<std::size_t>(busiest)].compute),
                       play_one_rank(schedule, machine, {}, busiest));
        }
        take(one, played, Advised::Method::events);
    }

    /// Of rings too large to simulate: the best of each machine is set right by what the recurrence over all ranks says
    /// beside one of them, both with attends by rate.
    void correct_the_first() {
        std::set<const AdvisedMachine*> done;
        for (auto* one : by_time()) {
            if (!done.insert(one->machine).second || one->method != Advised::Method::one_rank) continue;
            const auto plan = plan_of(*one);
            if (operations_of(plan) > most_recurred || !alike(plan)) continue;
            try {
                correct(*one, plan);
            } catch (const Error&) {
                continue;  // ranks that differ: what one of them says stands
            }
        }
    }

    /// Whether ranks have as many pairs in each attend, so that the recurrence asks for them once.
    static bool alike(const Plan& plan) {
        const auto cells = [&](int rank) {
            std::multiset<std::int64_t> found;
            auto ops = plan.forward->ops(rank);
            while (const auto* op = ops.next())
                if (op->kind == layouts::OpKind::attend) found.insert(op->cells);
            return found;
        };
        return cells(0) == cells(plan.layout().ranks() / 2);
    }

    void correct(Advised& one, const Plan& plan) {
        sim::SimOptions options;
        options.compute = sim::ComputeModel::rate;
        options.sharing = false;
        const auto alone = play(one, plan, sim::ComputeModel::rate);
        advice_.operations += alone.looked_at;
        std::array<double, 2> ratio{};
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
            const auto ends = sim::max_plus_symmetric(*plan.schedule(passes[pass]), one.machine->machine, options);
            ratio[pass] = layouts::to_seconds(*std::max_element(ends.begin(), ends.end())) / alone.seconds[pass];
        }
        const auto before = one.seconds();
        one.forward_seconds *= ratio[0];
        one.backward_seconds *= ratio[1];
        one.losses.transfer = std::max(0.0, one.losses.transfer + one.seconds() - before);
        one.method = Advised::Method::recurrence;
        one.reason = one.losses.reason(one.seconds());
    }

    const Question& question_;
    Config config_;
    layouts::Problem problem_;
    Advice advice_;
};

}  // namespace

std::string Losses::reason(double seconds) const {
    std::vector<std::pair<double, const char*>> parts{
        {transfer, "exposed transfer"}, {imbalance, "imbalance"}, {tail, "tail"}, {launch, "launch"}};
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    constexpr double counts = 0.02;
    std::string text;
    for (const auto& [loss, name] : parts)
        if (loss >= counts * seconds)
            text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * loss / seconds);
    return text.empty() ? "nothing: compute at the machine's best rate" : text;
}

std::string Advised::name() const { return fmt::format("{} on {}", which.name(), machine->name); }

const char* to_string(Advised::Verdict verdict) {
    switch (verdict) {
        case Advised::Verdict::ranked: return "ranked";
        case Advised::Verdict::outrun: return "outrun";
        case Advised::Verdict::too_large: return "does not fit";
        case Advised::Verdict::impossible: return "impossible";
    }
    return "?";
}

const char* to_string(Advised::Method method) {
    switch (method) {
        case Advised::Method::none: return "none";
        case Advised::Method::events: return "events";
        case Advised::Method::recurrence: return "recurrence";
        case Advised::Method::one_rank: return "one rank";
    }
    return "?";
}

std::vector<const Advised*> Advice::ranked() const {
    std::vector<const Advised*> some;
    for (const auto& one : all)
        if (one.verdict == Advised::Verdict::ranked) some.push_back(&one);
    return some;
}

Advice advise(const Question& question) { return Adviser(question).run(); }

}  // namespace ringlab::experiments
