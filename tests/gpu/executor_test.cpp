// Whole passes by the executor, all ranks on one GPU, against the fp64 reference and against each other.

#include "reference/attention/blocked.hpp"
#include "tests/covering.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::TransportKind;
using layouts::Accumulation;
using layouts::DType;

bool suits_any_ranks(const std::string& schedule) {
    return std::ranges::all_of(std::array{1, 2, 3, 4, 6, 8},
                               [&](int ranks) { return suits(small_problem(), schedule, ranks); });
}

std::vector<std::string> schedules_that_suit(bool any_ranks) {
    auto names = schedules_for(small_problem());
    std::erase_if(names, [&](const std::string& schedule) { return suits_any_ranks(schedule) != any_ranks; });
    return names;
}

const Names schedule_names([] { return schedules_that_suit(true); });
const Names schedules_of_one_or_four([] { return schedules_for(small_problem(), {1, 4}); });
const Names layout_names(layout_examples);
// The last two leave rows without keys, and with some layouts whole ranks.
const std::vector<std::string> masks{"full",
                                     "causal",
                                     "causal+documents:97,43,300,136",
                                     "causal+window:64,0+sink:4",
                                     "causal+valid:0-300,333-500",
                                     "window:31,17+valid:100-200"};

/// Fresh inputs of the small problem for every test program; for each mask, the expected results over them and how far
/// off they may be.
class Small {
public:
    const std::uint64_t seed = std::random_device{}();
    const reference::Inputs inputs = random_inputs(small_problem(), seed);
    const gpu::HostInputs host = host_inputs(inputs, small_problem().dtype);

    void check(const RingCase& c, const gpu::HostOutputs& measured) {
        auto& [outputs, errors] = by_mask_[c.mask];
        if (!errors) {
            const auto mask = layouts::make_mask(c.mask, small_problem().tokens);
            outputs = reference::blocked_attention(small_problem(), mask, inputs);
            errors = std::make_unique<reference::ErrorModel>(small_problem(), mask, inputs, outputs);
        }
        check_against(c, measured, outputs, bounds_of(c, *errors, inputs));
    }

    static Small& get() {
        static Small small;
        return small;
    }

private:
    std::map<std::string, std::pair<reference::Outputs, std::unique_ptr<reference::ErrorModel>>> by_mask_;
};

void check_small(const RingCase& c) {
    BOOST_TEST_CONTEXT(c << ", seed " << Small::get().seed) {
        Small::get().check(c, run_case(c, Small::get().host).outputs);
    }
}

BOOST_AUTO_TEST_SUITE(executor, *boost::unit_test::precondition(has_gpu))

BOOST_DATA_TEST_CASE(every_schedule_layout_and_mask_agrees_with_the_reference, data::make(schedule_names), schedule) {
    constexpr std::array ranks{1, 2, 3, 4, 8};
    for (const auto& [s, r, l, m] :
         pairwise<4>({schedule_names.count(), ranks.size(), layout_names.count(), masks.size()}))
        if (schedule_names[s] == schedule)
            check_small({small_problem(), masks[m], layout_names[l], schedule, ranks[r]});
}

// A suffix that crosses shards, the newest tokens of three sequences, and one row, which is padding under some masks.
const std::vector<std::vector<layouts::Interval>> few_queries{
    {{500, 576}}, {{96, 97}, {439, 440}, {570, 576}}, {{310, 311}}};

const std::vector<std::string> masks_of_few{"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"};

BOOST_DATA_TEST_CASE(rows_fewer_than_keys_agree_with_the_reference, data::make(schedule_names), schedule) {
    constexpr std::array ranks{1, 3, 4};
    auto problem = small_problem();
    for (const auto& [s, r, q, l, m] : pairwise<5>(
             {schedule_names.count(), ranks.size(), few_queries.size(), layout_names.count(), masks_of_few.size()})) {
        if (schedule_names[s] != schedule) continue;
        problem.queries = few_queries[q];
        agrees_with_the_reference({problem, masks_of_few[m], layout_names[l], schedule, ranks[r]});
    }
    problem.queries = few_queries[1];
    agrees_with_the_reference({problem, "causal", "zigzag", schedule, 3, Accumulation::partials, DType::bf16});
}

