#include "scenario.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

// Closed forms: c tokens per rank, d = c(c+1)/2 visible pairs on the diagonal block,
// f = c*c in a full one. With a picosecond per pair, free transfers and no overheads a prediction is a number of pairs.

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
namespace data = boost::unit_test::data;

namespace {

struct Pairs {
    std::int64_t c, d = c * (c + 1) / 2, f = c * c;
};

constexpr int rank_counts[] = {1, 2, 3, 4, 8, 16};

}  // namespace

BOOST_AUTO_TEST_SUITE(closed_forms)

// Contiguous: rank r has the diagonal and r full blocks, all of which have arrived by the time it wants them. Zigzag:
// half a block per step. Striped: rank P - 1 has d at every step.
BOOST_DATA_TEST_CASE(a_causal_ring_takes_the_pairs_of_its_layout, data::make(rank_counts), ranks) {
    const Pairs pairs{24};
    for (const auto& [layout, expected] : {std::pair{"contiguous", pairs.d + (ranks - 1) * pairs.f},
                                           {"zigzag", pairs.d + (ranks - 1) * pairs.f / 2},
                                           {"striped", ranks * pairs.d}}) {
        const Scenario scenario{.ranks = ranks, .tokens_per_rank = pairs.c, .layout = layout};
        const auto prediction = simulate(*scenario.schedule(), pair_machine(scenario), rate_options());
        BOOST_TEST(prediction.makespan == expected, layout);
        for (int rank = 0; rank < ranks; ++rank) {
            const auto& totals = prediction.ranks[static_cast<std::size_t>(rank)];
            if (scenario.layout == "contiguous") BOOST_TEST(totals.compute == pairs.d + rank * pairs.f);
            if (scenario.layout == "zigzag") BOOST_TEST(totals.end == expected);
        }
    }
}

BOOST_DATA_TEST_CASE(uniform_steps_overlap_to_the_longer_of_compute_and_transfer, data::make(rank_counts), ranks) {
    // Full mask: every step computes C; every hop takes M. P*C if C >= M, else (P-1)*M + C.
    const Pairs pairs{24};
    Scenario scenario{.ranks = ranks, .tokens_per_rank = pairs.c, .mask = "full"};
    const auto schedule = scenario.schedule();
    const auto bytes = block_bytes(*schedule, 0);
    const auto compute = pairs.f;
    for (const std::int64_t hop : {1L, 100L, compute - 1, compute, compute + 1, 7 * compute}) {
        for (const bool sharing : {false, true}) {
            auto machine = pair_machine(scenario);
            machine.inside_host.link_bytes_per_second = double(bytes) / (double(hop) * 1e-12);
            auto options = rate_options();
            options.sharing = sharing;
            const auto expected = compute >= hop ? ranks * compute : (ranks - 1) * hop + compute;
            const auto prediction = simulate(*schedule, machine, options);
            BOOST_TEST(prediction.makespan == expected, "hop " << hop);
            // The naive guess hides a hop in the last step as well, which has none.
            BOOST_TEST(prediction.naive_overlapped == (ranks - 1) * std::max(compute, hop) + compute);
            BOOST_TEST(prediction.naive_serial == ranks * compute + (ranks - 1) * hop);
        }
    }
}

BOOST_AUTO_TEST_CASE(hops_hide_behind_compute_from_the_published_number_of_tokens_on) {
    // T > 2 (Hkv/Hq) F/BW for causal zigzag (half a block of compute per hop of a whole one), half of it for a full
    // mask: bf16 K+V of T tokens take 4 T Hkv D bytes / BW, half a block 4 D Hq T^2 / 2 FLOP / F. Found by bisection on
    // whether any hop is exposed after the first step.
    const double flops = 600e12, bandwidth = 375e9;
    for (const double share : {1.0, 0.5}) {
        const auto exposed = [&](std::int64_t tokens) {
            Scenario scenario{.ranks = 4,
                              .tokens_per_rank = tokens,
                              .layout = "zigzag",
                              .mask = share == 1 ? "causal" : "full",
                              .query_heads = 32,
                              .kv_heads = 8};
            Machine machine;
            machine.forward.flops = flops;
            machine.inside_host.link_bytes_per_second = bandwidth;
            const auto schedule = scenario.schedule();
            const auto makespan = simulate(*schedule, machine, rate_options()).makespan;
            auto free = machine;
            free.inside_host.link_bytes_per_second = std::numeric_limits<double>::infinity();
            // In the causal case d > f/2 hides a little of the first hop: one hop's worth is allowed for.
            const auto alone = simulate(*schedule, free, rate_options()).makespan;
            return makespan - alone;
        };
        const double expected = share * 2 * (8.0 / 32.0) * flops / bandwidth;
        std::int64_t low = 2, high = 1 << 20;  // exposed, hidden
        while (high - low > 2) {
            const auto middle = (low + high) / 4 * 2;
            (exposed(middle) > 0 ? low : high) = middle;
        }
        // d = f/2 + c/2 hides the first hop up to 1/T earlier, far below the spacing of even T.
        BOOST_TEST(double(high) >= expected - 2);
        BOOST_TEST(double(high) <= expected + 2);
        BOOST_TEST_MESSAGE("crossover at " << high << " tokens per rank, expected " << expected);
    }
}

BOOST_AUTO_TEST_SUITE_END()
