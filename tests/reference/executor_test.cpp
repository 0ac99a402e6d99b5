#include "reference/ranks/transports/transport_threads.hpp"
#include "tests/reference/cpu_gate.hpp"

#include "reference/error/deviations.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;
using layouts::Pass;

/// A file with a random permutation of 0..tokens-1, gone with the object.
class PermutationFile {
public:
    explicit PermutationFile(std::int64_t tokens) {
        std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
        std::iota(positions.begin(), positions.end(), 0);
        std::shuffle(positions.begin(), positions.end(), std::mt19937_64(7));
        static int count = 0;
        path_ = std::filesystem::temp_directory_path() /
                fmt::format("ringlab_permutation_{}_{}.txt", std::random_device{}(), count++);
        std::ofstream file(path_);
        for (const auto position : positions) file << position << '\n';
        require(static_cast<bool>(file.flush()), "cannot write {}", path_.string());
    }
    ~PermutationFile() { std::filesystem::remove(path_); }
    PermutationFile(const PermutationFile&) = delete;
    PermutationFile& operator=(const PermutationFile&) = delete;
    std::string spec() const { return "file:" + path_.string(); }

private:
    std::filesystem::path path_;
};

/// Masks for `tokens`: documents and segments cut where nothing divides.
std::vector<std::string> masks(std::int64_t tokens) {
    const auto lengths = fmt::format("1,13,7,{}", tokens - 21);
    return {
        "causal", "full", "window:9,0", "window:6,4", "window:8,0+sink:3", "causal+documents:" + lengths,
        "documents:" + lengths, "causal+documents:" + lengths + "+window:5,0", fmt::format("prefix:{}", tokens / 3 + 1),
        "block-causal:" + lengths, "shared-question:" + lengths, "prefix-documents:" + lengths,
        // An image that is not there, words and actions with padding: in a contiguous layout ranks of padding alone.
        fmt::format("padded-segments:9/8,16/0,12/5,{}/3", tokens - 37),
        // Padding at the end so long that in a contiguous layout whole ranks are padding.
        fmt::format("causal+valid:0-{}", tokens / 2 - 1),
        // Padding at both ends and in the middle.
        fmt::format("valid:2-19,23-{}", tokens - 3)};
}

/// Dense results, once for all layouts and schedules.
class Expected {
public:
    const Inputs& inputs(const layouts::Problem& problem) {
        auto found = inputs_.find(problem.tokens);
        if (found == inputs_.end()) found = inputs_.emplace(problem.tokens, random_inputs(problem, 1)).first;
        return found->second;
    }
    const Outputs& outputs(const GateCase& c) {
        const auto key = std::pair(c.mask, c.problem.tokens);
        auto found = outputs_.find(key);
        if (found == outputs_.end()) found = outputs_.emplace(key, expected_of(c, inputs(c.problem))).first;
        return found->second;
    }

private:
    std::map<std::int64_t, Inputs> inputs_;
    std::map<std::pair<std::string, std::int64_t>, Outputs> outputs_;
};

struct Algorithm {
    std::string name;
    Accumulation accumulation;
};
std::ostream& operator<<(std::ostream& out, const Algorithm& algorithm) {
    return out << algorithm.name << (algorithm.accumulation == Accumulation::carry ? "/carry" : "/partials");
}

const std::vector<Algorithm> algorithms{{"ring", Accumulation::carry},
                                        {"ring", Accumulation::partials},
                                        {"all-gather", Accumulation::carry},
                                        {"all-gather:2", Accumulation::partials},
                                        {"pull", Accumulation::carry},
                                        {"joined-ring:1", Accumulation::carry},
                                        {"joined-ring", Accumulation::partials},
                                        {"bidirectional", Accumulation::carry},
                                        {"bidirectional", Accumulation::partials},
                                        {"double-ring:2", Accumulation::carry},
                                        {"double-ring:4", Accumulation::partials},
                                        {"merge", Accumulation::carry},
                                        {"merge", Accumulation::partials},
                                        {"merge:tree", Accumulation::carry},
                                        {"merge:tree", Accumulation::partials},
                                        {"pass-q", Accumulation::carry},
                                        {"pass-q", Accumulation::partials},
                                        {"seen:1", Accumulation::carry},
                                        {"seen:3", Accumulation::partials},
                                        {"ulysses", Accumulation::carry},
                                        {"ulysses:2", Accumulation::carry},
                                        {"ulysses:2", Accumulation::partials}};