/// Whether the messages of a forward pass took no time of their own.
bool is_one_launch(const gpu::GpuRun& run) {
    const auto& spans = run.forward.timelines.at(0).spans;
    return std::ranges::all_of(
        spans, [](const auto& span) { return span.lane == layouts::compute_lane || span.posted == span.end; });
}

// Ranks that share a GPU, each with a thread and a stream of its own, whose launches run at the same time.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_hopper))
BOOST_AUTO_TEST_CASE(passes_in_one_launch_agree_with_the_reference) {
    const std::array<std::vector<layouts::Interval>, 3> queries{{{{568, 576}}, few_queries[1], few_queries[2]}};
    const std::array names{"contiguous", "zigzag", "striped"};
    constexpr std::array ranks{2, 3, 4};
    for (const auto& [r, m, l, q] : pairwise<4>({ranks.size(), masks_of_few.size(), names.size(), queries.size()})) {
        RingCase c{small_problem(), masks_of_few[m], names[l], "joined-merge", ranks[r]};
        c.problem.queries = queries[q];
        c.options.transport = TransportKind::copy;
        c.options.devices.assign(static_cast<std::size_t>(c.ranks), 0);
        c.options.repeats = 3;
        agrees_with_the_reference(c);
        BOOST_TEST(is_one_launch(run_case(c, host_inputs(c.problem, 4))));
    }
}

// Sequences of 24 tokens with 3 rows each. The rows of 40 are more than a work list of the split-KV kernel has
// otherwise. Those of 90 are more than it has of any batch, if one rank has them all. A sequence's rows lie on several
// ranks or on one.
BOOST_DATA_TEST_CASE(a_batch_of_sequences_agrees_with_the_reference,
                     data::make({"merge", "joined-merge"}) * data::make({1, 2, 3}) * data::make({40, 90}) *
                         data::make({false, true}),
                     schedule, ranks, sequences, together) {
    RingCase c{small_problem(), fmt::format("causal+documents:24x{}", sequences), "striped", schedule, ranks};
    c.keeps_rows_together = together;
    c.problem.tokens = std::int64_t{24} * sequences;
    for (std::int64_t sequence = 0; sequence < sequences; ++sequence)
        c.problem.queries.push_back({24 * sequence + 21, 24 * sequence + 24});
    agrees_with_the_reference(c);
    c.options.transport = TransportKind::copy;
    c.options.devices.assign(static_cast<std::size_t>(ranks), 0);
    agrees_with_the_reference(c);
}

/// Schedules that do not divide among any number of ranks, on each that suits.
std::vector<std::pair<std::string, int>> groups() {
    Combinations combinations;
    std::vector<std::pair<std::string, int>> all;
    for (const auto& schedule : schedules_that_suit(false))
        for (const int ranks : {2, 4, 6, 8})
            if (combinations.take(suits(small_problem(), schedule, ranks))) all.emplace_back(schedule, ranks);
    return all;
}

BOOST_AUTO_TEST_CASE(schedules_of_groups_agree_with_the_reference) {
    const auto all = groups();
    for (const auto& [g, l, m] : pairwise<3>({all.size(), layout_names.count(), masks.size()}))
        check_small({small_problem(), masks[m], layout_names[l], all[g].first, all[g].second});
    auto few = small_problem();
    for (const auto& [g, q, m] : pairwise<3>({all.size(), few_queries.size(), masks_of_few.size()})) {
        few.queries = few_queries[q];
        agrees_with_the_reference({few, masks_of_few[m], "contiguous", all[g].first, all[g].second});
    }
}

/// Partial outputs, in fp32 or into a rounded one; the fp32 output of a carry.
enum class Policy { partials, rounded_partials, carry };

