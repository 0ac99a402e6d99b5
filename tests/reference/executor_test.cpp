#include "reference/ranks/transport.hpp"
#include "tests/error_of.hpp"
#include "tests/layouts/mask_oracles.hpp"
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

namespace ringlab::layouts {

inline std::ostream& operator<<(std::ostream& out, Accumulation accumulation) {
    return out << (accumulation == Accumulation::carry ? "carry" : "partials");
}

}  // namespace ringlab::layouts

namespace ringlab::reference::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;
using layouts::Pass;
using ringlab::tests::Combinations;
using ringlab::tests::error_of;
using ringlab::tests::layout_examples;
using ringlab::tests::Names;
using ringlab::tests::padded_tokens;
using ringlab::tests::runs_in_this_build;
using ringlab::tests::schedules_for;

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

/// Masks for `tokens`: an example of each, and joins that are cut where nothing divides.
std::vector<std::string> masks(std::int64_t tokens) {
    const auto lengths = fmt::format("1,13,7,{}", tokens - 21);
    auto all = mask_oracles::mask_examples(tokens);
    all.insert(all.end(),
               {"window:8,0+sink:3", "causal+documents:" + lengths, "causal+documents:" + lengths + "+window:5,0",
                // An image that is not there, words and actions with padding: in a contiguous layout ranks of padding
                // alone.
                fmt::format("padded-segments:9/8,16/0,12/5,{}/3", tokens - 37),
                // Padding at the end so long that in a contiguous layout whole ranks are padding.
                fmt::format("causal+valid:0-{}", tokens / 2 - 1),
                // Padding at both ends and in the middle.
                fmt::format("valid:2-19,23-{}", tokens - 3)});
    return all;
}

const Names schedule_names([] { return schedules_for(small_problem(8)); });
const Names schedule_names_of_4_ranks([] { return schedules_for(small_problem(8), {4}); });
constexpr std::array accumulations{Accumulation::carry, Accumulation::partials};

bool suits(const std::string& schedule_name, int ranks) {
    return ringlab::tests::suits(small_problem(8), schedule_name, ranks);
}

/// 3 ranks, which divide little, or the least number above 1 that suits.
int awkward_ranks(const std::string& schedule_name) {
    for (const int ranks : {3, 2, 4, 8})
        if (suits(schedule_name, ranks)) return ranks;
    return 1;
}

