#include "experiments/planning/advice.hpp"

#include "experiments/options/case.hpp"
#include "experiments/options/source.hpp"
#include "experiments/planning/candidates.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/in_order.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <limits>

namespace ringlab::experiments {
namespace {

using Verdict = Advised::Verdict;

// A candidate is skipped if its pairs alone, at the best rate, take longer than this factor times the best time so far.
// Large rings are expensive to lay out. Small ones are looked at even if they cannot quite win, so that the report can
// say why.
constexpr double outrun_large = 1, outrun_small = 2.5;
// Variants are tried for candidates within this factor of the best time. A variant counts only if it is faster by more
// than the second number, a fraction.
constexpr double near_the_best = 1.2, least_gain = 0.001;
// Simulations that break_down() needs for a pass: one as it is, and one without each cause.
constexpr std::int64_t plays_of_causes = 1 + static_cast<std::int64_t>(sim::causes.size());

/// Operations per second that the simulator is assumed to do on one core.
constexpr double operations_per_second = 100'000;

double infinity() { return std::numeric_limits<double>::infinity(); }

class Adviser {
public:
    explicit Adviser(const Question& question)
        : question_(question),
          problem_(problem_from(question.config.problem)),
          config_(question.config),
          budget_(static_cast<std::int64_t>(config_.advice.budget_seconds * operations_per_second)),
          left_(budget_) {}

    Advice run() {
        for (const auto& machine : question_.machines)
            for (auto& one : candidates(question_, machine)) all_.push_back(std::move(one));
        for (auto& one : all_) set_floor(one, problem_);
        std::ranges::stable_sort(all_, {}, &Advised::floor_seconds);
        look_at_all(0);
        simulate(with(Verdict::estimated), true);
        simulate_variants();
        explain_the_first();
        std::ranges::stable_sort(all_, [](const Advised& a, const Advised& b) {
            if (a.verdict != b.verdict) return a.verdict < b.verdict;
            return a.verdict <= Verdict::estimated ? a.seconds() < b.seconds() : a.memory < b.memory;
        });
        const bool any = std::ranges::any_of(
            all_, [](auto verdict) { return verdict != Verdict::impossible; }, &Advised::verdict);
        require(any, "no layout and schedule is possible: {}", all_.empty() ? "none is given" : all_.front().reason);
        bound_the_first();
        advice_.all.assign(std::move_iterator(all_.begin()), std::move_iterator(all_.end()));
        return std::move(advice_);
    }

private:
    Plan plan_of(const Advised& one) const {
        auto problem = problem_;
        problem.batch = one.batch;
        return make_plan(one.setup, problem);
    }

    /// The candidates with this verdict, sorted by the best known time.
    std::vector<Advised*> with(Verdict verdict) {
        std::vector<Advised*> some;
        for (auto& one : all_)
            if (one.verdict == verdict) some.push_back(&one);
        std::ranges::stable_sort(some, {}, &Advised::seconds);
        return some;
    }

    /// Time of the last row that the table will show; infinity if there are not enough rows yet.
    double last_of_the_first() {
        const auto ranked = with(Verdict::ranked);
        return ranked.size() < question_.rows ? infinity() : ranked[question_.rows - 1]->seconds();
    }

    double best() const {
        double least = infinity();
        for (const auto& one : all_)
            if (one.verdict <= Verdict::estimated && one.method != Advised::Method::none)
                least = std::min(least, one.seconds());
        return least;
    }

    static bool is_outrun(const Advised& one, double best) {
        return one.floor_seconds > (one.setup.ranks > large_ring ? outrun_large : outrun_small) * best;
    }

    /// Looks at all candidates from index `first` on, on several threads. Threads run ahead of the results that are
    /// taken in order. A result that turns out to be unnecessary when its turn comes is dropped, so the advice is the
    /// same as with one thread.
    void look_at_all(std::size_t first) {
        std::atomic<double> least = best();
        struct Looked {
            Advised one;
            std::int64_t operations = 0;
        };
        const auto look = [&](std::size_t i) {
            Looked looked{all_[first + i]};
            if (looked.one.verdict != Verdict::impossible && !is_outrun(looked.one, least))
                looked.operations = look_at(looked.one);
            return looked;
        };
        make_in_parallel(
            all_.size() - first, threads_of(config_.prediction.threads), look, [&](std::size_t i, Looked looked) {
                auto& one = all_[first + i];
                if (question_.progress) question_.progress(one.name(), i, all_.size() - first);
                if (one.verdict == Verdict::impossible) return;
                if (is_outrun(one, least)) {
                    one.verdict = Verdict::outrun;
                    one.reason =
                        fmt::format("its pairs alone take {:.4g} ms on the busiest rank", one.floor_seconds * 1e3);
                    return;
                }
                one = std::move(looked.one);
                advice_.operations += looked.operations;
                least = best();
            });
    }

