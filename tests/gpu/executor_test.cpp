// Whole passes by the executor, all ranks on one GPU, against the fp64 reference and against each other.

#include "reference/attention/blocked.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

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
const Names layout_names(layout_examples);
// The last two leave rows without keys, and with some layouts whole ranks.
const std::vector<std::string> masks{"full",
                                     "causal",
                                     "causal+documents:97,43,300,136",
                                     "causal+window:64,0+sink:4",
                                     "causal+valid:0-300,333-500",
                                     "window:31,17+valid:100-200"};

/// Fresh inputs for every test program, and the expected results of each mask over them.
struct Expected {
    const std::uint64_t seed = std::random_device{}();
    const reference::Inputs inputs = random_inputs(small_problem(), seed);
    const gpu::HostInputs host = host_inputs(inputs, small_problem().dtype);

    const reference::Outputs& outputs(const std::string& mask) {
        const auto [entry, is_new] = by_mask_.try_emplace(mask);
        if (is_new)
            entry->second =
                reference::blocked_attention(small_problem(), layouts::make_mask(mask, small_problem().tokens), inputs);
        return entry->second;
    }

    static Expected& get() {
        static Expected expected;
        return expected;
    }

private:
    std::map<std::string, reference::Outputs> by_mask_;
};

void check_small(const RingCase& c) {
    BOOST_TEST_CONTEXT(c << ", seed " << Expected::get().seed) {
        check_against(c, run_case(c, Expected::get().host).outputs, Expected::get().inputs,
                      Expected::get().outputs(c.mask));
    }
}

BOOST_AUTO_TEST_SUITE(executor, *boost::unit_test::precondition(has_gpu))

BOOST_DATA_TEST_CASE(every_schedule_layout_and_mask_agrees_with_the_reference,
                     data::make(schedule_names) * data::make({1, 2, 3, 4, 8}), schedule, ranks) {
    for (const auto& layout : layout_names)
        for (const auto& mask : masks) check_small({small_problem(), mask, layout, schedule, ranks});
}

// A suffix that crosses shards, the newest tokens of three sequences, and one row, which is padding under some masks.
const std::vector<std::vector<layouts::Interval>> few_queries{
    {{500, 576}}, {{96, 97}, {439, 440}, {570, 576}}, {{310, 311}}};

BOOST_DATA_TEST_CASE(rows_fewer_than_keys_agree_with_the_reference,
                     data::make(schedule_names) * data::make({1, 3, 4}) * data::xrange(few_queries.size()), schedule,
                     ranks, which) {
    auto problem = small_problem();
    problem.queries = few_queries[which];
    for (const auto& layout : layout_names)
        for (const std::string mask : {"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"})
            agrees_with_the_reference({problem, mask, layout, schedule, ranks});
    agrees_with_the_reference({problem, "causal", "zigzag", schedule, ranks, Accumulation::partials, DType::bf16});
}

/// Whether the messages of a forward pass took no time of their own.
bool is_one_launch(const gpu::GpuRun& run) {
    const auto& spans = run.forward.timelines.at(0).spans;
    return std::ranges::all_of(
        spans, [](const auto& span) { return span.lane == layouts::compute_lane || span.posted == span.end; });
}

// Ranks that share a GPU, each with a thread and a stream of its own, whose launches run at the same time.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_hopper))
BOOST_DATA_TEST_CASE(passes_in_one_launch_agree_with_the_reference,
                     data::make({2, 3, 4}) *
                         data::make({"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"}) *
                         data::make({"contiguous", "zigzag", "striped"}),
                     ranks, mask, layout) {
    for (const auto& queries : {std::vector<layouts::Interval>{{568, 576}}, few_queries[1], few_queries[2]}) {
        RingCase c{small_problem(), mask, layout, "joined-merge", ranks};
        c.problem.queries = queries;
        c.options.transport = TransportKind::copy;
        c.options.devices.assign(static_cast<std::size_t>(ranks), 0);
        c.options.repeats = 3;
        agrees_with_the_reference(c);
        BOOST_TEST(is_one_launch(run_case(c, host_inputs(random_inputs(c.problem, 4), c.problem.dtype))));
    }
}

// 40 sequences of 24 tokens with 2 rows each: more rows than a work list of the split-KV kernel has otherwise.
BOOST_DATA_TEST_CASE(a_batch_of_sequences_agrees_with_the_reference,
                     data::make({"merge", "joined-merge"}) * data::make({1, 2, 3}), schedule, ranks) {
    RingCase c{small_problem(), "causal+documents:24x40", "striped", schedule, ranks};
    c.problem.tokens = 960;
    for (std::int64_t sequence = 0; sequence < 40; ++sequence)
        c.problem.queries.push_back({24 * sequence + 22, 24 * sequence + 24});
    agrees_with_the_reference(c);
    c.options.transport = TransportKind::copy;
    c.options.devices.assign(static_cast<std::size_t>(ranks), 0);
    agrees_with_the_reference(c);
}