/// Over all masks; accumulations take turns, from `number` on.
void check_layout(const std::string& layout, const std::string& schedule_name, int ranks, std::size_t number,
                  std::int64_t tokens) {
    for (const auto& mask : masks(tokens)) {
        const auto accumulation = accumulations[number++ % 2];
        GateCase c{small_problem(tokens), mask, layout, schedule_name, ranks, accumulation};
        if (!runs_in_this_build(8)) continue;
        const auto& expected = expected_once(c);
        const auto found =
            complaint_of_run([&] { return run_case(c, expected.inputs, small_tiles()).outputs; }, expected.outputs);
        BOOST_TEST(found == "", layout << " " << mask << " " << schedule_name << " " << accumulation << " P=" << ranks
                                       << " tokens=" << tokens << ": " << found);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_backend)

BOOST_DATA_TEST_CASE(every_layout_mask_and_schedule_equals_dense_attention, data::make(schedule_names), schedule_name) {
    Combinations combinations;
    std::size_t number = 0;  // so that a mask meets the other accumulation with the next layout
    for (const int ranks : {1, 2, 3, 4, 8}) {
        if (!combinations.take(suits(schedule_name, ranks))) continue;
        for (const auto& layout : layout_examples())
            check_layout(layout, schedule_name, ranks, number++, padded_tokens(layout, 45, ranks));
        const auto tokens = padded_tokens("contiguous", 45, ranks);
        const PermutationFile permutation(tokens);
        check_layout(permutation.spec(), schedule_name, ranks, number++, tokens);
    }
}

/// A suffix, the newest tokens of a few sequences, and a row that sees nothing where half is padding.
struct Queries {
    std::vector<layouts::Interval> rows;
    friend std::ostream& operator<<(std::ostream& out, const Queries& queries) {
        for (const auto& rows : queries.rows) out << rows.begin << "-" << rows.end << " ";
        return out;
    }
};
const std::vector<Queries> few_queries{{{{37, 45}}}, {{{12, 13}, {20, 22}, {44, 45}}}, {{{1, 2}, {30, 31}}}};

// Each layout has every third mask, another third with the next layout. Accumulations take turns.
BOOST_DATA_TEST_CASE(rows_fewer_than_keys_equal_dense_attention, data::make(schedule_names) * data::make(few_queries),
                     schedule_name, queries) {
    const auto layouts = layout_examples();
    std::size_t number = 0;
    Combinations combinations;
    for (const int ranks : {1, 2, 3, 4}) {
        if (!combinations.take(suits(schedule_name, ranks))) continue;
        const PermutationFile permutation(padded_tokens("contiguous", 45, ranks));
        for (std::size_t i = 0; i <= layouts.size(); ++i) {
            const bool file = i == layouts.size();
            auto problem = small_problem(padded_tokens(file ? "contiguous" : layouts[i], 45, ranks));
            problem.queries = queries.rows;
            const auto all_masks = masks(problem.tokens);
            for (std::size_t m = (i + static_cast<std::size_t>(ranks)) % 3; m < all_masks.size(); m += 3) {
                const auto& mask = all_masks[m];
                const GateCase c{problem,       mask,  file ? permutation.spec() : layouts[i],
                                 schedule_name, ranks, accumulations[number++ % 2]};
                if (!runs_in_this_build(8)) continue;
                const auto& expected = expected_once(c);
                const auto found = complaint_of_run([&] { return run_case(c, expected.inputs, small_tiles()).outputs; },
                                                    expected.outputs);
                BOOST_TEST(found == "", c.layout << " " << mask << " P=" << ranks << ": " << found);
            }
        }
    }
}

BOOST_DATA_TEST_CASE(other_head_counts_scales_soft_caps_and_batches_equal_dense_attention,
                     data::make(schedule_names) * data::make(accumulations), schedule_name, accumulation) {
    const auto check = [&](layouts::Problem problem) {
        const int ranks = awkward_ranks(schedule_name);
        problem.tokens = padded_tokens("zigzag", 60, ranks);
        const auto mask = fmt::format("causal+documents:11,20,{}", problem.tokens - 31);
        const GateCase c{problem, mask, "zigzag", schedule_name, ranks, accumulation};
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
    problem.kv_heads = 1;
    if (ringlab::tests::suits(problem, schedule_name, awkward_ranks(schedule_name))) check(problem);
}

BOOST_AUTO_TEST_CASE(replicas_have_rings_of_their_own) {
    using Placement = layouts::RingGroup::Placement;
    for (const auto placement : {Placement::consecutive, Placement::strided})
        for (const auto& schedule_name : schedule_names) {
            const int ranks = awkward_ranks(schedule_name);
            GateCase c{small_problem(48), "causal", "zigzag",
                       schedule_name,     ranks,    accumulations[placement == Placement::strided]};
            c.problem.rotary = {.base = 20};  // by global positions, not by those of the ring in the world
            ThreadWorld world({ranks, 2, placement});
            const auto forward = schedule_of(c, Pass::forward), backward = schedule_of(c, Pass::backward);
            const std::vector<Inputs> inputs{random_inputs(c.problem, 3), random_inputs(c.problem, 4)};
            const auto runs = run(world, *forward, backward.get(), inputs, small_tiles());
            BOOST_TEST_REQUIRE(runs.size() == 2u);
            for (std::size_t replica = 0; replica < 2; ++replica)
                BOOST_TEST(complaint(runs[replica].outputs, expected_of(c, inputs[replica])) == "");
        }
}

BOOST_DATA_TEST_CASE(a_run_measures_every_operation_and_allocates_what_the_schedule_asks_for,
                     data::make(schedule_names_of_4_ranks) * data::make(accumulations), schedule_name, accumulation) {
    const GateCase c{small_problem(48), "causal", "zigzag", schedule_name, 4, accumulation};
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
    ThreadWorld four({4, 1, {}}), three({3, 1, {}});
    BOOST_TEST(error_of([&] { run(three, *forward, nullptr, inputs, {}); }) ==
               "the schedule is for 4 ranks, but the rings have 3");
    BOOST_TEST(error_of([&] { run(four, *backward, nullptr, inputs, {}); }) ==
               "the forward schedule describes a backward pass");
    auto other = c;
    other.layout = "striped";
    const auto striped = schedule_of(other, Pass::backward);
    BOOST_TEST(
        error_of([&] { run(four, *forward, striped.get(), inputs, {}); }) ==
        "the forward schedule has layout zigzag over 4 ranks, the backward schedule striped over 4; they must be "
        "the same");
    other = c;
    other.gradient_dtype = DType::fp32;
    const auto narrow = schedule_of(other, Pass::backward);
    BOOST_TEST(error_of([&] { run(four, *forward, narrow.get(), inputs, {}); }) ==
               "with an fp64 problem dK and dV must travel as fp64, not as fp32");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
