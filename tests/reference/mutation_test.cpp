// Mistakes that shipped in other systems: each is made on purpose, and the gate that passes every right run must
// complain. The numbers in the names tell them apart: 1 per-block statistics, 2 stale K/V, 3 peers of a sub-ring, 4
// rotary positions, 5 empty rows, 6 local mask coordinates, 7 cut documents, 8 averaged and 12 doubled gradients, 10
// expanded kv heads, 11 dropout by rank or step.
#include "tests/reference/mutation.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/error/deviations.hpp"
#include "reference/error/error_model.hpp"
#include "reference/ranks/faulty_world.hpp"
#include "reference/ranks/transports/transport_threads.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::reference::tests {
namespace {

using layouts::Accumulation;
using layouts::Pass;

/// Runs of its lifetime have the mistake.
class Mistaken {
public:
    explicit Mistaken(Mutation made) { mutation = made; }
    ~Mistaken() { mutation = Mutation::none; }
    Mistaken(const Mistaken&) = delete;
    Mistaken& operator=(const Mistaken&) = delete;
};

/// Runs the case rightly and with the mistake; the gate must be silent about the first and complain of the second.
void check_that_the_gate_sees(const GateCase& c, Mutation made) {
    const auto inputs = random_inputs(c.problem, 11);
    const auto expected = expected_of(c, inputs);
    BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected) == "");
    const Mistaken mistaken(made);
    const auto found = complaint(run_case(c, inputs, small_tiles()).outputs, expected);
    BOOST_TEST(found != "");
    BOOST_TEST_MESSAGE(found);
}

/// Peers numbered by ring rank, as if the ring were the world.
std::unique_ptr<World> misnumbered_world(const layouts::RingGroup& group) {
    return with_fault(std::make_unique<ThreadWorld>(group), {.kind = WorldFault::Kind::misnumbers});
}

/// K/V bytes sent in the forward pass of a full mask on a ring: every block hops to all ranks but its owner.
std::string traffic_complaint(const CpuRun& run, const layouts::Problem& problem, int ranks) {
    const auto block = problem.batch * problem.tokens / ranks * problem.kv_heads *
                       (problem.head_dim + problem.value_dim) * layouts::bytes_of(problem.dtype);
    const auto expected = ranks * (ranks - 1) * block;
    std::int64_t sent = 0;
    for (const auto& rank : layouts::totals(run.forward)) sent += rank.bytes_sent;
    return sent == expected ? "" : fmt::format("{} bytes of K/V were sent instead of {}", sent, expected);
}

/// Every query head with a kv head of its own.
Tensor expanded(const Tensor& tensor, const layouts::Problem& problem) {
    auto shape = tensor.shape();
    shape[2] = static_cast<std::size_t>(problem.query_heads);
    Tensor out(shape);
    const auto group = static_cast<std::size_t>(problem.query_heads_per_kv_head());
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                for (std::size_t d = 0; d < shape[3]; ++d) out(b, t, h, d) = tensor(b, t, h / group, d);
    return out;
}

/// Gradients of the expanded heads, summed over the query heads of each kv head.
Tensor contracted(const Tensor& tensor, const layouts::Problem& problem) {
    auto shape = tensor.shape();
    shape[2] = static_cast<std::size_t>(problem.kv_heads);
    Tensor out(shape, 0.0);
    const auto group = static_cast<std::size_t>(problem.query_heads_per_kv_head());
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t h = 0; h < tensor.shape(2); ++h)
                for (std::size_t d = 0; d < shape[3]; ++d) out(b, t, h / group, d) += tensor(b, t, h, d);
    return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mutations)

BOOST_AUTO_TEST_CASE(a_backward_pass_with_per_block_lse_and_delta_is_caught_1) {
    check_that_the_gate_sees({small_problem(48), "causal", "zigzag", "ring", 4}, Mutation::per_block_statistics);
}

// The same in bf16, where the gate is the error model.
BOOST_AUTO_TEST_CASE(per_block_lse_and_delta_exceed_what_the_roundings_of_bf16_leave_1) {
    GateCase c{small_problem(256), "causal", "zigzag", "ring", 4};
    c.problem.dtype = layouts::DType::bf16;
    c.problem.head_dim = 64;
    c.problem.value_dim = 48;
    c.gradient_dtype = layouts::DType::fp32;
    auto inputs = random_inputs(c.problem, 5);
    for (auto* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.dout}) *tensor = rounded(*tensor, c.problem.dtype);
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto expected = blocked_attention(c.problem, mask, inputs);
    const auto forward = schedule_of(c, Pass::forward), backward = schedule_of(c, Pass::backward);
    const auto bounds = ErrorModel(c.problem, mask, inputs, expected).bounds(inputs, *forward, backward.get(), false);
    const auto check = [&](bool passes) {
        const auto found = deviations(run_case(c, inputs, {}).outputs, expected);
        BOOST_TEST(found.o.relative_rms <= bounds.o.relative_rms);
        BOOST_TEST((found.dq.relative_rms <= bounds.dq.relative_rms) == passes);
        BOOST_TEST((found.dk.relative_rms <= bounds.dk.relative_rms) == passes);
        BOOST_TEST((found.dv.relative_rms <= bounds.dv.relative_rms) == passes);
    };
    check(true);
    const Mistaken mistaken(Mutation::per_block_statistics);
    check(false);
}