void check_group(const std::string& schedule, int ranks) {
    for (const auto& layout : layout_names)
        for (const auto& mask : masks) check_small({small_problem(), mask, layout, schedule, ranks});
    auto few = small_problem();
    for (const auto& queries : few_queries) {
        few.queries = queries;
        agrees_with_the_reference({few, "causal", "contiguous", schedule, ranks});
        agrees_with_the_reference({few, "window:31,17+valid:100-200", "striped", schedule, ranks});
    }
    for (const std::string mask : {"causal", "window:31,17+valid:100-200"})
        for (const bool rounded : {false, true})
            for (const auto gradients : {DType::fp32, DType::bf16}) {
                RingCase c{small_problem(), mask, "zigzag", schedule, ranks, Accumulation::partials, gradients};
                c.options.round_running_output = rounded;
                check_small(c);
            }
}

// Those that do not divide among any number of ranks.
BOOST_DATA_TEST_CASE(schedules_of_groups_agree_with_the_reference, Names([] { return schedules_that_suit(false); }),
                     schedule) {
    Combinations combinations;
    for (const int ranks : {2, 4, 6, 8})
        if (combinations.take(suits(small_problem(), schedule, ranks))) check_group(schedule, ranks);
}

BOOST_DATA_TEST_CASE(every_policy_agrees_with_the_reference,
                     data::make(schedule_names) * data::make({1, 3, 8}) * data::make({DType::fp32, DType::bf16}),
                     schedule, ranks, gradients) {
    for (const std::string mask : {"causal", "window:31,17+valid:100-200"})
        for (const bool rounded : {false, true}) {
            RingCase c{small_problem(), mask, "zigzag", schedule, ranks, Accumulation::partials, gradients};
            c.options.round_running_output = rounded;
            check_small(c);
        }
    check_small({small_problem(), "causal", "striped", schedule, ranks, Accumulation::carry, gradients});
}

