#include "sim/cost/cost.hpp"
#include "layouts/layouts/launch_order.hpp"
#include "scenario.hpp"
#include "sim/tiles/list_scheduling.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;

namespace {

Part all_rows(const Schedule& schedule, int rank) {
    return schedule.part(rank, {0, static_cast<int>(schedule.problem().query_heads)});
}

Part all_keys(const Schedule& schedule, int rank) {
    return schedule.part(rank, {0, static_cast<int>(schedule.problem().kv_heads)});
}

/// The list of work tiles of keys, and in which order a kernel takes them.
struct KeyListByHand {
    std::vector<layouts::TileCounts> tiles;
    layouts::WorkTileOrder order;
};

/// From every pair of tiles. `tiles`: of the key tiles, in local order.
KeyListByHand key_list_by_hand(const Schedule& schedule, const Part& rows, const Part& keys, const AttentionCost& cost,
                               layouts::LaunchShape places, std::vector<layouts::TileCounts> tiles) {
    const auto hulls = layouts::row_hulls(schedule.mask(), schedule.runs(rows), cost.tile_rows);
    std::vector<layouts::WorkTileReach> reaches;
    layouts::KeyWorkTiles work_tiles;
    for (const auto& column : layouts::key_tiles(schedule.mask(), schedule.runs(keys), cost.tile_keys)) {
        layouts::WorkTileReach reach;
        for (std::size_t i = 0; i < hulls.size(); ++i)
            if (classify(hulls[i], column) != layouts::TileKind::empty)
                reach = {reach.entries + 1, static_cast<std::int64_t>(i)};
        ++work_tiles.work_tiles;
        work_tiles.entries += reach.entries;
        work_tiles.longest = std::max(work_tiles.longest, reach.entries);
        if (reach.entries > 0) reaches.push_back(reach);
    }
    work_tiles.busy = static_cast<std::int64_t>(reaches.size());
    std::ranges::stable_sort(reaches, std::greater{}, &layouts::WorkTileReach::entries);
    work_tiles.fall_linearly = layouts::fall_linearly(reaches);
    std::ranges::stable_sort(tiles, std::greater{}, [](const auto& one) { return one.full + one.partial; });
    if (cost.launch_rule == KeyLaunchRule::list_schedule && !work_tiles.fall_linearly) {
        const auto groups = layouts::row_groups_of(reaches);
        const auto longest_first = tiles;
        for (std::size_t i = 0; i < reaches.size(); ++i) tiles[i] = longest_first[groups.order[i]];
        work_tiles.row_groups = groups.count;
    }
    return {tiles, layouts::backward_order(work_tiles, places)};
}

/// The time straight from the tiles, without memo, groups of equal work tiles or heap.
double time_by_hand(const Schedule& schedule, const Machine& machine, const Part& rows, const Part& keys,
                    TileModel::AttendPosition position) {
    const auto& cost = machine.attention(schedule.options().pass);
    const auto work =
        layouts::tile_work(schedule.mask(), schedule.runs(rows), schedule.runs(keys), cost.tile_rows, cost.tile_keys);
    const bool by_keys = cost.work_tile == WorkTile::key_tile;
    const auto heads = (by_keys ? keys : rows).heads.count();
    const auto query_heads_in_turn = by_keys ? rows.heads.count() / keys.heads.count() : 1;
    layouts::BackwardLoad load{.steps_per_row_tile = query_heads_in_turn};
    for (const auto& tiles : by_keys ? work.keys : work.queries) {
        const auto entries = tiles.full + tiles.partial;
        if (entries > 0) load.work_tiles += heads;
        load.entries += entries * heads;
        load.longest = std::max(load.longest, entries);
    }
    const auto choose =
        cost.launch_rule == KeyLaunchRule::waves ? layouts::sm_group_by_waves : layouts::sm_group_by_list_schedule;
    const auto group = choose(load, static_cast<std::int64_t>(machine.sms), cost.groups);
    const auto seconds_of = [&](const layouts::TileCounts& tiles) {
        const auto of_rows = position.begins ? 0 : cost.resume_seconds;
        return cost.work_tile_seconds + (by_keys ? 0 : of_rows) +
               query_heads_in_turn *
                   (cost.full_tile_seconds * double(tiles.full) + cost.partial_tile_seconds * double(tiles.partial)) /
                   double(group.sms);
    };
    std::vector<double> work_tiles;
    if (by_keys) {
        const auto [list, order] = key_list_by_hand(
            schedule, rows, keys, cost,
            {.heads = heads, .sms = static_cast<std::int64_t>(machine.sms), .blocks = group.sms}, work.keys);
        layouts::for_each_work_tile_run(
            order, static_cast<std::int64_t>(list.size()), heads, [&](const layouts::WorkTileRun& run) {
                for (int head = 0; head < run.heads; ++head)
                    work_tiles.push_back(seconds_of(list[static_cast<std::size_t>(run.work_tile)]));
            });
    } else {
        for (const auto& tiles : work.queries)
            if (tiles.full + tiles.partial > 0 || position.begins || position.ends)
                for (int head = 0; head < heads; ++head) work_tiles.push_back(seconds_of(tiles));
        std::sort(work_tiles.rbegin(), work_tiles.rend());
    }
    std::vector<double> free(static_cast<std::size_t>(group.at_a_time));
    for (const auto work_tile : work_tiles) *std::min_element(free.begin(), free.end()) += work_tile;
    return *std::max_element(free.begin(), free.end());
}

double makespan(const std::vector<WorkTileGroup>& longest_first, std::int64_t sms) {
    return list_schedule(longest_first, sms);
}

/// Some heads and tokens of a whole block.
Part random_part(std::mt19937& bits, Part whole) {
    const auto end = [&](std::int64_t most) { return 1 + static_cast<std::int64_t>(bits()) % most; };
    whole.heads.end = static_cast<int>(end(whole.heads.end));
    whole.tokens.end = end(whole.tokens.end);
    whole.tokens.begin = static_cast<std::int64_t>(bits()) % whole.tokens.end;
    return whole;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cost)

BOOST_AUTO_TEST_CASE(tiles_go_longest_first_to_the_first_free_sm) {
    // 5, 4, 3, 3, 3 on two: {5, 3} and {4, 3, 3}.
    BOOST_TEST(makespan({{5, 1}, {4, 1}, {3, 3}}, 2) == 10);
    // 2048 equal tiles on 132 are 16 waves.
    BOOST_TEST(makespan({{1, 2048}}, 132) == 16);
    BOOST_TEST(makespan({}, 132) == 0);
}

BOOST_AUTO_TEST_CASE(millions_of_tiles_take_what_dealing_them_one_by_one_takes) {
    // Quarters add up without rounding, so both ways give the same to the last bit.
    const auto one_by_one = [](const std::vector<WorkTileGroup>& tiles, std::size_t sms) {
        std::vector<double> free(sms);
        for (const auto& group : tiles)
            for (std::int64_t i = 0; i < group.count; ++i) {
                std::pop_heap(free.begin(), free.end(), std::greater<>());
                free.back() += group.seconds;
                std::push_heap(free.begin(), free.end(), std::greater<>());
            }
        return *std::max_element(free.begin(), free.end());
    };
    const std::vector<WorkTileGroup> tiles{{1000.25, 7}, {3.5, 5}, {0.75, 3'000'001}, {0.25, 2'000'003}};
    for (const std::size_t sms : {1, 3, 132})
        BOOST_TEST(makespan(tiles, static_cast<std::int64_t>(sms)) == one_by_one(tiles, sms));
}

BOOST_AUTO_TEST_CASE(any_number_of_tiles_of_any_length_is_assigned_at_once) {
    constexpr auto many = std::int64_t{1} << 50;
    BOOST_TEST(makespan({{1, many}}, 1) == static_cast<double>(many));
    BOOST_TEST(makespan({{1, many}}, 128) == static_cast<double>(many / 128));
    BOOST_TEST(makespan({{2, 1}, {0, many}}, 3) == 2);
    BOOST_TEST(makespan({{5, 1}, {1e-300, many}}, 3) == 5);
    BOOST_TEST(makespan({{5, 3}, {1e-16, many}}, 3) == 5 + 1e-16 * static_cast<double>(many) / 3,
               boost::test_tools::tolerance(1e-10));  // up to 2^21 of them one by one, each lost beside 5
}

BOOST_AUTO_TEST_CASE(blocks_that_look_alike_cost_what_their_own_tiles_cost) {
    std::mt19937 bits(5);
    auto machine = busy_machine();
    // Times that add up without rounding, or ties between SMs would be decided differently.
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->work_tile_seconds = 3;
        cost->full_tile_seconds = 11;
        cost->partial_tile_seconds = 17;
        cost->resume_seconds = 5;
    }
    for (int trial = 0; trial < 150; ++trial) {
        auto scenario = random_scenario(bits);
        // Tiles that do not divide the shards, so that tiles cross runs and segments.
        machine.forward.tile_rows = machine.backward.tile_rows = 5 + bits() % 20;
        machine.forward.tile_keys = machine.backward.tile_keys = 5 + bits() % 20;
        machine.backward.launch_rule = trial % 2 == 0 ? KeyLaunchRule::list_schedule : KeyLaunchRule::waves;
        if (trial % 3 == 0) scenario.mask += fmt::format("+valid:0-{}", scenario.ranks * scenario.tokens_per_rank - 5);
        std::unique_ptr<Schedule> schedule;
        try {
            schedule = scenario.schedule();
        } catch (const Error&) {
            scenario.mask = "causal";
            schedule = scenario.schedule();
        }
        TileModel model(*schedule, machine);
        for (int rank = 0; rank < scenario.ranks; ++rank)
            for (int owner = 0; owner < scenario.ranks; ++owner) {
                const auto rows = all_rows(*schedule, rank), keys = all_keys(*schedule, owner);
                const TileModel::AttendPosition position{bits() % 2 == 0, bits() % 2 == 0};
                BOOST_TEST(
                    model.attend(rows, keys, position).alone == time_by_hand(*schedule, machine, rows, keys, position),
                    scenario.describe() << " rank " << rank << " owner " << owner);
                const auto some_rows = random_part(bits, rows), some_keys = random_part(bits, keys);
                BOOST_TEST(model.attend(some_rows, some_keys, position).alone ==
                               time_by_hand(*schedule, machine, some_rows, some_keys, position),
                           scenario.describe() << " parts of rank " << rank << " owner " << owner);
            }
    }
}