    /// Finds whether a candidate fits into memory, and estimates its time from a few ranks. Returns the number of
    /// operations that were played.
    std::int64_t look_at(Advised& one) const {
        try {
            const auto plan = plan_of(one);
            const auto keep = keeping(config_.memory.keep.front(), plan.problem, config_.memory);
            const auto need =
                footprint(*plan.forward, plan.backward.get(), keep, config_.memory.model_layers, one.machine->capacity);
            one.memory = need.total();
            one.attention_memory = need.pass.total();
            if (one.memory > one.machine->capacity.device) {
                one.verdict = Verdict::too_large;
                one.reason = fmt::format("memory: needs {} of {}; {}", memory_text(one.memory),
                                         memory_text(one.machine->capacity.device), need.largest_part());
                return 0;
            }
            sim::SimOptions options;
            options.clock = config_.prediction.attend_clock();
            const auto played = play_some_ranks(one, plan, options);
            take(one, played, Advised::Method::one_rank);
            one.verdict = Verdict::estimated;
            one.estimated_seconds = one.seconds();
            return played.looked_at;
        } catch (const Error& error) {
            one.verdict = Verdict::impossible;
            one.reason = error.what();
            return 0;
        }
    }

    static void take(Advised& one, const Played& played, Advised::Method method) {
        one.forward_seconds = played.seconds[0];
        one.backward_seconds = played.seconds[1];
        one.method = method;
    }

    /// Simulates these candidates in order until the budget is used up. With `by_estimate` it stops at the first one
    /// that cannot be among the first rows. Simulations beyond that on other threads are dropped.
    void simulate(const std::vector<Advised*>& order, bool by_estimate) {
        std::atomic<bool> over = false;
        std::atomic<std::int64_t> left = left_;
        const auto attempt = [&](std::size_t i) {
            auto tried = *order[i];
            if (over) return tried;
            const auto plan = plan_of(tried);
            tried.operations = operations_of(plan);
            tried.played_rings = rings_to_play(tried);
            if (tried.operations * tried.played_rings <= left) {
                take(tried, play_all_ranks(tried, plan, config_.prediction.attend_clock()), Advised::Method::events);
                tried.verdict = Verdict::ranked;
            }
            return tried;
        };
        make_in_parallel(
            order.size(), threads_of(config_.prediction.threads), attempt, [&](std::size_t i, Advised tried) {
                auto& one = *order[i];
                if (question_.progress) question_.progress("simulating " + one.name(), i, order.size());
                over = over || (by_estimate && one.estimated_seconds * estimate_error.least > last_of_the_first());
                if (over) {
                    one.verdict = Verdict::outrun;
                    one.reason = fmt::format("by one rank it takes {:.4g} ms, too long to be among the first {}",
                                             one.estimated_seconds * 1e3, question_.rows);
                    return;
                }
                const auto operations = tried.operations * tried.played_rings;
                if (operations > left) {
                    one.reason = fmt::format("not simulated: {} operations, where the budget has {} left", operations,
                                             left.load());
                    return;
                }
                left -= operations;
                advice_.operations += operations;
                one = std::move(tried);
            });
        left_ = left;
    }

    /// Number of rings to simulate side by side: 1 if rings share nothing. Rings inside one host share nothing if they
    /// fill it, and rings of whole hosts share only the spine.
    int rings_to_play(const Advised& one) const {
        const auto& machine = one.machine->machine;
        const auto ranks = one.setup.ranks;
        const bool shares = ranks > machine.gpus_per_host
                                ? ranks % machine.gpus_per_host != 0 || machine.network.hosts_per_leaf > 0
                                : machine.gpus_per_host % ranks != 0;
        const auto affordable = budget_ / std::max<std::int64_t>(one.operations, 1);
        return shares ? static_cast<int>(std::clamp<std::int64_t>(affordable, 1, one.rings)) : 1;
    }

