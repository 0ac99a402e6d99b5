#include "sim/engine/engine.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <map>
#include <random>
#include <set>

using namespace ringlab;
using namespace ringlab::sim;
namespace data = boost::unit_test::data;

namespace ringlab::sim {

/// The speed of a running activity, as solved for the time from now() on.
struct SpeedProbe {
    static double speed(Engine& engine, std::uint32_t activity) {
        engine.solve();
        return engine.states_[activity].speed;
    }
};

}  // namespace ringlab::sim

namespace {

double speed(Engine& engine, std::uint32_t activity) { return SpeedProbe::speed(engine, activity); }

// Demands and speeds are held as float.
constexpr double float_tolerance = 3e-7;

/// A whole number in [0, end).
int below(std::mt19937& bits, unsigned end) { return static_cast<int>(bits() % end); }

/// Ends by tag.
std::map<std::uint32_t, Picoseconds> run(Engine& engine) {
    std::map<std::uint32_t, Picoseconds> ends;
    for (std::uint32_t tag = 0; engine.next(tag);) ends[tag] = engine.now();
    return ends;
}

void start(Engine& engine, std::uint32_t tag, Picoseconds duration, std::vector<Demand> demands, double weight = 1) {
    engine.start(tag, {.duration = duration, .demands = demands, .weight = weight});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(event_queue)

BOOST_DATA_TEST_CASE(events_set_moved_and_taken_out_in_any_order_leave_in_theirs, data::make({3, 12, 20, 40, 700}),
                     ids) {
    std::mt19937 bits(11);
    EventQueue queue;
    using Entry = std::tuple<Picoseconds, std::uint64_t, std::uint32_t>;
    std::set<Entry> expected;
    std::map<std::uint32_t, Entry> entries;  // by id
    Picoseconds now = 0;
    for (int i = 0; i < 20000; ++i) {
        const auto id = static_cast<std::uint32_t>(below(bits, static_cast<unsigned>(ids)));
        if (below(bits, 20) < 19 - 9 * (i / 2000 % 2)) {
            const EventQueue::EventOrder event_order{now + below(bits, 60), queue.take_number()};
            if (const auto before = entries.find(id); before != entries.end()) expected.erase(before->second);
            expected.insert(entries[id] = {event_order.time, event_order.number, id});
            queue.set(id, event_order);
        } else if (!expected.empty()) {
            const auto [time, number, first] = *expected.begin();
            expected.erase(expected.begin());
            entries.erase(first);
            const auto event = queue.pop();
            BOOST_REQUIRE(event.time == time);
            BOOST_REQUIRE(event.id == first);
            now = time;
        }
        BOOST_REQUIRE(queue.size() == expected.size());
        BOOST_REQUIRE(queue.leaves_by(id, now + 30) == (entries.contains(id) && std::get<0>(entries[id]) <= now + 30));
    }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(engine)

BOOST_AUTO_TEST_CASE(an_activity_alone_takes_exactly_its_duration) {
    Engine engine;
    const auto link = engine.add_resource(389e9);
    start(engine, 1, 123456789012345, {{link, 389e9}});
    start(engine, 2, 7, {});
    const auto ends = run(engine);
    BOOST_TEST(ends.at(1) == 123456789012345);
    BOOST_TEST(ends.at(2) == 7);
}

BOOST_AUTO_TEST_CASE(two_equal_flows_halve_a_link_until_the_shorter_ends) {
    // 100 and 300 at half speed until 200; then 200 of 300 are left, at full speed: 400.
    Engine engine;
    const auto link = engine.add_resource(10);
    start(engine, 1, 100, {{link, 10}});
    start(engine, 2, 300, {{link, 10}});
    const auto ends = run(engine);
    BOOST_TEST(ends.at(1) == 200);
    BOOST_TEST(ends.at(2) == 400);
}

BOOST_AUTO_TEST_CASE(a_delayed_flow_takes_nothing_until_its_delay_is_over) {
    // Alone until 50, then half of the link each: 50 + 2 * 50 = 150; of the second 50 are then left: 200.
    Engine engine;
    const auto link = engine.add_resource(10);
    const Demand all{link, 10};
    engine.start(1, {.duration = 100, .demands = {&all, 1}});
    engine.start(2, {.duration = 100, .delay = 50, .demands = {&all, 1}});
    const auto ends = run(engine);
    BOOST_TEST(ends.at(1) == 150);
    BOOST_TEST(ends.at(2) == 200);
    BOOST_TEST(engine.events() == 2u);
}

BOOST_AUTO_TEST_CASE(timers_delays_and_activities_of_one_time_end_in_the_order_in_which_they_were_started) {
    Engine engine;
    std::vector<std::uint32_t> order;
    engine.start_timer(3, 100);
    engine.start(20, {.duration = 60, .delay = 40});  // set when its delay is over
    engine.start(21, {.duration = 100});
    engine.start_timer(1, 100);
    engine.start_timer(2, 99);
    for (std::uint32_t tag = 0; engine.next(tag);) order.push_back(tag);
    const std::vector<std::uint32_t> expected{2, 3, 21, 1, 20};
    BOOST_TEST(order == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_slowed_for_a_while_ends_as_late_as_that_makes_it) {
    // Half speed from 100 to 200 of compute of 300: 350. A timer stands where it would have ended.
    Engine engine;
    const auto memory = engine.add_resource(10);
    const Demand wants{memory, 10}, takes{memory, 5};
    engine.start(1, {.duration = 300, .demands = {&wants, 1}, .priority = Priority::compute});
    engine.start(2, {.duration = 100, .delay = 100, .demands = {&takes, 1}});
    engine.start_timer(0, 300);
    const auto ends = run(engine);
    BOOST_TEST(ends.at(2) == 200);
    BOOST_TEST(ends.at(0) == 300);
    BOOST_TEST(ends.at(1) == 350);
}

BOOST_AUTO_TEST_CASE(a_chain_of_links_is_solved_bottleneck_first) {
    // Flow 0 crosses all links, flow i link i alone; capacities 1, 2, 3 and demands 2 each:
    // link 0 is the bottleneck: 2 x0 + 2 x1 = 1 gives 1/4; then 2 x2 = 2 - 1/2 gives 3/4; 2 x3 = 3 - 1/2 gives 1
    // (bound).
    Engine engine;
    std::vector<ResourceId> links;
    for (const double capacity : {1, 2, 3}) links.push_back(engine.add_resource(capacity));
    start(engine, 0, 100, {{links[0], 2}, {links[1], 2}, {links[2], 2}});
    for (std::uint32_t i = 0; i < 3; ++i) start(engine, 1 + i, 100, {{links[i], 2}});
    const double expected[] = {0.25, 0.25, 0.75, 1};
    for (std::uint32_t flow = 0; flow < 4; ++flow)
        BOOST_TEST(speed(engine, flow) == expected[flow], boost::test_tools::tolerance(float_tolerance));
}

BOOST_AUTO_TEST_CASE(capacity_may_change_under_way) {
    // Half speed from 0 to 100, full speed after: 50 of 80 done, 30 left.
    Engine engine;
    const auto cores = engine.add_resource(1);
    const Demand all{cores, 2};
    engine.start(1, {.duration = 80, .demands = {&all, 1}, .priority = Priority::compute});
    start(engine, 2, 100, {});
    std::uint32_t tag = 0;
    BOOST_TEST(engine.next(tag));
    BOOST_TEST(tag == 2u);
    engine.set_capacity(cores, 2);
    BOOST_TEST(engine.next(tag));
    BOOST_TEST(tag == 1u);
    BOOST_TEST(engine.now() == 130);
}

BOOST_AUTO_TEST_CASE(a_crowded_flow_is_slower_while_the_crowd_lasts) {
    // 0.5 of full speed beside the kernel until 100: 50 of 200 done, 150 left.
    Engine engine;
    const auto memory = engine.add_resource(1000);
    const Demand flow{memory, 1}, kernel{memory, 1};
    engine.start(1, {.duration = 200, .demands = {&flow, 1}, .speed_beside_attend = 0.5});
    engine.start(2, {.duration = 100, .demands = {&kernel, 1}, .priority = Priority::compute, .slows_transfers = true});
    const auto ends = run(engine);
    BOOST_TEST(ends.at(2) == 100);
    BOOST_TEST(ends.at(1) == 250);
}

BOOST_AUTO_TEST_CASE(an_activity_without_any_share_is_reported) {
    Engine engine;
    const auto nothing = engine.add_resource(0);
    start(engine, 0, 100, {{nothing, 1}});
    std::uint32_t tag = 0;
    BOOST_CHECK_EXCEPTION(engine.next(tag), Error, [](const auto& error) {
        return std::string(error.what()).find("stands still") != std::string::npos;
    });
}

struct System {
    unsigned resources;
    std::uint32_t flows;
    int trials, events;
    friend std::ostream& operator<<(std::ostream& out, const System& one) {
        return out << one.flows << " flows over " << one.resources << " resources";
    }
};

// Bottleneck fairness, checked from its definition: no resource is over its capacity, and every activity is at its
// bound or sits on a full resource where no other has a larger speed per weight. Of many connected activities those
// near a change alone are solved again.
BOOST_DATA_TEST_CASE(speeds_are_weighted_max_min_fair_as_activities_come_and_go,
                     data::make({System{6, 12, 300, 8}, System{300, 500, 1, 500}}), system) {
    std::mt19937 bits(3);
    constexpr double unit = 1e7;        // so that rounding to whole numbers is nothing
    constexpr double tolerance = 1e-5;  // speeds are rounded to float, a dozen of them on a resource
    for (int trial = 0; trial < system.trials; ++trial) {
        Engine engine;
        std::vector<double> capacities;
        for (unsigned i = 0; i < system.resources; ++i) {
            capacities.push_back(unit * (1000 + below(bits, 9000)));
            engine.add_resource(capacities.back());
        }
        struct Flow {
            std::vector<Demand> demands;
            double weight = 1;
        };
        std::vector<Flow> running(system.flows);
        const auto begin = [&](std::uint32_t tag) {
            std::set<ResourceId> chosen;
            for (int n = 1 + below(bits, 3); n > 0; --n)
                chosen.insert(static_cast<ResourceId>(below(bits, system.resources)));
            auto& flow = running[tag];
            flow = {{}, 1.0 + below(bits, 4)};
            for (const auto resource : chosen) flow.demands.push_back({resource, unit * (500 + below(bits, 4000))});
            start(engine, tag, 1'000'000 + below(bits, 1'000'000), flow.demands, flow.weight);
        };
        for (std::uint32_t tag = 0; tag < system.flows; ++tag) begin(tag);
        for (int event = 0; event < system.events; ++event) {
            std::vector<double> used(system.resources), largest(system.resources);
            for (std::uint32_t tag = 0; tag < system.flows; ++tag)
                for (const auto& [resource, amount] : running[tag].demands) {
                    const auto now = speed(engine, tag);
                    used[resource] += now * amount;
                    largest[resource] = std::max(largest[resource], now / running[tag].weight);
                }
            for (std::size_t i = 0; i < used.size(); ++i) BOOST_REQUIRE(used[i] <= capacities[i] * (1 + tolerance));
            for (std::uint32_t tag = 0; tag < system.flows; ++tag) {
                const auto now = speed(engine, tag);
                const bool justified = now == 1 || std::ranges::any_of(running[tag].demands, [&](const auto& demand) {
                                           const auto at = demand.resource;
                                           return used[at] >= capacities[at] * (1 - tolerance) &&
                                                  now / running[tag].weight >= largest[at] * (1 - tolerance);
                                       });
                BOOST_REQUIRE_MESSAGE(justified, "after " << event << " events a flow has speed " << now);
            }
            std::uint32_t tag = 0;
            BOOST_REQUIRE(engine.next(tag));
            begin(tag);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