BOOST_DATA_TEST_CASE(every_schedule_rotates_q_and_k_by_global_position, data::make(schedule_names) * data::make({1, 4}),
                     schedule, ranks) {
    for (const auto& layout : layout_names)
        for (const bool rounded : {false, true}) {
            RingCase c{small_problem(), "causal+documents:97,43,300,136", layout, schedule, ranks};
            c.problem.rotary = {.base = 10000,
                                .positions = layouts::Rotary::Positions::documents,
                                .scaling = layouts::parse_rotary_scaling("yarn:4,64")};
            c.options.repeats = 2;  // each from q and k as they were
            if (rounded) c.problem.rotary = {.base = 500, .dims = 32, .first = 16};
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
    const auto once = run_case(c, Expected::get().host);
    c.options.repeats = 3;
    c.options.warm_up = 1;
    const auto again = run_case(c, Expected::get().host);
    check_identical(again.outputs, once.outputs);
    BOOST_TEST(again.forward.timelines.size() == 3u);
    BOOST_TEST(again.backward.rank_seconds.size() == 3u);
}

// With rounded results dQ is summed where the fp32 output was, and gradients are rounded into scratch slots: nothing
// may be read there that has been overwritten, pass after pass.
BOOST_DATA_TEST_CASE(rounded_results_are_the_fp32_ones_rounded, data::make(schedule_names) * data::make({1, 4}),
                     schedule, ranks) {
    RingCase c{small_problem(), "causal", "zigzag", schedule, ranks};
    c.options.deterministic = true;
    const auto exact = run_case(c, Expected::get().host).outputs;
    c.options.round_results = true;
    c.options.repeats = 3;
    const auto rounded = run_case(c, Expected::get().host).outputs;
    const auto in_bf16 = [](gpu::HostTensor<float> tensor) {
        reference::round_in_place(tensor.values, DType::bf16);
        return tensor;
    };
    check_identical(rounded, {in_bf16(exact.o), exact.lse, in_bf16(exact.dq), in_bf16(exact.dk), in_bf16(exact.dv)});
}

BOOST_AUTO_TEST_CASE(a_run_for_timing_needs_no_inputs_and_gives_no_results) {
    const RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    const auto passes = make_passes(c);
    gpu::GpuOptions options;
    options.group.ring = 4;
    options.keep_results = false;
    options.timelines = gpu::Timelines::extra;
    options.warm_up_seconds = 0.01;
    options.repeats = 3;
    options.check_finite = true;  // what the devices make is of numbers
    const auto team = gpu::make_thread_team(gpu::team_size(options));
    const auto runs = gpu::run(*team, *passes.forward, passes.backward.get(), {}, options);
    BOOST_TEST(runs.size() == 1u);
    BOOST_TEST(runs.front().outputs.o.values.empty());
    for (const auto* pass : {&runs.front().forward, &runs.front().backward}) {
        BOOST_TEST(pass->timelines.size() == 1u);
        BOOST_TEST(!pass->timelines.front().spans.empty());
        BOOST_TEST(pass->rank_seconds.size() == 3u);
        BOOST_TEST(pass->issue_seconds.size() == 3u);
        for (const auto& ranks : pass->issue_seconds)
            for (const auto seconds : ranks) BOOST_TEST(seconds > 0);
    }
}

// Threads order their streams by events whatever GPUs they are on, so one GPU is enough to test that.
BOOST_DATA_TEST_CASE(threads_with_copy_engines_give_the_same_bits_as_one_thread,
                     data::make(schedule_names) * data::make({2, 3}), schedule, ranks) {
    for (const std::string mask : {"causal", "window:31,17+valid:100-200"}) {
        RingCase c{small_problem(), mask, "zigzag", schedule, ranks};
        c.options.deterministic = true;
        const auto loopback = run_case(c, Expected::get().host);
        c.options.transport = TransportKind::copy;
        c.options.devices.assign(static_cast<std::size_t>(ranks), 0);
        c.options.repeats = 3;
        BOOST_TEST_CONTEXT(c) { check_identical(run_case(c, Expected::get().host).outputs, loopback.outputs); }
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
            c.options.poison = true;
            const auto other = random_inputs(c.problem, 77);
            const std::vector inputs{Expected::get().host, host_inputs(other, c.problem.dtype)};
            const auto passes = make_passes(c);
            const auto team = gpu::make_thread_team(gpu::team_size(c.options));
            const auto runs = gpu::run(*team, *passes.forward, passes.backward.get(), inputs, c.options);
            BOOST_TEST_REQUIRE(runs.size() == 2u);
            const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
            check_against(c, runs[0].outputs, Expected::get().inputs, Expected::get().outputs(c.mask));
            check_against(c, runs[1].outputs, other, reference::blocked_attention(c.problem, mask, other));
        }
}

BOOST_DATA_TEST_CASE(a_silent_rank_ends_the_run_with_a_named_operation, data::make({"ring", "all-gather"}), schedule) {
    RingCase c{small_problem(), "full", "contiguous", schedule, 2};
    c.options.transport = TransportKind::copy;
    c.options.group.ring = 2;
    c.options.devices = {0, 0};
    c.options.timeout = std::chrono::seconds(2);
    const auto passes = make_passes(c);
    const auto team = gpu::make_thread_team(2);
    const auto message = error_of([&] {
        gpu::run(*team, *passes.forward, passes.backward.get(), std::span(&Expected::get().host, 1), c.options,
                 silent_rank_fabric(TransportKind::copy, 1));
    });
    BOOST_TEST(message.find("has not ended after 2 s without progress") != std::string::npos, message);
    BOOST_TEST(message.find("rank 0: operation") != std::string::npos, message);
    // The device is as good as before.
    check_small({small_problem(), "causal", "zigzag", schedule, 2});
}

BOOST_AUTO_TEST_CASE(the_first_tensor_that_is_not_finite_is_named) {
    auto inputs = Expected::get().host;
    constexpr std::uint16_t bf16_nan = 0x7fc0;
    inputs.v.values[inputs.v.row(0, 400)] = bf16_nan;  // rank 2 of 3 owns it
    RingCase c{small_problem(), "full", "contiguous", "ring", 3};
    c.options.check_finite = true;
    auto message = error_of([&] { run_case(c, inputs); });
    BOOST_TEST(message == "o is not finite on rank 2 at step 0 of the forward pass, after the attend of block 2");
    // Nobody sees it: nothing to report.
    c.mask = "full+valid:0-300";
    inputs = Expected::get().host;
    message = error_of([&] { run_case(c, inputs); });
    BOOST_TEST(message == "(no error)");
    // It shows in the backward pass alone.
    inputs.dout.values[inputs.dout.row(0, 1)] = bf16_nan;
    message = error_of([&] { run_case(c, inputs); });
    BOOST_TEST(message.find("d") == 0u, message);
    BOOST_TEST(message.find("is not finite on rank 0 at step 0 of the backward pass") != std::string::npos, message);
}

BOOST_DATA_TEST_CASE(timelines_keep_the_order_of_the_schedule, data::make(schedule_names), schedule) {
    RingCase c{small_problem(), "causal", "zigzag", schedule, 4};
    const auto passes = make_passes(c);
    const auto run = run_case(c, Expected::get().host);
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
    BOOST_TEST(std::ranges::max(run.forward.rank_seconds.front()) >=
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