// 16 work tiles of 128 rows on 4 SMs are 4 waves. Beside 3 s, a work tile that continues rows takes 5 s. If it sees
// nothing, memory moves 4 + 4 + 2 bytes for each number of O of 4 work tiles at a time, in 7 s.
BOOST_AUTO_TEST_CASE(work_tiles_that_continue_rows_and_see_nothing_wait_for_memory_that_L2_does_not_spare) {
    const auto schedule = Scenario{.ranks = 2, .tokens_per_rank = 512, .layout = "contiguous"}.schedule();
    auto machine = busy_machine();
    machine.sms = 4;
    machine.memory_bytes_per_second = 10 * 128 * 128 * 4 / 7.0;
    auto& cost = machine.forward;
    cost.tile_rows = cost.tile_keys = 128;
    cost.work_tile_seconds = 3;
    cost.full_tile_seconds = 11;
    cost.resume_seconds = 5;
    const auto seconds = [&](int rank, int block, TileModel::AttendPosition position) {
        return TileModel(*schedule, machine)
            .attend(all_rows(*schedule, rank), all_keys(*schedule, block), position)
            .alone;
    };
    const TileModel::AttendPosition last{.begins = false, .ends = true}, only{.begins = true, .ends = true};
    const auto rounding = boost::test_tools::tolerance(1e-12);
    for (const double cache_bytes : {1e9, 1.0}) {
        machine.cache_bytes = cache_bytes;
        BOOST_TEST(seconds(0, 1, last) == 4 * (3 + 5 + (cache_bytes > 1 ? 0 : 7)), rounding);
        BOOST_TEST(seconds(0, 1, only) == 4 * 3, rounding);
        BOOST_TEST(seconds(1, 0, last) == 4 * (3 + 5 + 4 * 11), rounding);  // every row sees all of the block
    }
}