/// Whether an algorithm takes this many ranks, with 4 query heads.
bool suits(const Algorithm& algorithm, int ranks) {
    const auto colon = algorithm.name.find(':');
    const bool grouped = algorithm.name.starts_with("double-ring:") || algorithm.name == "ulysses:2";
    if (grouped) return ranks % std::stoi(algorithm.name.substr(colon + 1)) == 0;
    return algorithm.name != "ulysses" || 4 % ranks == 0;
}

void check_layout(const std::string& layout, const Algorithm& algorithm, int ranks, std::int64_t tokens) {
    static Expected expected;
    for (const auto& mask : masks(tokens)) {
        GateCase c{small_problem(tokens), mask, layout, algorithm.name, ranks, algorithm.accumulation};
        const auto& inputs = expected.inputs(c.problem);
        const auto found =
            complaint_of_run([&] { return run_case(c, inputs, small_tiles()).outputs; }, expected.outputs(c));
        BOOST_TEST(found == "", layout << " " << mask << " " << algorithm << " P=" << ranks << " tokens=" << tokens
                                       << ": " << found);
    }
}

/// The least multiple of `granularity` that is at least `tokens`.
std::int64_t round_up(std::int64_t tokens, std::int64_t granularity) {
    return (tokens + granularity - 1) / granularity * granularity;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_backend)

BOOST_DATA_TEST_CASE(every_layout_mask_and_schedule_equals_dense_attention,
                     data::make(algorithms) * data::make({1, 2, 3, 4, 8}), algorithm, ranks) {
    if (!suits(algorithm, ranks)) return;
    for (const std::string layout : {"contiguous", "zigzag", "striped", "striped:3", "balanced:3", "planned"})
        check_layout(layout, algorithm, ranks, round_up(45, layouts::layout_granularity(layout, ranks)));
    const PermutationFile permutation(round_up(45, ranks));
    check_layout(permutation.spec(), algorithm, ranks, round_up(45, ranks));
}

/// A suffix, the newest tokens of a few sequences, and a row that sees nothing where half is padding.
const std::vector<std::vector<layouts::Interval>> few_queries{
    {{37, 45}}, {{12, 13}, {20, 22}, {44, 45}}, {{1, 2}, {30, 31}}};

BOOST_DATA_TEST_CASE(rows_fewer_than_keys_equal_dense_attention, data::make(algorithms) * data::make({1, 2, 3, 4}),
                     algorithm, ranks) {
    if (!suits(algorithm, ranks)) return;
    for (const std::string layout : {"contiguous", "zigzag", "striped:3", "file"})
        for (const auto& queries : few_queries) {
            const auto tokens = round_up(45, layout == "file" ? ranks : layouts::layout_granularity(layout, ranks));
            const PermutationFile permutation(tokens);
            auto problem = small_problem(tokens);
            problem.queries = queries;
            const auto inputs = random_inputs(problem, 2);
            for (const auto& mask : masks(tokens)) {
                const GateCase c{problem,        mask,  layout == "file" ? permutation.spec() : layout,
                                 algorithm.name, ranks, algorithm.accumulation};
                const auto found = complaint_of_run([&] { return run_case(c, inputs, small_tiles()).outputs; },
                                                    expected_of(c, inputs));
                BOOST_TEST(found == "", c.layout << " " << mask << " " << algorithm << " P=" << ranks << " rows "
                                                 << problem.rows() << ": " << found);
            }
        }
}

