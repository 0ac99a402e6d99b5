#include "layouts/schedules/schedule.hpp"
#include "tests/layouts/cases.hpp"
#include "tests/layouts/schedule_checker.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <vector>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// How often each (receiving host, position) of a pool crosses from one host to another.
std::map<std::pair<int, std::int64_t>, int> crossings(const Schedule& schedule, Pool pool, int host_size) {
    std::map<std::pair<int, std::int64_t>, int> count;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next())
            if (op->kind == OpKind::send && op->pool == pool && op->peer / host_size != rank / host_size)
                for (const auto position : positions_of(schedule.runs(op->part)))
                    ++count[{op->peer / host_size, position}];
    }
    return count;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule_seen)

// Seen by the element-wise definition of the mask. Where the rows of a rank lie apart, keys between those that they see
// may travel as well.
BOOST_DATA_TEST_CASE(keys_that_a_host_sees_and_their_gradients_cross_between_hosts_once,
                     data::make(mask_specs()) * data::make(layout_specs()), mask, layout) {
    constexpr int ranks = 8, host_size = 4;
    const auto c = make_case(mask, layout, ranks);
    const auto schedule = schedule_of(c, {.schedule = "seen:1:4", .pass = Pass::backward});
    const auto keys = crossings(*schedule, Pool::kv, host_size);
    const auto gradients = crossings(*schedule, Pool::dkv, host_size);
    for (const auto& crossed : {keys, gradients})
        for (const auto& [where, times] : crossed) BOOST_TEST(times == 1);
    BOOST_TEST(keys.size() == gradients.size());

    for (int host = 0; host < ranks / host_size; ++host) {
        std::vector<std::int64_t> rows;
        for (int rank = host * host_size; rank < (host + 1) * host_size; ++rank) {
            const auto more = c.layout.positions(rank);
            rows.insert(rows.end(), more.begin(), more.end());
        }
        for (int owner = 0; owner < ranks; ++owner)
            for (const auto key : c.layout.positions(owner))
                if (owner / host_size != host && count_visible(c.mask, rows, {key}) > 0) {
                    BOOST_TEST(keys.contains({host, key}));
                    BOOST_TEST(gradients.contains({owner / host_size, key}));
                }
    }
}

// Two hosts of two ranks; every rank sees the keys of all. All ranks have as much work, so own keys are cut once.
BOOST_AUTO_TEST_CASE(gradients_return_before_a_rank_attends_to_the_last_of_its_own_keys) {
    const auto schedule =
        schedule_of(exact_case("full", "contiguous", 128, 4), {.schedule = "seen:1:2:1", .pass = Pass::backward});
    for (int rank = 0; rank < 4; ++rank) {
        std::vector<Op> attends;
        int sums = 0, totals = 0;  // of a relay, before the last attend
        auto ops = schedule->ops(rank);
        while (const auto* op = ops.next()) {
            if (op->kind == OpKind::attend) attends.push_back(*op);
            if (attends.size() == 4u) continue;
            sums += op->kind == OpKind::add && op->slot(Pool::dkv) != 0;
            totals += op->kind == OpKind::send && op->pool == Pool::dkv && op->peer / 2 != rank / 2;
        }
        BOOST_REQUIRE(attends.size() == 4u);  // to own keys, the other host's, the own host's, own keys
        for (const std::size_t i : {0, 3}) BOOST_TEST(attends[i].slot(Pool::kv) == 0);
        for (const std::size_t i : {1, 2}) BOOST_TEST(attends[i].step / 2 == static_cast<int>(2 - i));
        BOOST_TEST((attends[0].part.tokens == Interval{0, 16}));
        BOOST_TEST((attends[3].part.tokens == Interval{16, 32}));
        BOOST_TEST(sums == 1);
        BOOST_TEST(totals == 1);
    }
}

// An attend counts as one pair at least: relays also attend to keys that only other ranks see.
BOOST_DATA_TEST_CASE(a_relay_that_has_computed_less_than_a_rank_of_its_host_does_not_wait_for_its_gradients,
                     data::make({"causal", "causal+documents:40,8,100,12,60,36", "window:30,0"}) *
                         data::make({"contiguous", "zigzag", "planned"}),
                     mask, layout) {
    constexpr int ranks = 8, host_size = 4;
    const auto schedule =
        schedule_of(exact_case(mask, layout, 256, ranks), {.schedule = "seen:1:4:1", .pass = Pass::backward});
    std::map<std::pair<int, int>, std::vector<std::int64_t>> when_sent;  // by sender and receiver, in order
    std::vector<std::int64_t> all_pairs(ranks, 0);
    const auto walk = [&](int rank, const auto& visit) {
        auto ops = schedule->ops(rank);
        for (std::int64_t pairs = 0; const auto* op = ops.next();) {
            if (op->kind == OpKind::attend) pairs += std::max<std::int64_t>(op->pair_count, 1);
            visit(*op, pairs);
        }
    };
    for (int rank = 0; rank < ranks; ++rank)
        walk(rank, [&](const Op& op, std::int64_t pairs) {
            all_pairs[static_cast<std::size_t>(rank)] = pairs;
            if (op.kind == OpKind::send && op.pool == Pool::dkv && op.peer / host_size == rank / host_size)
                when_sent[{rank, op.peer}].push_back(pairs);
        });
    std::size_t between = 0;  // two attends
    for (int rank = 0; rank < ranks; ++rank) {
        std::map<int, std::size_t> received;
        std::int64_t sent = 0;
        walk(rank, [&](const Op& op, std::int64_t pairs) {
            if (op.kind == OpKind::receive && op.pool == Pool::dkv && op.peer / host_size == rank / host_size)
                sent = when_sent.at({op.peer, rank}).at(received[op.peer]++);
            const bool last = pairs == all_pairs[static_cast<std::size_t>(rank)];
            if (op.kind != OpKind::add || op.slot(Pool::dkv) == 0 || last) return;
            ++between;
            BOOST_TEST(pairs >= sent, "rank " << rank << ": " << pairs << " against " << sent);
        });
    }
    if (mask == std::string("causal")) BOOST_TEST(between > 0u);
}

BOOST_AUTO_TEST_CASE(hosts_that_do_not_divide_the_ranks_are_refused_with_both_numbers) {
    const auto c = make_case("causal", "contiguous", 6);
    for (const std::string host_size : {"4", "4294967297"}) {  // the second is 1 in 32 bits
        const auto error = error_of([&] { schedule_of(c, {.schedule = "seen:1:" + host_size}); });
        BOOST_TEST(error == "schedule seen with hosts of " + host_size + " ranks, but 6 ranks are no multiple of that");
    }
}

BOOST_AUTO_TEST_SUITE_END()
