#include "sim/report/chakra_trace.hpp"
#include "layouts/program/program.hpp"
#include "scenario.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Lane;
using ringlab::layouts::OpKind;
using ringlab::layouts::Pass;
using ringlab::layouts::Schedule;

namespace {

// ---- A reader that knows et_def.proto and nothing of the writer ----

struct WireField {
    std::uint64_t field = 0, number = 0;
    std::string bytes;
};

std::uint64_t varint_of(const std::string& from, std::size_t& at) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(from.at(at++));
        value |= std::uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) return value;
    }
}

std::string bytes_of(const std::string& from, std::size_t& at) {
    const auto size = varint_of(from, at);
    BOOST_REQUIRE(size <= from.size() - at);
    at += size;
    return from.substr(at - size, size);
}

std::vector<WireField> fields_of(const std::string& message) {
    std::vector<WireField> fields;
    for (std::size_t at = 0; at < message.size();) {
        const auto key = varint_of(message, at);
        BOOST_REQUIRE((key % 8 == 0 || key % 8 == 2));  // a varint, or bytes behind their length
        auto& field = fields.emplace_back(WireField{key / 8, 0, {}});
        (key % 8 == 0 ? field.number = varint_of(message, at) : (field.bytes = bytes_of(message, at), 0));
    }
    return fields;
}

enum NodeType : std::uint64_t { comp = 4, send = 5, recv = 6 };

struct TraceNode {
    std::uint64_t id = 0, type = 0, micros = 0;
    std::string name;
    std::vector<std::uint64_t> after;
    std::map<std::string, std::uint64_t> values;   // of attributes
    std::map<std::string, std::uint64_t> members;  // field numbers of these values

    std::int64_t value(const std::string& attribute) const { return static_cast<std::int64_t>(values.at(attribute)); }
    bool is_served() const { return name.find("half of a fetch") != std::string::npos; }
};

TraceNode node_of(const std::string& message) {
    TraceNode node;
    for (const auto& [field, number, bytes] : fields_of(message)) {
        if (field == 1) node.id = number;
        if (field == 2) node.name = bytes;
        if (field == 3) node.type = number;
        if (field == 5)
            for (std::size_t at = 0; at < bytes.size();) node.after.push_back(varint_of(bytes, at));
        if (field == 7) node.micros = number;
        if (field == 10) {
            const auto attribute = fields_of(bytes);
            BOOST_REQUIRE(attribute.size() == 2u);
            node.values[attribute[0].bytes] = attribute[1].number;
            node.members[attribute[0].bytes] = attribute[1].field;
        }
    }
    return node;
}

std::vector<TraceNode> nodes_of(const std::string& trace) {
    std::size_t at = 0;
    const auto metadata = fields_of(bytes_of(trace, at));
    BOOST_TEST(metadata.at(0).field == 1u);  // version
    BOOST_TEST(!metadata.at(0).bytes.empty());
    std::vector<TraceNode> nodes;
    while (at < trace.size()) nodes.push_back(node_of(bytes_of(trace, at)));
    return nodes;
}

/// By GPU.
using Traces = std::map<std::int64_t, std::vector<TraceNode>>;

Traces traces_of(const ChakraTraces& traces) {
    Traces read;
    for (int rank = 0; rank < traces.ranks(); ++rank) read[traces.gpu(rank)] = nodes_of(traces.of_rank(rank));
    BOOST_TEST(read.size() == static_cast<std::size_t>(traces.ranks()));
    return read;
}

using MessageKey = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // source, destination, tag

MessageKey key_of(const TraceNode& node) {
    return {node.value("comm_src"), node.value("comm_dst"), node.value("comm_tag")};
}

/// Plays traces with links that take no time: a node starts when all that it waits for has ended, a message when both
/// its halves can start. A served send waits for nobody: its owner's memory can be read at any time. A GPU computes one
/// node at a time, and so does a host. Returns when the last node ends. Throws if nodes wait for each other.
std::int64_t replayed(const Traces& traces) {
    std::map<MessageKey, std::int64_t> can_send, can_receive;
    std::map<std::int64_t, std::map<std::uint64_t, std::int64_t>> ends;  // by GPU and id
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::pair<std::int64_t, std::int64_t>>> busy;
    std::int64_t last = 0;
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (const auto& [gpu, nodes] : traces)
            for (const auto& node : nodes) {
                if (ends[gpu].contains(node.id)) continue;
                std::int64_t ready = 0;
                bool waits = false;
                for (const auto other : node.after) {
                    const auto found = ends[gpu].find(other);
                    waits |= found == ends[gpu].end();
                    if (!waits) ready = std::max(ready, found->second);
                }
                if (waits) continue;
                auto end = ready;
                if (node.type == comp) {
                    end += node.value("duration_picoseconds");
                    if (end > ready) busy[{gpu, node.value("is_cpu_op")}].emplace_back(ready, end);
                } else {
                    (node.type == send ? can_send : can_receive)[key_of(node)] = ready;
                    const auto& others = node.type == send ? can_receive : can_send;
                    const auto other = others.find(key_of(node));
                    if (other == others.end() && !node.is_served()) continue;
                    if (!node.is_served()) end = std::max(end, other->second);
                }
                ends[gpu][node.id] = end;
                last = std::max(last, end);
                goes_on = true;
            }
    }
    for (const auto& [gpu, nodes] : traces) BOOST_TEST(ends[gpu].size() == nodes.size());  // no circle
    for (auto& [unit, times] : busy) {
        std::ranges::sort(times);
        for (std::size_t i = 1; i < times.size(); ++i) BOOST_TEST(times[i].first >= times[i - 1].second);
    }
    return last;
}

