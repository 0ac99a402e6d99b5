// What is put together from right runs is what a rank gives that really makes the mistake: the one of
// mutated_rank.cmake.
#include "experiments/execution/machine_fault.hpp"
#include "experiments/faults/mistakes.hpp"
#include "tests/reference/mutation.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

namespace ringlab::experiments::tests {
namespace {

using reference::tests::Mutation;

Config small_config() {
    Config config;
    config.execution.backend = "cpu";
    config.sweep.inputs = {"normal"};
    config.problem.heads = "4:2";
    config.problem.head_dim = 8;
    config.problem.value_dim = 6;
    config.problem.arithmetic = "fp64";
    config.execution.timeout_seconds = 20;
    return config;
}

/// What is no number in `b` is not compared: in a rank it spreads to masked keys of the same tile.
template <class Values>
double largest_difference(const Values& a, const Values& b) {
    BOOST_REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = a.data()[i], y = b.data()[i];
        if (x == y || std::isnan(y)) continue;
        const double difference = std::abs(x - y);
        largest = std::isfinite(difference) ? std::max(largest, difference) : HUGE_VAL;
    }
    return largest;
}

/// Of all results.
double largest_difference(const Measurement& a, const Measurement& b) {
    return std::max({largest_difference(a.outputs.o, b.outputs.o), largest_difference(a.outputs.lse, b.outputs.lse),
                     largest_difference(a.outputs.dq, b.outputs.dq), largest_difference(a.outputs.dk, b.outputs.dk),
                     largest_difference(a.outputs.dv, b.outputs.dv)});
}

/// A mistake's scene, and what is to be found there.
class Set {
public:
    Set(const Mistake& mistake, int ranks)
        : which_{"normal", mistake.mask, mistake.layout, "ring", mistake.policy, ranks, tokens} {
        config_.problem.rotary.base = mistake.rotary;
        config_.problem.dropout.probability = mistake.dropout;
        if (mistake.sinks) config_.problem.sinks = {"normal"};
        which_.queries = mistake.decodes ? 1 : 0;
        plan_ = make_plan(which_, source_.inspect("normal").problem);
        backend_ = make_backend(config_.execution, config_.problem.arithmetic, ranks);
        right_ = run();
    }

    Measurement run() {
        const auto& inputs = source_.get(which_, plan_.problem).front().inputs;
        return std::move(backend_->run(plan_, policy(), std::span(&inputs, 1), 1).front().front());
    }

    Consequence make(const Mistake& mistake) {
        return mistake.make({config_.execution, which_, plan_, policy_from(mistake.policy, plan_.problem.dtype),
                             source_.get(which_, plan_.problem).front().inputs, *backend_, right_});
    }

    const Measurement& right() const { return right_; }

    static constexpr std::int64_t tokens = 96;

private:
    Policy policy() const { return policy_from(which_.policy, plan_.problem.dtype); }

    Config config_ = small_config();
    Source source_{config_.problem, config_.sweep.inputs, 1};
    Case which_;
    Plan plan_;
    std::unique_ptr<Backend> backend_;
    Measurement right_;
};

std::optional<Mutation> mutation_of(const std::string& name) {
    static const std::map<std::string, Mutation> all{
        {"lse and o of each block backward", Mutation::per_block_statistics},
        {"step 0's K, V backward", Mutation::stale_block},
        {"rotary positions of the shard", Mutation::local_rotary_positions},
        {"lse = +inf for empty rows", Mutation::plus_infinity_for_empty_rows},
        {"window in each block's coordinates", Mutation::local_mask_coordinates},
        {"sink logits dropped under a window", Mutation::dropped_sinks}};
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
}

/// Attends of ranks to so many pairs, in milliseconds.
Measurement timed(const std::vector<std::vector<std::pair<std::int64_t, double>>>& of_rank) {
    Measurement one;
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
        for (const auto& [pair_count, milliseconds] : of_rank[rank]) {
            layouts::Span span;
            span.rank = static_cast<int>(rank);
            span.pair_count = pair_count;
            span.busy = static_cast<layouts::Picoseconds>(1e9 * milliseconds);
            one.forward.spans.push_back(span);
        }
    one.forward.ranks = one.backward.ranks = static_cast<int>(of_rank.size());
    return one;
}

std::optional<SlowRank> slow_of(const Measurement& one) { return slow_rank({{one}}); }

}  // namespace

BOOST_AUTO_TEST_SUITE(faults)

BOOST_AUTO_TEST_CASE(a_mistake_put_together_from_right_runs_is_the_mistake_itself) {
    for (const int ranks : {2, 4}) {
        int compared = 0;
        for (const auto& mistake : mistakes(Set::tokens, ranks)) {
            const auto mutation = mutation_of(mistake.name);
            if (!mutation) continue;
            BOOST_TEST_CONTEXT(mistake.name << ", " << ranks << " ranks") {
                Set set(mistake, ranks);
                const auto together = set.make(mistake).results.value();
                reference::tests::mutation = *mutation;
                const auto itself = set.run();
                reference::tests::mutation = Mutation::none;
                // Numbers of size 1 to 10, in fp64.
                BOOST_TEST(largest_difference(together, itself) < 1e-12);
                BOOST_TEST(largest_difference(together, set.right()) > 1e-3);
                ++compared;
            }
        }
        BOOST_TEST(compared == 6);
    }
}

BOOST_AUTO_TEST_CASE(every_mistake_changes_a_result_or_is_measured_by_a_gate_of_its_own) {
    std::vector<int> numbers;
    for (const auto& mistake : mistakes(Set::tokens, 4)) {
        BOOST_TEST_CONTEXT(mistake.name) {
            Set set(mistake, 4);
            const auto made = set.make(mistake);
            if (made.results)
                BOOST_TEST(largest_difference(*made.results, set.right()) > 1e-3);
            else
                BOOST_TEST(made.measured > made.bound);
        }
        if (numbers.empty() || numbers.back() != mistake.number) numbers.push_back(mistake.number);
    }
    BOOST_TEST(numbers.front() == 1);
    BOOST_TEST(numbers.back() == 14);
}

BOOST_AUTO_TEST_CASE(a_rank_that_takes_twice_the_others_time_for_equal_work_is_slow) {
    const auto slow = slow_of(timed({{{100, 1.0}}, {{100, 1.1}}, {{100, 2.5}}, {{100, 0.9}}}));
    BOOST_REQUIRE(slow.has_value());
    BOOST_TEST(slow->rank == 2);
    BOOST_TEST(slow->factor == 2.5, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(more_work_a_single_disturbance_or_a_tiny_attend_make_no_rank_slow) {
    // Twice the pairs in twice the time.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}}, {{100, 1.0}}, {{200, 2.5}}})));
    // One of two attends was disturbed.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}, {100, 1.0}}, {{100, 9.0}, {100, 1.0}}, {{100, 1.0}, {100, 1.0}}})));
    // One of two kinds of work was.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}, {200, 2.0}}, {{100, 9.0}, {200, 2.0}}, {{100, 1.0}, {200, 2.0}}})));
    BOOST_TEST(!slow_of(timed({{{100, 0.1}}, {{100, 0.9}}, {{100, 0.1}}})));
    BOOST_TEST(!slow_of(timed({{{100, 1.0}}})));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
