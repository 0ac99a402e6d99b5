// What schedules cost, against closed forms: visible pairs, hops, messages, launches, FLOP, memory.

#include "layouts/program/timeline.hpp"
#include "layouts/schedules/schedule.hpp"

#include "tests/layouts/schedule_checker.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <set>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

BOOST_AUTO_TEST_SUITE(schedule_costs)

BOOST_AUTO_TEST_CASE(pairs_of_heads_are_shared_out_without_a_remainder_and_without_overflow) {
    Op op;
    for (const std::int64_t pair_count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{1} << 62}) {
        op.pair_count = pair_count;
        std::int64_t sum = 0;
        for (int head = 0; head < 12; head += 3) {
            op.rows().heads = {head, head + 3};
            sum += pairs_of(op, 12);
        }
        BOOST_TEST(sum == pair_count);
    }
}

BOOST_DATA_TEST_CASE(ring_blocks_travel_only_as_far_as_someone_needs_them, data::make({2, 3, 4, 8}), p) {
    constexpr std::int64_t c = 12;
    const auto s = c * p;
    const std::int64_t kv = 3 * c * 4 * (24 + 16) * 2, dkv = 3 * c * 4 * (24 + 16) * 4;
    const auto check = [&](const std::string& mask, const std::string& layout, std::int64_t hops,
                           std::int64_t gradient_hops) {
        const auto c1 = exact_case(mask, layout, s, p);
        BOOST_TEST_CONTEXT(mask << ", " << layout) {
            for (const std::string schedule_name : {"ring", "joined-ring:1"})
                BOOST_TEST(traffic_of(*schedule_of(c1, {.schedule = schedule_name}), Pool::kv) ==
                           (Traffic{hops, hops * kv}));
            const auto backward = schedule_of(c1, {.pass = Pass::backward});
            BOOST_TEST(traffic_of(*backward, Pool::kv) == (Traffic{hops, hops * kv}));
            BOOST_TEST(traffic_of(*backward, Pool::dkv) == (Traffic{gradient_hops, gradient_hops * dkv}));
        }
    };
    // Everybody needs every block: P-1 hops of each, and P of its gradient.
    for (const std::string layout : {"contiguous", "zigzag", "striped"}) check("full", layout, p * (p - 1), p * p);
    check("causal", "zigzag", p * (p - 1), p * p);
    check("causal", "striped", p * (p - 1), p * p);
    // Block o goes to ranks o+1 .. P-1; its gradient follows and makes one hop home. The last block goes nowhere.
    check("causal", "contiguous", p * (p - 1) / 2, p * (p - 1) / 2 + (p - 1));
    // A window of L past keys reaches ceil(L/c) blocks back.
    for (const std::int64_t left : {0, 1, 11, 12, 13, 24, 30, 1000}) {
        std::int64_t hops = 0, homes = 0;
        for (std::int64_t owner = 0; owner < p; ++owner) {
            const auto reach = std::min(p - 1 - owner, (left + c - 1) / c);
            hops += reach;
            homes += reach > 0;
        }
        check("window:" + std::to_string(left) + ",0", "contiguous", hops, hops + homes);
    }
    // The first 3 keys lie in block 0, which goes to everyone.
    check("window:12,0+sink:3", "contiguous", 2 * p - 3, 3 * p - 4);
    // Documents that end with the shards: no traffic at all.
    check("causal+documents:12x" + std::to_string(p), "contiguous", 0, 0);
}

BOOST_DATA_TEST_CASE(gathered_blocks_go_straight_to_whoever_needs_them,
                     data::make({"all-gather", "all-gather:2", "pull", "pull:4"}) * data::make({2, 3, 8}),
                     schedule_name, p) {
    constexpr std::int64_t c = 12;
    const std::int64_t kv = 3 * c * 4 * (24 + 16) * 2, dkv = 3 * c * 4 * (24 + 16) * 4;
    // Forward, pull leaves blocks as small as these whole; backward it takes half of the kv heads at a time.
    const std::string name = schedule_name;
    const std::int64_t groups = name == "pull:4" ? 4 : name == "all-gather:2" ? 2 : 1;
    const std::int64_t groups_backward = name == "all-gather" ? 1 : 2;
    const auto check = [&](const std::string& mask, std::int64_t blocks) {
        const auto c1 = exact_case(mask, "contiguous", c * p, p);
        const auto backward = schedule_of(c1, {.schedule = schedule_name, .pass = Pass::backward});
        BOOST_TEST(traffic_of(*schedule_of(c1, {.schedule = schedule_name}), Pool::kv) ==
                   (Traffic{blocks * groups, blocks * kv}));
        BOOST_TEST(traffic_of(*backward, Pool::kv) == (Traffic{blocks * groups_backward, blocks * kv}));
        BOOST_TEST(traffic_of(*backward, Pool::dkv) == (Traffic{blocks * groups_backward, blocks * dkv}));
    };
    check("full", p * (p - 1));
    check("causal", p * (p - 1) / 2);
    check("window:12,0", p - 1);
    check("window:12,0+sink:3", 2 * p - 3);
}