BOOST_AUTO_TEST_CASE(a_backward_pass_that_reuses_the_first_block_is_caught_2) {
    for (const std::string algorithm : {"ring", "all-gather", "pull", "joined-ring:1"})
        check_that_the_gate_sees({small_problem(48), "causal", "striped", algorithm, 4}, Mutation::stale_block);
}

BOOST_AUTO_TEST_CASE(a_schedule_that_reuses_the_first_block_is_named_2) {
    const GateCase c{small_problem(48), "full", "contiguous", "ring", 4};
    const auto forward = schedule_of(c, Pass::forward);
    const EditedSchedule backward(schedule_of(c, Pass::backward), [](int, layouts::Op& op) {
        if (op.kind == layouts::OpKind::attend) op.slot(layouts::Pool::kv) = 0;
        return true;
    });
    const auto inputs = random_inputs(c.problem, 11);
    ThreadWorld world({4, 1, {}});
    const auto found = complaint_of_run([&] { return run(world, *forward, &backward, inputs, small_tiles()).outputs; },
                                        expected_of(c, inputs));
    BOOST_TEST(found.find("K,V slot 0 is that of block ") != std::string::npos, found);
}

BOOST_AUTO_TEST_CASE(peers_of_a_ring_in_a_larger_world_numbered_by_ring_rank_are_caught_3) {
    const GateCase c{small_problem(48), "full", "contiguous", "ring", 2};
    const std::vector<Inputs> inputs{random_inputs(c.problem, 11), random_inputs(c.problem, 12)};
    auto options = small_tiles();
    options.timeout = std::chrono::milliseconds(300);
    for (const std::string algorithm : {"ring", "pull"}) {
        auto chosen = c;
        chosen.algorithm = algorithm;
        const auto forward = schedule_of(chosen, Pass::forward), backward = schedule_of(chosen, Pass::backward);
        const auto complaint_in = [&](World& world) {
            std::string found;
            for (std::size_t replica = 0; replica < 2 && found.empty(); ++replica)
                found = complaint_of_run(
                    [&] { return run(world, *forward, backward.get(), inputs, options)[replica].outputs; },
                    expected_of(c, inputs[replica]));
            return found;
        };
        const layouts::RingGroup group{2, 2, layouts::RingGroup::Placement::consecutive};
        ThreadWorld right(group);
        auto wrong = misnumbered_world(group);
        BOOST_TEST(complaint_in(right) == "");
        BOOST_TEST(complaint_in(*wrong) != "");
        // The mistake hides while the ring is the world.
        auto alone = misnumbered_world({2, 1, {}});
        const auto runs = run(*alone, *forward, backward.get(), std::span(inputs).first(1), options);
        BOOST_TEST(complaint(runs[0].outputs, expected_of(c, inputs[0])) == "");
    }
}

BOOST_AUTO_TEST_CASE(rotary_positions_inside_a_shard_are_caught_4) {
    for (const std::string layout : {"contiguous", "zigzag", "striped"}) {
        GateCase c{small_problem(48), "causal", layout, "ring", 4};
        c.problem.rotary.base = 100;
        check_that_the_gate_sees(c, Mutation::local_rotary_positions);
        check_that_the_gate_sees(c, Mutation::gradients_left_rotated);
    }
}

BOOST_AUTO_TEST_CASE(dropout_that_depends_on_the_rank_or_the_step_is_caught_11) {
    for (const std::string layout : {"contiguous", "zigzag", "striped"}) {
        GateCase c{small_problem(48), "causal", layout, "ring", 4};
        c.problem.dropout = {0.2, 7};
        check_that_the_gate_sees(c, Mutation::dropout_by_rank);
        check_that_the_gate_sees(c, Mutation::dropout_by_step);
    }
}

