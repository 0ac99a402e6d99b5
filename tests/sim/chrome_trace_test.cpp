#include "sim/report/chrome_trace.hpp"
#include "scenario.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <sstream>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;

namespace {

nlohmann::json written(const std::vector<TraceGroup>& groups, layouts::Interval ranks = all_ranks) {
    std::ostringstream out;
    write_chrome_trace(out, groups, ranks);
    return nlohmann::json::parse(out.str()).at("traceEvents");
}

Prediction traced(const Scenario& scenario) {
    SimOptions options;
    options.trace = true;
    return simulate(*scenario.schedule(), busy_machine(), options);
}

std::size_t count(const nlohmann::json& events, const std::string& phase) {
    std::size_t found = 0;
    for (const auto& event : events) found += event.at("ph") == phase;
    return found;
}

void require_no_overlap(const nlohmann::json& events) {
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
    for (const auto& event : events)
        if (event.at("ph") == "X")
            tracks[{event.at("pid"), event.at("tid")}].push_back(
                {event.at("ts").get<double>(), event.at("ts").get<double>() + event.at("dur").get<double>()});
    for (auto& [track, slices] : tracks) {
        std::sort(slices.begin(), slices.end());
        // Half a picosecond: the sum of two decimals read back as double.
        for (std::size_t i = 1; i < slices.size(); ++i) BOOST_TEST(slices[i].first >= slices[i - 1].second - 0.5e-6);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(chrome_trace)

BOOST_AUTO_TEST_CASE(every_span_is_a_slice_and_every_hop_an_arrow_without_overlap) {
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward})
        for (const auto* schedule_name : {"ring", "all-gather:2", "pull"}) {
            const auto prediction = traced({.ranks = 4, .schedule_name = schedule_name, .pass = pass});
            const auto events = written({{"predicted", &prediction.timeline, prediction.host_issue}});
            std::size_t receives = 0;
            for (const auto& span : prediction.timeline.spans) receives += span.kind == layouts::OpKind::receive;
            std::size_t issues = 0, waits = 0, waited = 0;
            for (const auto& span : prediction.timeline.spans) waited += span.posted < span.begin;
            for (const auto& event : events) {
                issues += event.at("ph") == "X" && event.at("cat") == "issue";
                waits += event.at("ph") == "X" && event.at("cat") == "wait";
            }
            BOOST_TEST(count(events, "X") - issues - waits == prediction.timeline.spans.size());
            BOOST_TEST(waits == waited);
            BOOST_TEST(issues > 0u);
            BOOST_TEST(count(events, "s") == receives);
            BOOST_TEST(count(events, "f") == receives);
            require_no_overlap(events);
        }
}

BOOST_AUTO_TEST_CASE(times_are_microseconds_to_the_picosecond) {
    layouts::Timeline timeline{1, {}};
    timeline.spans.push_back({.posted = 1000000, .begin = 1234567, .end = 5000001});
    timeline.spans.push_back({.posted = -1500000, .begin = -1500000, .end = -1});
    std::ostringstream out;
    const TraceGroup group{"measured", &timeline, {}};
    write_chrome_trace(out, {&group, 1});
    BOOST_TEST(out.str().find("\"ts\":1.234567,\"dur\":3.765434") != std::string::npos, out.str());
    BOOST_TEST(out.str().find("\"ts\":1.000000,\"dur\":0.234567") != std::string::npos, out.str());  // waiting
    BOOST_TEST(out.str().find("\"ts\":-1.500000,\"dur\":1.499999") != std::string::npos, out.str());
}

BOOST_AUTO_TEST_CASE(groups_are_processes_of_their_own_and_names_are_escaped) {
    const auto prediction = traced({.ranks = 3, .layout = "striped"});
    const auto events =
        written({{"predicted", &prediction.timeline, {}}, {"mea\"sured\n\xff\\", &prediction.timeline, {}}});
    std::set<int> processes;
    std::set<std::string> names;
    for (const auto& event : events) {
        processes.insert(event.at("pid").get<int>());
        if (event.at("name") == "process_name") names.insert(event.at("args").at("name").get<std::string>());
    }
    BOOST_TEST(processes.size() == 6u);
    BOOST_TEST(names.contains("predicted rank 2"));
    BOOST_TEST(names.contains("mea\"sured\n\uFFFD\\ rank 0"));
    require_no_overlap(events);
}

BOOST_AUTO_TEST_CASE(measured_spans_that_overlap_go_to_further_tracks) {
    layouts::Timeline timeline{1, {}};
    for (int i = 0; i < 5; ++i)
        timeline.spans.push_back({.op = i, .posted = i * 10, .begin = i * 10, .end = i * 10 + 25});
    const auto events = written({{"measured", &timeline, {}}});
    BOOST_TEST(count(events, "X") == 5u);
    require_no_overlap(events);
}

BOOST_AUTO_TEST_CASE(some_ranks_have_no_loose_arrows) {
    const auto prediction = traced({.ranks = 8});
    const auto events = written({{"predicted", &prediction.timeline, prediction.host_issue}}, {2, 4});
    for (const auto& event : events) {
        const int rank = event.at("pid").get<int>() - 1;
        BOOST_TEST((rank == 2 || rank == 3));
    }
    BOOST_TEST(count(events, "s") == count(events, "f"));
    BOOST_TEST(count(events, "s") > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