BOOST_DATA_TEST_CASE(other_head_counts_scales_soft_caps_and_batches_equal_dense_attention, data::make(algorithms),
                     algorithm) {
    const auto check = [&](layouts::Problem problem) {
        const int ranks = suits(algorithm, 3) ? 3 : suits(algorithm, 2) ? 2 : 4;
        problem.tokens = ranks == 3 ? 60 : 64;
        GateCase c{problem,  problem.tokens == 60 ? "causal+documents:11,20,29" : "causal+documents:11,20,33",
                   "zigzag", algorithm.name,
                   ranks,    algorithm.accumulation};
        const auto inputs = random_inputs(problem, 2);
        BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected_of(c, inputs)) == "");
    };
    auto problem = small_problem(60);
    problem.batch = 2;
    problem.scale = 0.21;
    check(problem);
    problem.soft_cap = 1.5;
    check(problem);
    problem.kv_heads = problem.query_heads;
    problem.value_dim = 11;
    check(problem);
    if (algorithm.name != "all-gather:2") {
        problem.kv_heads = 1;
        check(problem);
    }
}

BOOST_AUTO_TEST_CASE(replicas_have_rings_of_their_own) {
    using Placement = layouts::RingGroup::Placement;
    for (const auto placement : {Placement::consecutive, Placement::strided})
        for (const auto& algorithm : algorithms) {
            const int ranks = suits(algorithm, 3) ? 3 : suits(algorithm, 2) ? 2 : 4;
            const GateCase c{small_problem(48), "causal", "zigzag", algorithm.name, ranks, algorithm.accumulation};
            ThreadWorld world({ranks, 2, placement});
            const auto forward = schedule_of(c, Pass::forward), backward = schedule_of(c, Pass::backward);
            const std::vector<Inputs> inputs{random_inputs(c.problem, 3), random_inputs(c.problem, 4)};
            const auto runs = run(world, *forward, backward.get(), inputs, small_tiles());
            BOOST_TEST_REQUIRE(runs.size() == 2u);
            for (std::size_t replica = 0; replica < 2; ++replica)
                BOOST_TEST(complaint(runs[replica].outputs, expected_of(c, inputs[replica])) == "");
        }
}

BOOST_DATA_TEST_CASE(a_run_measures_every_operation_and_allocates_what_the_schedule_asks_for, data::make(algorithms),
                     algorithm) {
    const GateCase c{small_problem(48), "causal", "zigzag", algorithm.name, 4, algorithm.accumulation};
    const auto result = run_case(c, random_inputs(c.problem, 5), small_tiles());
    std::int64_t most_scratch = 0;
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto schedule = schedule_of(c, pass);
        const auto& timeline = pass == Pass::forward ? result.forward : result.backward;
        most_scratch = std::max(most_scratch, schedule->scratch_bytes());
        auto span = timeline.spans.begin();
        for (int rank = 0; rank < 4; ++rank) {
            std::map<layouts::Lane, layouts::Picoseconds> lane_free;
            std::vector<layouts::Picoseconds> ends;
            auto stream = schedule->ops(rank);
            while (const auto* op = stream.next()) {
                BOOST_TEST_REQUIRE((span != timeline.spans.end()));
                BOOST_TEST(span->rank == rank);
                BOOST_TEST(span->op == static_cast<layouts::OpIndex>(ends.size()));
                BOOST_TEST((span->kind == op->kind && span->lane == op->lane() && span->peer == op->peer));
                if (op->kind == layouts::OpKind::attend)
                    BOOST_TEST(span->pair_count == layouts::pairs_of(*op, static_cast<int>(c.problem.query_heads)));
                BOOST_TEST(span->bytes == op->bytes);
                BOOST_TEST(span->posted >= lane_free[op->lane()]);
                for (const auto before : op->after())
                    BOOST_TEST(span->posted >= ends[static_cast<std::size_t>(before)]);
                BOOST_TEST(span->begin >= span->posted);
                BOOST_TEST(span->end >= span->begin);
                BOOST_TEST(span->busy >= 0);
                lane_free[op->lane()] = span->end;
                ends.push_back(span->end);
                ++span;
            }
        }
        BOOST_TEST((span == timeline.spans.end()));
    }
    for (const auto bytes : result.scratch_bytes) BOOST_TEST(bytes == most_scratch);
}