// ---- What must hold for every schedule ----

void require_messages_match(const Traces& traces, std::int64_t bytes_of_schedule) {
    std::map<MessageKey, std::int64_t> sent, received;
    std::int64_t bytes = 0;
    for (const auto& [gpu, nodes] : traces)
        for (const auto& node : nodes) {
            if (node.type == comp) continue;
            BOOST_TEST(node.value(node.type == send ? "comm_src" : "comm_dst") == gpu);
            BOOST_TEST((node.type == send ? sent : received).emplace(key_of(node), node.value("comm_size")).second);
            if (node.type == send) bytes += node.value("comm_size");
        }
    BOOST_TEST((sent == received));
    BOOST_TEST(bytes == bytes_of_schedule);
}

/// The operations that each one of the schedule must wait for, by id of their nodes; names tell which node is which.
void require_dependencies(const Schedule& schedule, int rank, const std::vector<TraceNode>& nodes) {
    std::map<int, const TraceNode*> by_op;
    std::map<std::uint64_t, int> op_of;
    std::set<std::uint64_t> ids;
    for (const auto& node : nodes) {
        BOOST_TEST(ids.insert(node.id).second);
        int of = 0, op = 0;
        if (std::sscanf(node.name.c_str(), "rank %d: operation %d", &of, &op) != 2) continue;
        BOOST_TEST(of == rank);
        by_op[op] = &node;
        op_of[node.id] = op;
    }
    std::map<Lane, int> last;
    auto ops = schedule.ops(rank);
    int index = 0;
    for (const auto* op = ops.next(); op; op = ops.next(), ++index) {
        std::set<int> expected(op->after().begin(), op->after().end()), found;
        if (last.contains(op->lane())) expected.insert(last[op->lane()]);
        last[op->lane()] = index;
        BOOST_REQUIRE(by_op.contains(index));
        for (const auto other : by_op[index]->after)
            if (op_of.contains(other)) found.insert(op_of[other]);
        BOOST_TEST((found == expected), layouts::describe(rank, index, *op));
    }
    BOOST_TEST(by_op.size() == static_cast<std::size_t>(index));
}

void require_true_to_schedule(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    const ChakraTraces written(schedule, machine, options, "test");
    const auto traces = traces_of(written);
    double flop = 0;
    std::int64_t bytes = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next()) {
            if (op->kind == OpKind::attend) flop += schedule.flop(*op);
            if (op->kind == OpKind::send || op->kind == OpKind::fetch) bytes += op->bytes;
        }
    }
    std::int64_t flop_of_nodes = 0;
    for (const auto& [gpu, nodes] : traces) {
        std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> sums;  // of the GPU and its host
        std::int64_t raised = 0;
        for (const auto& node : nodes) {
            if (node.type != comp) continue;
            flop_of_nodes += node.value("num_ops");
            auto& [exact, micros] = sums[node.value("is_cpu_op")];
            exact += node.value("duration_picoseconds");
            micros += static_cast<std::int64_t>(node.micros);
            // Work that takes less than a microsecond is given a whole one.
            raised += node.value("num_ops") > 0 && node.value("duration_picoseconds") < 1000000;
        }
        for (const auto& [of_host, sum] : sums) {
            const auto error = sum.second * 1000000 - sum.first;
            BOOST_TEST(error >= -500000);
            BOOST_TEST(error <= 500000 + raised * 1000000);
        }
    }
    // Counts of FLOP below 2^53 are whole numbers in a double.
    BOOST_TEST(static_cast<double>(flop_of_nodes) == flop * options.replicas);
    require_messages_match(traces, bytes * options.replicas);
    for (int rank = 0; rank < written.ranks(); ++rank)
        require_dependencies(schedule, rank % schedule.ranks(), traces.at(written.gpu(rank)));
    auto free = options;
    free.free = Cause::links;
    BOOST_TEST(replayed(traces) == simulate(schedule, machine, free).makespan);
}