// 1 us to launch, then bytes moved per byte at 3 TB/s: an add or a copy 3. A merge reads 1, and reads and writes 2
// each; the first partial of its rows finds nothing to read.
BOOST_AUTO_TEST_CASE(sums_take_their_launch_and_their_bytes) {
    const auto schedule = Scenario{}.schedule();
    const auto machine = busy_machine();
    const SimOptions options;
    CostModel model(*schedule, machine, options);
    using enum layouts::OpKind;
    for (const auto& [kind, begins, us] :
         {std::tuple{add, false, 4}, {copy, false, 4}, {merge, false, 6}, {merge, true, 4}}) {
        Op op;
        op.bytes = 3000000;
        op.kind = kind;
        op.begins = begins;
        BOOST_TEST(model.compute(op, 0) == us * 1'000'000);
    }
}

BOOST_AUTO_TEST_CASE(a_large_ring_has_few_distinct_blocks) {
    const auto machine = shipped_machine("h200_nvswitch_copy_engine");
    for (const auto& [layout, most] :
         {std::pair{"zigzag", 8u}, std::pair{"contiguous", 4u}, std::pair{"striped", 4u}}) {
        const auto schedule = Scenario{.ranks = 64, .tokens_per_rank = 2048, .layout = layout}.schedule();
        TileModel model(*schedule, machine);
        for (int rank = 0; rank < 64; ++rank)
            for (int owner = 0; owner < 64; ++owner)
                model.attend(all_rows(*schedule, rank), all_keys(*schedule, owner), {});
        BOOST_TEST(model.distinct_blocks() <= most, layout);
    }
}