// A thread's CPU clock may stand still for longer than a small attend takes: some systems count it in ticks of 10 ms,
// and on a virtual machine time that its host took away is subtracted from what comes next. So not every attend need
// show.
BOOST_AUTO_TEST_CASE(attends_of_every_rank_show_in_processor_time) {
    const GateCase c{small_problem(1536), "causal", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 5);
    std::vector<double> forward(4), backward(4);
    const auto all_show = [](const std::vector<double>& seconds) { return std::ranges::min(seconds) > 0; };
    const auto begin = Clock::now();
    while (!(all_show(forward) && all_show(backward)) && Clock::now() - begin < std::chrono::seconds(30)) {
        const auto result = run_case(c, inputs, small_tiles());
        for (std::size_t rank = 0; rank < 4; ++rank) {
            forward[rank] += attend_seconds(result.forward)[rank];
            backward[rank] += attend_seconds(result.backward)[rank];
        }
    }
    BOOST_TEST(all_show(forward));
    BOOST_TEST(all_show(backward));
}

BOOST_AUTO_TEST_CASE(a_forward_pass_alone_gives_no_gradients) {
    const GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    ThreadWorld world({4, 1, {}});
    const auto inputs = random_inputs(c.problem, 5);
    const auto result = run(world, *schedule_of(c, Pass::forward), nullptr, inputs, small_tiles());
    const auto expected = expected_of(c, inputs);
    BOOST_TEST(deviation("o", result.outputs.o, expected.o).max_to_largest < 1e-13);
    BOOST_TEST(result.outputs.dq.size() == 0u);
    BOOST_TEST(result.backward.spans.empty());
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_named) {
    const GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 5);
    const auto forward = schedule_of(c, Pass::forward), backward = schedule_of(c, Pass::backward);
    const auto message = [&](auto attempt) -> std::string {
        try {
            attempt();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    ThreadWorld four({4, 1, {}}), three({3, 1, {}});
    BOOST_TEST(message([&] { run(three, *forward, nullptr, inputs, {}); }) ==
               "the schedule is for 4 ranks, but the rings have 3");
    BOOST_TEST(message([&] { run(four, *backward, nullptr, inputs, {}); }) ==
               "the forward schedule describes a backward pass");
    auto other = c;
    other.layout = "striped";
    const auto striped = schedule_of(other, Pass::backward);
    BOOST_TEST(
        message([&] { run(four, *forward, striped.get(), inputs, {}); }) ==
        "the forward schedule has layout zigzag over 4 ranks, the backward schedule striped over 4; they must be "
        "the same");
    other = c;
    other.gradient_dtype = DType::fp32;
    const auto narrow = schedule_of(other, Pass::backward);
    BOOST_TEST(message([&] { run(four, *forward, narrow.get(), inputs, {}); }) ==
               "with an fp64 problem dK and dV must travel as fp64, not as fp32");
}

BOOST_AUTO_TEST_CASE(single_precision_differs_by_single_precision_roundoff) {
    // A hundred terms at 6e-8 each in quadrature, amplified by cancellation as in the fp64 gate: some 1e-6.
    GateCase c{small_problem(96), "causal", "zigzag", "ring", 8};
    c.problem.dtype = DType::fp32;
    c.gradient_dtype = DType::fp32;
    const auto inputs = random_inputs(c.problem, 6);
    const auto d = deviations(run_case(c, inputs, small_tiles()).outputs, expected_of(c, inputs));
    for (const auto& each : {d.o, d.lse, d.dq, d.dk, d.dv}) {
        BOOST_TEST(each.relative_rms < 2e-6);
        BOOST_TEST(each.relative_rms > 1e-9);  // it is not double precision
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
