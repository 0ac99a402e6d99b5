#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/describe.hpp"
#include "layouts/basics/require.hpp"
#include "tests/experiments/record_support.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::experiments {
namespace {

using Kind = ThroughputCase::Kind;

Config four_gpus() {
    Config config;
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.problem.arithmetic = "bf16";
    config.sweep.tokens_per_rank = {2048, 8192};
    config.sweep.layouts = {"zigzag", "striped"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {4};
    config.timing.transports = {"copy", "nccl"};
    config.timing.kernels = {"auto"};
    config.timing.beside = {"work", "ceilings"};
    return config;
}

/// One size of the kernels alone.
Config one_gpu() {
    auto config = four_gpus();
    config.sweep.ranks = {1};
    config.sweep.tokens_per_rank = {2048};
    return config;
}

std::vector<ThroughputCase> cases_of(const Config& config) {
    return throughput_cases(config.problem, config.sweep, config.timing);
}

/// A new record, and what was timed of cases in it.
struct TimedCases {
    test::Folder folder;
    Record record{folder / "r.h5", RecordMode::create, {"throughput", "d", "c"}, {}};

    void add(const ThroughputCase& one, const RingRun& samples) {
        RunWriter run;
        describe_ring(run, one, make_plan(one), samples);
        record.commit(one.name(), run);
    }
    void add(const ThroughputCase& one, const DeviceTimes& samples) {
        RunWriter run;
        describe_device(run, one, make_plan(one), samples);
        record.commit(one.name(), run);
    }
    void add_ceilings(const DeviceTimes& times) {
        RunWriter run;
        describe_ceilings(run, times, matrix_product_flop);
        record.commit("ceilings", run);
    }
};

/// `count` repeats of `ranks` ranks, of which the last takes `seconds` and the others half of it.
PassRun even_samples(std::size_t count, std::size_t ranks, double seconds) {
    PassRun samples;
    for (std::size_t repeat = 0; repeat < count; ++repeat) {
        samples.seconds.push_back(std::vector<double>(ranks, seconds / 2));
        samples.seconds.back().back() = seconds;
        samples.issue.push_back(std::vector<double>(ranks, 1e-5));
    }
    samples.timelines = {{static_cast<int>(ranks), {}}};
    return samples;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(throughput)

BOOST_AUTO_TEST_CASE(a_shape_says_heads_dims_and_arithmetic) {
    const auto text = [](const std::string& shape) {
        return shape_text(problem_from(with_shape(shape, four_gpus().problem)));
    };
    BOOST_TEST(text("32:8/128") == "32:8/128/bf16");
    BOOST_TEST(text("16/64/fp16") == "16:16/64/fp16");
    BOOST_TEST(text("128:1/192-128") == "128:1/192-128/bf16");
    for (const auto* wrong : {"", "32:8", "32:8/", "32:8/0", "32:8/a", "32:8/1-2-3", "32:8/128/bf16/x", "x/128"})
        BOOST_CHECK_THROW(with_shape(wrong, four_gpus().problem), Error);
}

// n tokens give n(n+1)/2 visible pairs under a causal mask and n^2 under a full one.
BOOST_AUTO_TEST_CASE(the_same_work_on_one_gpu_is_a_sequence_shorter_by_the_root_of_the_ranks) {
    BOOST_TEST(same_work_tokens("causal", 32768, 4) == 16384);
    for (const int ranks : {2, 3, 8})
        for (const std::int64_t tokens : {16384, 131072}) {
            const auto n = static_cast<double>(same_work_tokens("full", tokens, ranks));
            const auto all = static_cast<double>(tokens);
            // Rounded to 128 tokens: off by at most 64, which the square doubles.
            BOOST_TEST(std::abs(n * n * ranks / (all * all) - 1) < 2.1 * 64 / n);
        }
    BOOST_TEST(same_work_tokens("window:4096,0", 32768, 4) == 32768);
}

BOOST_AUTO_TEST_CASE(rings_follow_the_same_work_on_one_gpu_size_by_size) {
    const auto cases = cases_of(four_gpus());
    std::vector<std::string> kinds;
    for (const auto& one : cases)
        kinds.push_back(one.kind == Kind::ceilings    ? "ceilings"
                        : one.kind == Kind::same_work ? "same"
                        : one.kind == Kind::ring      ? one.transport + " " + one.setup.layout
                                                      : "device");
    const std::vector<std::string> expected{"ceilings",     "same",         "copy zigzag", "copy striped",
                                            "nccl zigzag",  "nccl striped", "same",        "copy zigzag",
                                            "copy striped", "nccl zigzag",  "nccl striped"};
    BOOST_TEST(kinds == expected, boost::test_tools::per_element());
    BOOST_TEST(cases[1].setup.tokens == 4096);
    BOOST_TEST(cases[1].group().replicas == 4);
    BOOST_TEST(cases[2].setup.tokens == 8192);
    BOOST_TEST(cases[2].group().ring == 4);
    BOOST_TEST(cases[2].name() == "causal zigzag P=4 S=8192 ring 32:8_128_bf16 copy auto");
}

BOOST_AUTO_TEST_CASE(a_ring_of_one_rank_is_the_kernels_alone_once_for_each_shape_and_family) {
    auto config = four_gpus();
    config.sweep.ranks = {1};
    config.timing.shapes = {"32:8/64", "32:8/256/fp16"};
    config.timing.kernels = {"portable", "hopper"};
    config.timing.beside = {"none"};
    const auto cases = cases_of(config);
    BOOST_TEST(cases.size() == 8u);
    for (const auto& one : cases) BOOST_TEST((one.kind == Kind::device));
    config.timing.shapes.push_back("32:8/64/bf16");
    BOOST_CHECK_THROW(cases_of(config), Error);  // the first once more
}

BOOST_AUTO_TEST_CASE(the_typical_sample_is_the_median_beside_the_distance_of_the_quartiles) {
    const auto one = typical(std::vector<double>{5, 1, 2, 4, 3});
    BOOST_TEST(one.median == 3);
    BOOST_TEST(one.spread == (4.0 - 2.0) / 3);
    BOOST_CHECK_THROW(typical(std::vector<double>{}), Error);
    // Medians 2, 4 and 9: a round that met an interruption does not show.
    BOOST_TEST(typical_of_rounds({{1, 2, 3}, {4, 4, 100}, {9, 9, 9}}).median == 4);
}

// Visible pairs of n causal tokens: n(n+1)/2. Forward 2(D+V) FLOP each and head, backward 2(3D+2V).
BOOST_AUTO_TEST_CASE(a_rate_counts_visible_pairs_per_gpu_over_the_slowest_rank) {
    TimedCases timed;
    const auto cases = cases_of(four_gpus());
    const auto& ring = cases[2];
    RingRun samples;
    samples.kernels = "hopper";
    samples.forward = even_samples(3, 4, 1e-3);
    samples.backward = even_samples(5, 4, 4e-3);
    constexpr std::int64_t mebibyte = 1 << 20;
    samples.memory.assign(4, {10 * mebibyte, 300 * mebibyte, 20 * mebibyte, 5 * mebibyte});
    samples.devices.assign(4, "a GPU");
    samples.clocks = {{.device = 1, .moment = gpu::ClockSample::Moment::during, .sm_mhz = 1500, .watts = 650}};
    timed.add(ring, samples);
    const auto& record = timed.record;

    const double n = 8192, pairs = n * (n + 1) / 2 * 32 / 4;
    const auto number = [&](const char* column) { return record.number(ring.name(), column); };
    BOOST_TEST(std::abs(number("rate_forward") / (pairs * 4 * 128 / 1e-3) - 1) < 1e-12);
    BOOST_TEST(std::abs(number("rate_backward") / (pairs * 10 * 128 / 4e-3) - 1) < 1e-12);
    BOOST_TEST(std::abs(number("rate_both") / (pairs * 14 * 128 / 5e-3) - 1) < 1e-12);
    BOOST_TEST(number("rate_both_spread") == 0);
    // Of 325 MiB, the gradients in bf16 take 2048 tokens x (32 + 2 x 8) heads x 128 x 2 bytes = 24 MiB.
    BOOST_TEST(number("extra_bytes") == 301.0 * mebibyte);
    BOOST_TEST(number("issue_seconds_forward") == 1e-5);
    BOOST_TEST(record.numbers(ring.name(), "measured/forward/seconds").size() == 12u);
    BOOST_TEST(record.numbers(ring.name(), "measured/backward/seconds").size() == 20u);
    BOOST_TEST(record.numbers(ring.name(), "measured/clocks/sm_clock").front() == 1.5e9);
    BOOST_TEST(record.text(ring.name(), "kernels_forward") == "hopper");

    const auto tables = throughput_tables(record, cases);
    BOOST_TEST(tables.find("zigzag") != std::string::npos, tables);
    BOOST_TEST(tables.find("301") != std::string::npos, tables);
}

BOOST_AUTO_TEST_CASE(the_same_work_is_of_one_rank_and_timed_on_every_gpu) {
    TimedCases timed;
    const auto one = cases_of(four_gpus())[1];
    RingRun samples;
    samples.forward = even_samples(3, 4, 1e-3);
    samples.backward = even_samples(3, 4, 2e-3);
    samples.memory.assign(4, {});
    timed.add(one, samples);
    const auto& record = timed.record;
    const double n = 4096, pairs = n * (n + 1) / 2 * 32;
    BOOST_TEST(std::abs(record.number(one.name(), "rate_forward") / (pairs * 4 * 128 / 1e-3) - 1) < 1e-12);
    BOOST_TEST(record.numbers(one.name(), "measured/forward/seconds").size() == 12u);
}

BOOST_AUTO_TEST_CASE(the_median_of_rounds_counts_of_calls_back_to_back) {
    TimedCases timed;
    const auto cases = cases_of(one_gpu());
    const auto& device = cases[1];
    DeviceTimes samples;
    samples.calls = {{"forward", {{4, 4}, {8, 8}, {16, 16}}}, {"backward", {{6, 6}, {12, 12}, {24, 24}}}};
    timed.add(device, samples);
    const auto& record = timed.record;
    BOOST_TEST(record.number(device.name(), "rate_forward_seconds") == 8);
    BOOST_TEST(record.number(device.name(), "rate_backward_seconds") == 12);
    const auto tables = throughput_tables(record, cases);
    BOOST_TEST(tables.find("sustained") != std::string::npos, tables);
    BOOST_TEST(tables.find("burst") == std::string::npos, tables);  // there are none
}

// Of ten passes the last five count: 2, 4, 6, 8 and 10, median 6, quartiles 4 and 8.
BOOST_AUTO_TEST_CASE(of_a_burst_the_last_half_counts) {
    const auto one = typical_of_burst({100, 100, 100, 100, 100, 10, 2, 8, 4, 6});
    BOOST_TEST(one.median == 6);
    BOOST_TEST(one.spread == (8.0 - 4.0) / 6);
    BOOST_CHECK_THROW(typical_of_burst({1}), Error);
}

BOOST_AUTO_TEST_CASE(bursts_have_columns_of_their_own) {
    TimedCases timed;
    const auto cases = cases_of(one_gpu());
    const auto& device = cases[1];
    DeviceTimes samples;
    samples.calls = {{"forward", {{2e-3, 2e-3}}}, {"backward", {{4e-3, 4e-3}}}};
    samples.bursts = {{"forward", {{9e-3, 9e-3, 1e-3, 1e-3}}}};
    timed.add(device, samples);
    const auto& record = timed.record;
    const auto number = [&](const char* column) { return record.number(device.name(), column); };
    const double n = 2048, flop = n * (n + 1) / 2 * 32 * 4 * 128;
    BOOST_TEST(std::abs(number("rate_forward") / (flop / 2e-3) - 1) < 1e-12);
    BOOST_TEST(std::abs(number("burst_rate_forward") / (flop / 1e-3) - 1) < 1e-12);
    BOOST_TEST(!record.has(device.name(), "runs/burst_rate_backward"));
    BOOST_TEST(record.numbers(device.name(), "bursts/forward/seconds").size() == 4u);  // those that do not count too
    const auto tables = throughput_tables(record, cases);
    BOOST_TEST(tables.find("Single passes on one GPU (burst)") != std::string::npos, tables);
}

BOOST_AUTO_TEST_CASE(rings_are_refused_where_bursts_alone_are_asked_for) {
    auto config = four_gpus();
    config.timing.protocols = {"burst"};
    BOOST_CHECK_THROW(cases_of(config), Error);
    config.sweep.ranks = {1};
    BOOST_TEST(cases_of(config).size() == 3u);  // ceilings, and two sizes
    config.sweep.ranks = {4};
    config.timing.protocols = {"sustained", "burst"};
    BOOST_CHECK_NO_THROW(cases_of(config));
}

BOOST_AUTO_TEST_CASE(rings_and_kernels_alone_share_a_record) {
    TimedCases timed;
    auto config = one_gpu();
    config.sweep.ranks = {1, 4};
    DeviceTimes calls;
    calls.calls = {{"forward", {{1, 2, 3}}}, {"backward", {{4}}}};
    RingRun passes;
    passes.forward = even_samples(3, 4, 1e-3);
    passes.backward = even_samples(5, 4, 4e-3);
    passes.memory.assign(4, {});
    const auto cases = cases_of(config);
    for (const auto& setup : cases) {
        if (setup.kind == Kind::ceilings) timed.add_ceilings({});
        if (setup.kind == Kind::device) timed.add(setup, calls);
        if (setup.kind == Kind::ring) timed.add(setup, passes);
    }
    const auto size = [&](const ThroughputCase& setup, const char* dataset) {
        return timed.record.has(setup.name(), dataset) ? timed.record.numbers(setup.name(), dataset).size() : 0;
    };
    for (const auto& setup : cases) {
        BOOST_TEST(size(setup, "calls/forward/seconds") == (setup.kind == Kind::device ? 3u : 0u), setup.name());
        BOOST_TEST(size(setup, "measured/backward/seconds") == (setup.kind == Kind::ring ? 20u : 0u), setup.name());
    }
}

BOOST_AUTO_TEST_CASE(what_could_not_be_timed_is_named_with_its_reason) {
    TimedCases timed;
    const auto cases = cases_of(one_gpu());
    DeviceTimes none;
    none.absent = {{"matrix_product", "libcublas.so is not there"}};
    timed.add_ceilings(none);
    const auto tables = throughput_tables(timed.record, cases);
    BOOST_TEST(tables.find("libcublas.so is not there") != std::string::npos, tables);
}

BOOST_AUTO_TEST_CASE(links_give_bandwidth_by_message_size) {
    TimedCases timed;
    DeviceTimes samples;
    samples.links = {{"copy", 1 << 20, {2e-6, 1e-6, 4e-6}}, {"copy", 1 << 22, {4e-6, 4e-6, 4e-6}}};
    timed.add_ceilings(samples);
    const auto bandwidth = timed.record.numbers("ceilings", "link/copy/bandwidth");
    BOOST_TEST(bandwidth[0] == (1 << 20) / 2e-6);
    BOOST_TEST(bandwidth[1] == (1 << 22) / 4e-6);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