std::vector<std::string> schedules_of_traces() {
    return tests::schedules_for({.query_heads = 8, .kv_heads = 4}, {3, 4});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(chakra_trace)

BOOST_DATA_TEST_CASE(messages_dependencies_sums_and_time_with_free_links_are_those_of_the_schedule,
                     tests::Names(schedules_of_traces), schedule_name) {
    const auto calibrated = shipped_machine("h200_cluster");
    const auto kernels = shipped_machine("4xh200_calibrated_nccl");
    tests::Combinations combinations;
    for (const auto pass : {Pass::forward, Pass::backward})
        for (const auto* mask : {"causal", "window:40,0"})
            for (const int ranks : {3, 4}) {
                const Scenario scenario{.ranks = ranks,
                                        .tokens_per_rank = 48,
                                        .mask = mask,
                                        .schedule_name = schedule_name,
                                        .pass = pass,
                                        .query_heads = 8,
                                        .kv_heads = 4};
                std::unique_ptr<Schedule> schedule;
                try {
                    schedule = scenario.schedule();
                } catch (const Error&) {
                }
                if (!combinations.take(schedule != nullptr)) continue;
                BOOST_TEST_CONTEXT(scenario.describe()) {
                    require_true_to_schedule(*schedule, busy_machine(), {});
                    require_true_to_schedule(*schedule, busy_machine(), rate_options());
                    require_true_to_schedule(*schedule, calibrated, {});
                    require_true_to_schedule(*schedule, kernels, {});
                }
            }
}

BOOST_AUTO_TEST_CASE(keys_that_are_made_of_a_latent_are_in_the_traces) {
    const layouts::Problem problem{.tokens = 128,
                                   .query_heads = 8,
                                   .kv_heads = 8,
                                   .head_dim = 192,
                                   .value_dim = 128,
                                   .latent = {.rank = 512, .shared = 64}};
    for (const auto pass : {Pass::forward, Pass::backward})
        for (const auto* schedule_name : {"ring", "expanded:ring"}) {
            const auto schedule =
                schedule_of(problem, "causal", "zigzag", 4, {.schedule = schedule_name, .pass = pass});
            require_true_to_schedule(*schedule, busy_machine(), {});
        }
}

BOOST_AUTO_TEST_CASE(rings_side_by_side_have_traces_by_gpu) {
    const auto schedule = Scenario{.ranks = 2}.schedule();
    SimOptions options;
    options.replicas = 3;
    options.placement = {0, 3, 1, 4, 2, 5};
    require_true_to_schedule(*schedule, busy_machine(), options);
    const ChakraTraces traces(*schedule, busy_machine(), options, "test");
    BOOST_TEST(traces.gpu(3) == 4);
    for (const auto& node : nodes_of(traces.of_rank(3)))
        if (node.type == send) BOOST_TEST(node.value("comm_dst") == 1);
}

BOOST_AUTO_TEST_CASE(attributes_have_the_types_that_readers_expect_and_traces_are_the_same_each_time) {
    const auto schedule = Scenario{.ranks = 2}.schedule();
    const ChakraTraces traces(*schedule, busy_machine(), {}, "test");
    const std::map<std::string, std::uint64_t> expected{
        {"is_cpu_op", 27}, {"num_ops", 9},  {"tensor_size", 13}, {"comm_size", 9},
        {"comm_src", 7},   {"comm_dst", 7}, {"comm_tag", 7},     {"duration_picoseconds", 9}};
    std::set<std::string> seen;
    for (const auto& node : nodes_of(traces.of_rank(1)))
        for (const auto& [name, member] : node.members) {
            BOOST_TEST(member == expected.at(name), name);
            seen.insert(name);
        }
    BOOST_TEST(seen.size() == expected.size());
    BOOST_TEST(ChakraTraces(*schedule, busy_machine(), {}, "test").of_rank(1) == traces.of_rank(1));
}

// The first node of a file, byte by byte, as protoc's encoder writes it for the same fields.
BOOST_AUTO_TEST_CASE(a_file_begins_with_its_metadata) {
    const auto schedule = Scenario{.ranks = 2}.schedule();
    const auto trace = ChakraTraces(*schedule, busy_machine(), {}, "r").of_rank(1);
    using namespace std::string_literals;
    const auto expected =
        "\x42"s  // length: 66
        "\x0a\x05"
        "0.0.4"                                                         // version
        "\x12\x25\x0a\x09generator\xea\x01\x17Ringlab execution trace"  // 37 bytes
        "\x12\x09\x0a\x03run\xea\x01\x01r"
        "\x12\x07\x0a\x03gpu\x48\x01";
    BOOST_TEST(trace.substr(0, expected.size()) == expected);
}

BOOST_AUTO_TEST_SUITE_END()