BOOST_DATA_TEST_CASE(a_joined_ring_joins_all_attends_but_of_short_blocks_backward,
                     data::make(passes) * data::make({4092, 4096}) * data::make({"joined-ring", "joined-ring:1"}), pass,
                     tokens, schedule_name) {
    const auto c = exact_case("causal", "zigzag", 3 * tokens, 3);
    const bool joins = pass == Pass::forward || tokens == 4096 || std::string(schedule_name) == "joined-ring:1";
    for (const auto& ops : written(*schedule_of(c, {.schedule = schedule_name, .pass = pass}))) {
        int launches = 0;
        for (const auto& op : ops) launches += op.kind == OpKind::attend && !op.fused;
        BOOST_TEST(launches == (joins ? 1 : 3));
    }
}

// The ring's gradients make as many hops as it has ranks, and the last one begins after the last attend. In a joined
// ring of short blocks, or by steps, each rank sends its part of a gradient to the owner.
BOOST_DATA_TEST_CASE(a_joined_ring_by_steps_sends_gradients_home_while_their_owner_attends, data::make({2, 3, 5}),
                     ranks) {
    struct Case {
        std::string schedule;
        std::int64_t tokens;  // per rank
    };
    for (const auto& [schedule_name, tokens] :
         {Case{"ring", 12}, Case{"joined-ring", 12}, Case{"joined-ring:steps", 4096}}) {
        const auto c = exact_case("causal", "zigzag", tokens * ranks, ranks);
        const bool joined = schedule_name != "ring";
        int rank = 0;
        for (const auto& ops : written(*schedule_of(c, {.schedule = schedule_name, .pass = Pass::backward}))) {
            int hops = 0;
            std::size_t last_attend = 0, last_send = 0;
            for (std::size_t i = 0; i < ops.size(); ++i) {
                const bool sends = ops[i].kind == OpKind::send && ops[i].pool == Pool::dkv;
                if (sends && joined) BOOST_TEST(ops[i].peer == ops[i].part.block);
                hops += sends;
                if (sends) last_send = i;
                if (ops[i].kind == OpKind::attend) last_attend = i;
            }
            BOOST_TEST(hops == (joined ? ranks - 1 : ranks));
            BOOST_TEST((last_send < last_attend) == joined);
            BOOST_TEST((ops[last_attend].part.block == rank) == joined);
            ++rank;
        }
    }
}

// What a device relies on that runs such a pass as one launch: Schedule::is_one_launch().
BOOST_AUTO_TEST_CASE(a_pass_that_may_be_one_launch_serves_others_before_its_own_rows_and_writes_every_slot_once) {
    int found = 0;
    for (const auto& schedule_name : schedule_names_of_4_ranks)
        for (const std::string mask : {"causal", "window:5,0+sink:2", "documents:20,30,21"}) {
            const auto c = make_case(mask, "striped", 4);
            const auto schedule = schedule_of(c, {.schedule = schedule_name});
            if (!schedule->is_one_launch()) continue;
            ++found;
            BOOST_TEST(!schedule_of(c, {.schedule = schedule_name, .pass = Pass::backward})->is_one_launch());
            BOOST_TEST(
                !schedule_of(c, {.schedule = schedule_name, .accumulation = Accumulation::partials})->is_one_launch());
            const auto all = written(*schedule);
            for (int rank = 0; rank < 4; ++rank) {
                bool own_rows_begun = false;
                std::set<std::pair<Pool, int>> written_slots;
                for (const auto& op : all[static_cast<std::size_t>(rank)]) {
                    if (op.kind == OpKind::send && op.pool == Pool::q) BOOST_TEST(op.slot() == 0);
                    if (op.kind == OpKind::receive) BOOST_TEST(written_slots.emplace(op.pool, op.slot()).second);
                    if (op.kind == OpKind::merge) BOOST_TEST(op.slot() == 0);
                    if (op.kind != OpKind::attend) continue;
                    const bool is_own = op.rows().block == schedule->row_block(rank);
                    BOOST_TEST(op.part.block == rank);
                    BOOST_TEST(op.slot(Pool::kv) == 0);
                    BOOST_TEST(written_slots.emplace(Pool::output, op.slot(Pool::output)).second);
                    BOOST_TEST((is_own || !own_rows_begun));
                    own_rows_begun |= is_own;
                }
            }
        }
    BOOST_TEST(found > 0);
}