void check_policy(const std::string& schedule, int ranks, Policy policy, DType gradients, const std::string& mask) {
    const bool carry = policy == Policy::carry;
    RingCase c{small_problem(), mask,  carry ? "striped" : "zigzag",
               schedule,        ranks, carry ? Accumulation::carry : Accumulation::partials,
               gradients};
    c.options.round_running_output = policy == Policy::rounded_partials;
    check_small(c);
}

constexpr std::array policies{Policy::partials, Policy::rounded_partials, Policy::carry};
constexpr std::array gradient_dtypes{DType::fp32, DType::bf16};
const std::vector<std::string> masks_of_policies{"causal", "window:31,17+valid:100-200"};

BOOST_AUTO_TEST_CASE(every_policy_of_groups_agrees_with_the_reference) {
    const auto all = groups();
    for (const auto& [g, p, d, m] :
         pairwise<4>({all.size(), policies.size(), gradient_dtypes.size(), masks_of_policies.size()}))
        check_policy(all[g].first, all[g].second, policies[p], gradient_dtypes[d], masks_of_policies[m]);
}

BOOST_DATA_TEST_CASE(every_policy_agrees_with_the_reference, data::make(schedule_names), schedule) {
    constexpr std::array ranks{1, 3, 8};
    for (const auto& [s, r, p, d, m] : pairwise<5>(
             {schedule_names.count(), ranks.size(), policies.size(), gradient_dtypes.size(), masks_of_policies.size()}))
        if (schedule_names[s] == schedule)
            check_policy(schedule, ranks[r], policies[p], gradient_dtypes[d], masks_of_policies[m]);
}

BOOST_DATA_TEST_CASE(every_schedule_rotates_q_and_k_by_global_position, data::make(schedule_names), schedule) {
    constexpr std::array ranks{1, 4};
    for (const auto& [s, r, part] : pairwise<3>({schedule_names.count(), ranks.size(), 2})) {
        if (schedule_names[s] != schedule) continue;
        RingCase c{small_problem(), "causal+documents:97,43,300,136", layout_in_turn(s), schedule, ranks[r]};
        c.problem.rotary = {.base = 10000,
                            .positions = layouts::Rotary::Positions::documents,
                            .scaling = layouts::parse_rotary_scaling("yarn:4,64")};
        c.options.repeats = 2;  // each from q and k as they were
        if (part == 1) c.problem.rotary = {.base = 500, .dims = 32, .first = 16};
        agrees_with_the_reference(c);
    }
}

BOOST_DATA_TEST_CASE(gradients_that_attends_add_to_agree_with_portable_kernels_too,
                     data::make({DType::fp32, DType::bf16}) * data::make({24, 64}), gradients, dim) {
    auto p = small_problem();
    p.head_dim = p.value_dim = dim;
    RingCase c{p, "causal", "zigzag", "joined-ring:1", 4, Accumulation::carry, gradients};
    c.options.kernels = gpu::kernel_family("portable");
    agrees_with_the_reference(c);
}

BOOST_DATA_TEST_CASE(awkward_problems_agree_with_the_reference, data::make(schedule_names), schedule) {
    layouts::Problem p;
    p.batch = 2;
    p.tokens = 390;
    p.query_heads = 6;
    p.kv_heads = 2;
    p.head_dim = 192;
    p.value_dim = 128;
    p.dtype = DType::fp16;
    p.soft_cap = 20;
    RingCase c{p, "causal+documents:111,200,79", "zigzag", schedule, 3};
    c.options.deterministic = true;
    agrees_with_the_reference(c);
    c.problem.head_dim = c.problem.value_dim = 40;
    c.problem.dtype = DType::bf16;
    c.problem.soft_cap = 0;
    agrees_with_the_reference(c);
}

BOOST_AUTO_TEST_CASE(sixty_four_ranks_take_turns_on_one_device) {
    auto p = small_problem();
    p.tokens = 1280;
    agrees_with_the_reference({p, "causal", "zigzag", "ring", 64});
}

