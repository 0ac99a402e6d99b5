#include "experiments/planning/advice.hpp"

#include "experiments/inputs/source.hpp"
#include "experiments/planning/advice_play.hpp"
#include "experiments/planning/candidates.hpp"
#include "experiments/study/in_order.hpp"
#include "layouts/require.hpp"
#include "layouts/work.hpp"
#include "sim/kernels.hpp"
#include "sim/max_plus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <set>

namespace ringlab::experiments {
namespace {

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
            const auto padded = layouts::pad(mask, tokens);
            const auto layout = layouts::make_layout(one.which.layout, padded, one.which.ranks);
            const layouts::Run all{0, 1, tokens};
            const layouts::KeyCounter keys({&all, 1});
            auto pairs = static_cast<double>(layouts::visible_pairs(padded, {&all, 1}, keys)) / one.which.ranks;
            const int last = one.which.ranks - 1;
            if (!one.which.algorithm.starts_with("ulysses"))
                for (const int rank : {0, last / 2, last})
                    pairs =
                        std::max(pairs, static_cast<double>(layouts::visible_pairs(padded, layout.shard(rank), keys)));
            const auto& machine = one.machine->machine;
            const auto flops = [&](layouts::Pass pass) {
                return sim::kernel_price(machine, pass, problem_).cost->flops;
            };
            one.floor_seconds = pairs * static_cast<double>(one.batch * problem_.query_heads) *
                                (problem_.forward_flop_per_cell() / flops(layouts::Pass::forward) +
                                 problem_.backward_flop_per_cell() / flops(layouts::Pass::backward));
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
            const auto played = play_some_ranks(one, plan, sim::ComputeModel::tiles);
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
            if (tried.operations <= most_simulated) {
                const auto rings = std::min<std::int64_t>(rings_that_share(tried.one),
                                                          most_simulated / std::max<std::int64_t>(tried.operations, 1));
                take(tried.one, play_all_ranks(tried.one, plan, static_cast<int>(rings)), Advised::Method::events);
            }
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
        const auto alone = play_some_ranks(one, plan, sim::ComputeModel::rate);
        advice_.operations += alone.looked_at;
        std::array<double, 2> ratio{};
        for (std::size_t pass = 0; pass < advised_passes.size(); ++pass) {
            const auto ends =
                sim::max_plus_symmetric(*plan.schedule(advised_passes[pass]), one.machine->machine, options);
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

Advice advise(const Question& question) { return Adviser(question).run(); }

}  // namespace ringlab::experiments