/// Merge also merges what it does not keep: every result but that of the owner, here of 4 ranks.
BOOST_DATA_TEST_CASE(partials_add_one_merge_per_attend, data::make(schedule_names_of_4_ranks), schedule_name) {
    const auto c = make_case("causal", "striped", 4);
    const auto count = [&](Accumulation accumulation, OpKind kind) {
        std::int64_t n = 0;
        for (const auto& ops : written(*schedule_of(c, {.schedule = schedule_name, .accumulation = accumulation})))
            n += std::count_if(ops.begin(), ops.end(), [&](const Op& op) { return op.kind == kind; });
        return n;
    };
    const auto attends = count(Accumulation::partials, OpKind::attend);
    const auto at_home = schedule_name.find("merge") != std::string::npos ? attends - 4 : 0;
    BOOST_TEST(count(Accumulation::carry, OpKind::merge) == at_home);
    BOOST_TEST(count(Accumulation::partials, OpKind::merge) == attends + at_home);
    BOOST_TEST(count(Accumulation::partials, OpKind::attend) == count(Accumulation::carry, OpKind::attend));
}

BOOST_AUTO_TEST_CASE(flop_count_all_query_heads_and_batches) {
    const auto c = exact_case("full", "contiguous", 24, 2);
    const auto flop = [&](Pass pass) {
        double sum = 0;
        const auto made = schedule_of(c, {.schedule = "all-gather:2", .pass = pass});
        for (const auto& ops : written(*made))
            for (const auto& op : ops)
                if (op.kind == OpKind::attend) sum += made->flop(op);
        return sum;
    };
    const double pair_count = 3.0 * 8 * 24 * 24;
    BOOST_TEST(flop(Pass::forward) == pair_count * 2 * (24 + 16));
    BOOST_TEST(flop(Pass::backward) == pair_count * 2 * (3 * 24 + 2 * 16));
}

BOOST_AUTO_TEST_CASE(scratch_is_a_few_blocks_however_many_ranks_a_ring_has) {
    for (const int ranks : {2, 4, 8}) {
        const auto c = exact_case("causal", "zigzag", 12 * ranks, ranks);
        const std::int64_t kv = 3 * 12 * 4 * (24 + 16) * 2, dkv = 2 * kv;
        BOOST_TEST(schedule_of(c, {})->scratch_bytes() == 2 * kv);
        BOOST_TEST(schedule_of(c, {.pass = Pass::backward})->scratch_bytes() == 2 * kv + 3 * dkv);
        BOOST_TEST(schedule_of(c, {.schedule = "all-gather"})->scratch_bytes() == (ranks - 1) * kv);
        BOOST_TEST(schedule_of(c, {.schedule = "all-gather:4"})->scratch_bytes() == (ranks - 1) * 2 * kv / 4);
        BOOST_TEST(schedule_of(c, {.schedule = "pull"})->scratch_bytes() == (ranks - 1) * kv);
        BOOST_TEST(schedule_of(c, {.schedule = "pull", .pass = Pass::backward})->scratch_bytes() ==
                   (ranks - 1) * (kv + 2 * dkv));
        BOOST_TEST(schedule_of(c, {.schedule = "joined-ring"})->scratch_bytes() == (ranks - 1) * kv);
        BOOST_TEST(schedule_of(c, {.schedule = "joined-ring:1", .pass = Pass::backward})->scratch_bytes() ==
                   (ranks - 1) * kv + 2 * dkv);
        BOOST_TEST(schedule_of(c, {.schedule = "joined-ring:steps", .pass = Pass::backward})->scratch_bytes() ==
                   (ranks - 1) * kv + (std::min(2, ranks - 1) + ranks - 1) * dkv);
    }
    BOOST_TEST(schedule_of(exact_case("causal", "zigzag", 12, 1), {.pass = Pass::backward})->scratch_bytes() == 0);
}

// 3 query heads for each of 2 kv heads, dims 5 and 7, bf16: numbers of one token and head, by hand.
BOOST_AUTO_TEST_CASE(a_token_has_the_numbers_and_bytes_of_the_tensors_in_the_table) {
    Problem problem;
    problem.tokens = 4;
    problem.query_heads = 6;
    problem.kv_heads = 2;
    problem.head_dim = 5;
    problem.value_dim = 7;
    problem.dtype = DType::bf16;
    const auto schedule =
        make_schedule(problem, make_mask("full", 4), make_layout("contiguous", 4, 1), {.schedule = "ring"});
    struct Expected {
        Pool pool;
        int heads;
        std::int64_t numbers, bytes;  // bytes in slot 0: bf16 has 2, sums and statistics have 4
    };
    for (const auto& [pool, heads, numbers, bytes] : {Expected{Pool::kv, 2, 12, 24},
                                                      {Pool::dkv, 2, 12, 48},
                                                      {Pool::q, 6, 5, 10},
                                                      {Pool::state, 6, 9, 36},
                                                      {Pool::output, 6, 8, 18},
                                                      {Pool::dout, 6, 9, 22},
                                                      {Pool::dq, 6, 5, 20}}) {
        BOOST_TEST_CONTEXT(to_string(pool)) {
            BOOST_TEST(heads_of(problem, pool) == heads);
            BOOST_TEST(width(problem, pool) == numbers);
            BOOST_TEST(schedule->token_bytes(pool, 0) == bytes);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