BOOST_AUTO_TEST_CASE(plus_infinity_for_empty_rows_is_caught_5) {
    const GateCase c{small_problem(48), "causal", "striped", "ring", 4, Accumulation::partials};
    check_that_the_gate_sees(c, Mutation::plus_infinity_for_empty_rows);
    auto padded = c;
    padded.mask = "causal+valid:0-40";
    padded.accumulation = Accumulation::carry;
    check_that_the_gate_sees(padded, Mutation::plus_infinity_for_empty_rows);
}

BOOST_AUTO_TEST_CASE(a_mask_asked_in_local_coordinates_is_caught_6) {
    for (const std::string mask : {"window:7,0", "causal+documents:13,20,15", "causal"})
        check_that_the_gate_sees({small_problem(48), mask, "contiguous", "ring", 4}, Mutation::local_mask_coordinates);
}

BOOST_AUTO_TEST_CASE(documents_cut_to_shards_by_integer_division_are_caught_7) {
    const GateCase c{small_problem(60), "causal+documents:13,22,25", "contiguous", "ring", 4};
    const auto inputs = random_inputs(c.problem, 11);
    auto cut = c;
    // Boundaries 13 and 35, each divided by 4 ranks and multiplied back.
    cut.mask = fmt::format("causal+documents:{},{},{}", 13 / 4 * 4, 35 / 4 * 4 - 13 / 4 * 4, 60 - 35 / 4 * 4);
    BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected_of(c, inputs)) == "");
    BOOST_TEST(complaint(run_case(cut, inputs, small_tiles()).outputs, expected_of(c, inputs)) != "");
}

BOOST_AUTO_TEST_CASE(gradients_averaged_over_the_ring_are_caught_8_and_doubled_ones_12) {
    const GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 11);
    const auto expected = expected_of(c, inputs);
    const auto right = run_case(c, inputs, small_tiles()).outputs;
    BOOST_TEST(complaint(right, expected) == "");
    // A cosine similarity is 1 for all of these.
    for (const double factor : {1.0 / c.ranks, 2.0}) {
        for (auto gradient : {&Outputs::dq, &Outputs::dk, &Outputs::dv}) {
            auto wrong = right;
            for (auto& x : wrong.*gradient) x *= factor;
            BOOST_TEST(complaint(wrong, expected) != "");
        }
    }
}

BOOST_AUTO_TEST_CASE(kv_heads_expanded_before_the_hop_are_caught_by_the_traffic_10) {
    const GateCase c{small_problem(48), "full", "contiguous", "ring", 4};
    const auto inputs = random_inputs(c.problem, 11);
    const auto right = run_case(c, inputs, small_tiles());
    BOOST_TEST(traffic_complaint(right, c.problem, c.ranks) == "");

    auto wasteful = c;
    wasteful.problem.kv_heads = c.problem.query_heads;
    auto wide = inputs;
    wide.k = expanded(inputs.k, c.problem);
    wide.v = expanded(inputs.v, c.problem);
    auto wrong = run_case(wasteful, wide, small_tiles());
    wrong.outputs.dk = contracted(wrong.outputs.dk, c.problem);
    wrong.outputs.dv = contracted(wrong.outputs.dv, c.problem);
    // The numbers are right: only the bytes tell.
    BOOST_TEST(complaint(wrong.outputs, expected_of(c, inputs)) == "");
    BOOST_TEST(traffic_complaint(wrong, c.problem, c.ranks) != "");
}

BOOST_AUTO_TEST_CASE(sinks_dropped_under_a_window_are_caught_13) {
    GateCase c{small_problem(48), "window:6,0", "contiguous", "ring", 4};
    c.problem.sinks = {0.5, -1, 2, 0};
    check_that_the_gate_sees(c, Mutation::dropped_sinks);

    // First keys, where only the window's blocks are attended to.
    GateCase first_keys{small_problem(48), "window:6,0+sink:4", "contiguous", "ring", 4};
    const auto inputs = random_inputs(c.problem, 11);
    const auto expected = expected_of(first_keys, inputs);
    BOOST_TEST(complaint(run_case(first_keys, inputs, small_tiles()).outputs, expected) == "");
    first_keys.mask = "window:6,0";
    BOOST_TEST(complaint(run_case(first_keys, inputs, small_tiles()).outputs, expected) != "");
}

BOOST_AUTO_TEST_CASE(a_loss_averaged_over_tail_padding_is_caught_14) {
    const GateCase c{small_problem(48), "causal+valid:0-41", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 11);
    auto averaged = inputs;
    for (auto& x : averaged.dout) x *= 41.0 / 48;
    const auto expected = expected_of(c, inputs);
    BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected) == "");
    BOOST_TEST(complaint(run_case(c, averaged, small_tiles()).outputs, expected) != "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