BOOST_DATA_TEST_CASE(repeats_give_the_same_bits, data::make(schedule_names), schedule) {
    RingCase c{small_problem(), "causal", "zigzag", schedule, 4};
    c.options.deterministic = true;
    const auto once = run_case(c, Small::get().host);
    c.options.repeats = 3;
    c.options.warm_up = 1;
    const auto again = run_case(c, Small::get().host);
    check_identical(again.outputs, once.outputs);
    BOOST_TEST(again.forward.timelines.size() == 3u);
    BOOST_TEST(again.backward.seconds.size() == 3u);
}

// With rounded results dQ is summed where the fp32 output was, and gradients are rounded into scratch slots: nothing
// may be read there that has been overwritten, pass after pass.
BOOST_DATA_TEST_CASE(rounded_results_are_the_fp32_ones_rounded,
                     data::make(schedules_of_one_or_four) * data::make({1, 4}) * data::make({false, true}), schedule,
                     ranks, with_sinks) {
    RingCase c{small_problem(), "causal", "zigzag", schedule, ranks};
    if (with_sinks) c.problem.sinks = {0.5, -4, 9, 3};
    if (!suits(c.problem, schedule, ranks)) return;
    c.options.deterministic = true;
    const auto exact = run_case(c, Small::get().host).outputs;
    c.options.round_results = true;
    c.options.repeats = 3;
    const auto rounded = run_case(c, Small::get().host).outputs;
    check_identical(rounded, in_bf16(exact));
    BOOST_TEST(rounded.dsinks == exact.dsinks, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_run_for_timing_needs_no_inputs_and_gives_no_results) {
    RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    c.options.keep_results = false;
    c.options.timelines = layouts::Timelines::extra;
    c.options.warm_up_seconds = 0.01;
    c.options.repeats = 3;
    const auto runs = run_rings(c, {});
    BOOST_TEST(runs.size() == 1u);
    BOOST_TEST(runs.front().outputs.o.values.empty());
    for (const auto* pass : {&runs.front().forward, &runs.front().backward}) {
        BOOST_TEST(pass->timelines.size() == 1u);
        BOOST_TEST(!pass->timelines.front().spans.empty());
        BOOST_TEST(pass->seconds.size() == 3u);
        BOOST_TEST(pass->issue.size() == 3u);
        for (const auto& ranks : pass->issue)
            for (const auto seconds : ranks) BOOST_TEST(seconds > 0);
    }
}

// Threads order their streams by events whatever GPUs they are on, so one GPU is enough to test that.
BOOST_DATA_TEST_CASE(threads_with_copy_engines_give_the_same_bits_as_one_thread, data::make(schedule_names), schedule) {
    constexpr std::array ranks{2, 3};
    for (const auto& [s, r, m] : pairwise<3>({schedule_names.count(), ranks.size(), masks_of_policies.size()})) {
        if (schedule_names[s] != schedule) continue;
        RingCase c{small_problem(), masks_of_policies[m], "zigzag", schedule, ranks[r]};
        c.options.deterministic = true;
        const auto loopback = run_case(c, Small::get().host);
        c.options.transport = TransportKind::copy;
        c.options.devices.assign(static_cast<std::size_t>(c.ranks), 0);
        c.options.repeats = 3;
        BOOST_TEST_CONTEXT(c) { check_identical(run_case(c, Small::get().host).outputs, loopback.outputs); }
    }
}

BOOST_AUTO_TEST_CASE(replicas_of_a_ring_do_not_mix) {
    using Placement = layouts::RingGroup::Placement;
    for (const auto placement : {Placement::consecutive, Placement::strided})
        for (const auto transport : {TransportKind::loopback, TransportKind::copy}) {
            RingCase c{small_problem(), "causal", "zigzag", "ring", 2};
            c.options.transport = transport;
            c.options.group = {2, 2, placement};
            c.options.devices.assign(4, 0);
            const auto other = expected_of(c, 77);
            const auto runs = run_rings(c, std::vector{Small::get().host, host_inputs(other.inputs, c.problem.dtype)});
            BOOST_TEST_REQUIRE(runs.size() == 2u);
            Small::get().check(c, runs[0].outputs);
            check_against(c, runs[1].outputs, other.outputs, other.bounds);
        }
}

BOOST_DATA_TEST_CASE(a_silent_rank_ends_the_run_with_a_named_operation, data::make({"ring", "all-gather"}), schedule) {
    RingCase c{small_problem(), "full", "contiguous", schedule, 2};
    c.options.transport = TransportKind::copy;
    c.options.devices = {0, 0};
    c.options.timeout = std::chrono::seconds(2);
    const auto message = error_of([&] { run_case(c, Small::get().host, silent_rank_fabric(TransportKind::copy, 1)); });
    BOOST_TEST(message.find("has not ended after 2 s without progress") != std::string::npos, message);
    BOOST_TEST(message.find("rank 0: operation") != std::string::npos, message);
    // The device is as good as before.
    check_small({small_problem(), "causal", "zigzag", schedule, 2});
}

BOOST_DATA_TEST_CASE(timelines_keep_the_order_of_the_schedule, data::make(schedule_names), schedule) {
    RingCase c{small_problem(), "causal", "zigzag", schedule, 4};
    const auto passes = make_passes(c);
    const auto run = run_case(c, Small::get().host);
    const auto check_pass = [&](const layouts::Schedule& pass, const layouts::Timeline& timeline) {
        std::vector<std::vector<const layouts::Span*>> spans(4);
        for (const auto& span : timeline.spans) spans[static_cast<std::size_t>(span.rank)].push_back(&span);
        for (int rank = 0; rank < 4; ++rank) {
            const auto& own = spans[static_cast<std::size_t>(rank)];
            std::map<layouts::Lane, layouts::Picoseconds> lane_end;
            auto ops = pass.ops(rank);
            std::size_t i = 0;
            for (const auto* op = ops.next(); op; op = ops.next(), ++i) {
                BOOST_TEST_REQUIRE(i < own.size());
                BOOST_TEST((own[i]->kind == op->kind && own[i]->block == op->part.block && own[i]->bytes == op->bytes));
                BOOST_TEST(own[i]->posted >= 0);
                BOOST_TEST(own[i]->begin >= own[i]->posted);
                BOOST_TEST(own[i]->end >= own[i]->begin);
                BOOST_TEST(own[i]->posted >= lane_end[op->lane()]);
                lane_end[op->lane()] = own[i]->end;
                for (const auto before : op->after())
                    BOOST_TEST(own[i]->posted >= own[static_cast<std::size_t>(before)]->end);
            }
            BOOST_TEST(i == own.size());
        }
        const auto totals = layouts::totals(timeline);
        for (int rank = 0; rank < 4; ++rank) BOOST_TEST(totals[static_cast<std::size_t>(rank)].compute > 0);
    };
    check_pass(*passes.forward, run.forward.timelines.front());
    check_pass(*passes.backward, run.backward.timelines.front());
    BOOST_TEST(std::ranges::max(run.forward.seconds.front()) >=
               layouts::to_seconds(run.forward.timelines.front().makespan()));

    // Inputs are what a shard of Q, K, V and dO takes; slots what the plans ask for, in whole allocation units.
    const auto rows = c.problem.tokens / 4;
    const auto inputs = 2 * rows * (2 * c.problem.query_heads + 2 * c.problem.kv_heads) * c.problem.head_dim;
    BOOST_TEST(run.memory.front().inputs == inputs);
    BOOST_TEST(run.memory.front().slots >= std::max(passes.forward->scratch_bytes(), passes.backward->scratch_bytes()));
    BOOST_TEST(run.memory.front().slots <=
               passes.forward->scratch_bytes() + passes.backward->scratch_bytes() + 64 * 256);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