// Power takes rate x clock^2, and rate goes as the clock.
BOOST_AUTO_TEST_CASE(the_sustained_clock_is_what_power_allows) {
    const Scenario scenario{.mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = pair_machine(scenario);
    const auto quick = simulate(*schedule, machine, rate_options());
    double flop = 0;
    auto ops = schedule->ops(0);
    while (const auto* op = ops.next())
        if (op->kind == layouts::OpKind::attend) flop += schedule->flop(*op);
    const auto seconds = layouts::to_seconds(quick.makespan);
    machine.forward.power_flops = flop / seconds / 8;
    auto options = rate_options();
    options.clock = Clock::sustained;
    // Never idle, and eight times as quick as power allows: half of the clock.
    const auto slow = simulate(*schedule, machine, options);
    BOOST_TEST(std::abs(slow.clock - 0.5) < 1e-12);
    BOOST_TEST(std::abs(slow.makespan - 2 * quick.makespan) <= 2 * scenario.ranks);  // roundings to picoseconds
    // Others as hungry in a pause as long as the slow pass: no more power for this one.
    options.pause_seconds = options.pause_busy_seconds = 2 * seconds;
    BOOST_TEST(std::abs(simulate(*schedule, machine, options).clock - 0.5) < 1e-9);
    // Busy for an eighth of the time: there is power enough for all of the clock.
    options.pause_seconds = 7 * seconds;
    options.pause_busy_seconds = 0;
    const auto rested = simulate(*schedule, machine, options);
    BOOST_TEST(rested.clock == 1);
    BOOST_TEST(rested.makespan == quick.makespan);
}

// One row of 4 query heads against 32 keys of 2 kv heads: 4 x 32 visible pairs take 32 ps, reading 32 x 2 x 256 x 2
// bytes longer.
BOOST_AUTO_TEST_CASE(a_row_takes_as_long_as_its_keys_take_to_be_read) {
    const Scenario scenario{.ranks = 1, .mask = "full"};
    auto problem = scenario.schedule()->problem();
    problem.queries = {{31, 32}};
    const auto schedule = schedule_of(problem, "full", "contiguous", 1);
    auto machine = pair_machine(scenario);
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 32);
    machine.memory_bytes_per_second = 32 * 2 * 256 * 2 / 1e-6;
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 1'000'000);
}

BOOST_AUTO_TEST_CASE(a_pass_has_a_beginning) {
    const Scenario scenario{.mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = pair_machine(scenario);
    const auto rows = double(scenario.tokens_per_rank * schedule->problem().head_dim) * 2;
    machine.memory_bytes_per_second = rows * double(schedule->problem().query_heads) / 1e-6;  // Q in a microsecond
    const auto bare = simulate(*schedule, machine, rate_options());
    machine.forward.begin_seconds = 3e-6;
    machine.forward.begin_memory_ratio = 5;
    const auto whole = simulate(*schedule, machine, rate_options());
    BOOST_TEST(whole.makespan == bare.makespan + 8'000'000);
    BOOST_TEST(whole.ranks.front().compute == bare.ranks.front().compute);
}

BOOST_AUTO_TEST_SUITE_END()
