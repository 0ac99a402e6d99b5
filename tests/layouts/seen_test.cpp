#include "layouts/schedules/schedule.hpp"
#include "tests/layouts/cases.hpp"
#include "tests/layouts/schedule_cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <map>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

std::vector<std::int64_t> positions_of(std::span<const Run> runs) {
    std::vector<std::int64_t> positions;
    for (const auto& run : runs)
        for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.at(i));
    return positions;
}

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
            const auto more = positions_of(c.layout.shard(rank));
            rows.insert(rows.end(), more.begin(), more.end());
        }
        for (int owner = 0; owner < ranks; ++owner)
            for (const auto key : positions_of(c.layout.shard(owner)))
                if (owner / host_size != host && count_visible(c.mask, rows, {key}) > 0) {
                    BOOST_TEST(keys.contains({host, key}));
                    BOOST_TEST(gradients.contains({owner / host_size, key}));
                }
    }
}

BOOST_AUTO_TEST_CASE(hosts_that_do_not_divide_the_ranks_are_refused_with_both_numbers) {
    const auto c = make_case("causal", "contiguous", 6);
    const auto error = error_of([&] { schedule_of(c, {.schedule = "seen:1:4"}); });
    BOOST_TEST(error.find("4") != std::string::npos);
    BOOST_TEST(error.find("6") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