    /// Simulates variants of the first candidates that are near the best one.
    void simulate_variants() {
        auto first = with(Verdict::ranked);
        first.resize(std::min(first.size(), question_.rows));
        const auto known = all_.size();
        std::vector<const Advised*> of;  // by variant: the candidate that it is derived from
        for (const auto* one : first) {
            if (one->seconds() > near_the_best * first.front()->seconds()) break;
            for (auto& variant : variants(question_, *one, problem_)) {
                if (std::ranges::find(all_, variant.name(), &Advised::name) != all_.end()) continue;
                all_.push_back(std::move(variant));
                of.push_back(one);
            }
        }
        look_at_all(known);
        std::vector<Advised*> order;
        for (auto i = known; i < all_.size(); ++i)
            if (all_[i].verdict == Verdict::estimated) order.push_back(&all_[i]);
        simulate(order, false);
        for (auto i = known; i < all_.size(); ++i) {
            const auto& plain = *of[i - known];
            if (all_[i].verdict != Verdict::ranked || all_[i].seconds() < (1 - least_gain) * plain.seconds()) continue;
            all_[i].verdict = Verdict::outrun;
            all_[i].reason =
                fmt::format("takes {:.4g} ms, no less than {}", all_[i].seconds() * 1e3, plain.setup.schedule);
        }
    }

    void bound_the_first() {
        const auto ranked = with(Verdict::ranked);
        if (ranked.empty() || !packs_documents(ranked.front()->setup.mask)) return;
        const auto& first = *ranked.front();
        auto problem = problem_;
        problem.batch = first.batch;
        sim::SimOptions options;
        options.clock = config_.prediction.attend_clock();
        const auto [forward, backward] = least_seconds(first.setup, problem, first.machine->machine, options);
        advice_.least_seconds = forward + backward;
    }

    /// Finds where the time goes for all rows of the tables, within a second budget of the same size.
    void explain_the_first() {
        auto left = budget_;
        for (const auto verdict : {Verdict::ranked, Verdict::estimated}) {
            auto some = with(verdict);
            some.resize(std::min(some.size(), question_.rows));
            std::erase_if(some, [&](const Advised* one) {
                if (one->method != Advised::Method::events) return false;
                left -= plays_of_causes * one->operations * one->played_rings;
                return left < 0;
            });
            const auto explain = [&, clock = config_.prediction.attend_clock()](std::size_t i) {
                const auto plan = plan_of(*some[i]);
                return verdict == Verdict::ranked ? explain_by_all_ranks(*some[i], plan, clock)
                                                  : explain_by_some_ranks(*some[i], plan, clock);
            };
            make_in_parallel(some.size(), threads_of(config_.prediction.threads), explain,
                             [&](std::size_t i, sim::Breakdown found) {
                                 if (question_.progress)
                                     question_.progress("explaining " + some[i]->name(), i, some.size());
                                 some[i]->causes = found;
                                 if (verdict == Verdict::ranked) some[i]->reason = causes_in_words(found);
                             });
        }
    }

    const Question& question_;
    layouts::Problem problem_;
    const Config& config_;
    std::int64_t budget_, left_;  // operations to simulate
    std::deque<Advised> all_;     // a deque, so that adding does not move the others
    Advice advice_;
};

}  // namespace

Advice advise(const Question& question) { return Adviser(question).run(); }

std::string Advised::name() const { return fmt::format("{} on {}", setup.name(), machine->name); }

std::optional<double> Advised::margin() const {
    return machine->uncertainty.margin_of(setup.ranks, setup.tokens, density);
}

std::string Advised::margin_is_of() const {
    const auto& scored = machine->uncertainty.rings;
    if (scored.empty() || !margin()) return "";
    const bool knows_layout = std::ranges::any_of(scored, [&](const ScoredRing& ring) {
        return ring.layout == setup.layout || (is_planned(ring.layout) && is_planned(setup.layout));
    });
    const bool knows_schedule =
        std::ranges::any_of(scored, [&](const ScoredRing& ring) { return ring.schedule == setup.schedule; });
    if (!knows_layout && !knows_schedule) return " of others";
    return !knows_layout ? " of other layouts" : !knows_schedule ? " of other schedules" : "";
}

const char* to_string(Advised::Verdict verdict) {
    constexpr std::array names{"ranked", "estimated", "outrun", "does not fit", "impossible"};
    return names[static_cast<std::size_t>(verdict)];
}

std::vector<const Advised*> Advice::with(Advised::Verdict verdict) const {
    std::vector<const Advised*> some;
    for (const auto& one : all)
        if (one.verdict == verdict) some.push_back(&one);
    return some;
}

}  // namespace ringlab::experiments
