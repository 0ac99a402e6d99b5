#include "sim/report/chakra_trace.hpp"

#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace ringlab::sim {
namespace {

using layouts::Instruction;
using layouts::RankProgram;
using Id = std::uint64_t;

std::size_t at(std::int64_t number) { return static_cast<std::size_t>(number); }

/// Field numbers and enum values of et_def.proto, those that are written here.
namespace chakra {
constexpr int metadata_version = 1, metadata_attribute = 2;
constexpr int node_id = 1, node_name = 2, node_type = 3, node_data_deps = 5, node_duration_micros = 7, node_attr = 10;
constexpr int attribute_name = 1;
// Members of an attribute's value. Which one readers expect depends on the attribute.
constexpr int value_int32 = 7, value_int64 = 9, value_uint64 = 13, value_bool = 27, value_string = 29;
constexpr std::uint64_t comp_node = 4, comm_send_node = 5, comm_recv_node = 6;
constexpr const char* version = "0.0.4";
}  // namespace chakra

/// A message in the wire format of Protocol Buffers. Fields stand in it in the order in which they are added.
class ProtobufMessage {
public:
    /// A field of type uint32, uint64, bool or enum; int32 and int64 likewise if the value is not negative.
    ProtobufMessage& number(int field, std::uint64_t value) {
        tag(field, WireType::varint);
        varint(value);
        return *this;
    }

    /// A field of type string or bytes.
    ProtobufMessage& text(int field, std::string_view value) {
        tag(field, WireType::length_delimited);
        varint(value.size());
        bytes_ += value;
        return *this;
    }

    /// A field that is itself a message.
    ProtobufMessage& message(int field, const ProtobufMessage& value) { return text(field, value.bytes_); }

    /// A repeated field of numbers, packed.
    ProtobufMessage& numbers(int field, const std::vector<std::uint64_t>& values) {
        if (values.empty()) return *this;
        ProtobufMessage packed;
        for (const auto value : values) packed.varint(value);
        return message(field, packed);
    }

    /// The message behind its length, as it stands in a stream of messages.
    std::string delimited() const {
        ProtobufMessage length;
        length.varint(bytes_.size());
        return length.bytes_ + bytes_;
    }

private:
    enum class WireType : std::uint64_t { varint = 0, length_delimited = 2 };

    void tag(int field, WireType type) {
        varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    void varint(std::uint64_t value) {
        for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
        bytes_ += static_cast<char>(value);
    }

    std::string bytes_;
};

ProtobufMessage attribute(std::string_view name, int member, std::uint64_t value) {
    return std::move(ProtobufMessage().text(chakra::attribute_name, name).number(member, value));
}

ProtobufMessage attribute(std::string_view name, std::string_view value) {
    return std::move(ProtobufMessage().text(chakra::attribute_name, name).text(chakra::value_string, value));
}

/// Rounds consecutive durations to whole microseconds so that every partial sum is right to within one.
class MicrosecondRounder {
public:
    /// Returns at least `least`, because ASTRA-sim refuses work that takes no time.
    std::uint64_t operator()(Picoseconds duration, std::uint64_t least) {
        constexpr Picoseconds per_microsecond = 1000000;
        exact_ = layouts::checked_sum(exact_, duration);
        const auto rounded = static_cast<std::uint64_t>((exact_ + per_microsecond / 2) / per_microsecond);
        const auto micros = std::max(rounded > given_ ? rounded - given_ : 0, least);
        given_ += micros;
        return micros;
    }

private:
    Picoseconds exact_ = 0;
    std::uint64_t given_ = 0;
};

/// The stream of one rank's nodes.
class NodeWriter {
public:
    void metadata(const std::string& name, int gpu) {
        ProtobufMessage metadata;
        metadata.text(chakra::metadata_version, chakra::version)
            .message(chakra::metadata_attribute, attribute("generator", chakra_generator))
            .message(chakra::metadata_attribute, attribute("run", name))
            .message(chakra::metadata_attribute, attribute("gpu", chakra::value_int64, static_cast<Id>(gpu)));
        stream_ += metadata.delimited();
    }

    void compute(Id id, const std::string& name, const std::vector<Id>& after, Picoseconds duration, std::uint64_t flop,
                 std::uint64_t bytes) {
        auto node = begin(id, name, chakra::comp_node, after);
        node.number(chakra::node_duration_micros, gpu_(duration, flop > 0 ? 1 : 0));
        end(node, duration, false, flop, bytes);
    }

    void issue(Id id, const std::vector<Id>& after, Picoseconds duration) {
        auto node = begin(id, "host issues", chakra::comp_node, after);
        node.number(chakra::node_duration_micros, host_(duration, 0));
        end(node, duration, true, 0, 0);
    }

    void message(Id id, const std::string& name, const std::vector<Id>& after, bool sends, std::int64_t bytes,
                 int source, int destination, std::uint64_t tag) {
        auto node = begin(id, name, sends ? chakra::comm_send_node : chakra::comm_recv_node, after);
        node.message(chakra::node_attr, attribute("is_cpu_op", chakra::value_bool, 0))
            .message(chakra::node_attr, attribute("comm_size", chakra::value_int64, static_cast<Id>(bytes)))
            .message(chakra::node_attr, attribute("comm_src", chakra::value_int32, static_cast<Id>(source)))
            .message(chakra::node_attr, attribute("comm_dst", chakra::value_int32, static_cast<Id>(destination)))
            .message(chakra::node_attr, attribute("comm_tag", chakra::value_int32, tag));
        stream_ += node.delimited();
    }

    std::string take() { return std::move(stream_); }

private:
    static ProtobufMessage begin(Id id, const std::string& name, std::uint64_t type, const std::vector<Id>& after) {
        ProtobufMessage node;
        node.number(chakra::node_id, id).text(chakra::node_name, name).number(chakra::node_type, type);
        node.numbers(chakra::node_data_deps, after);
        return node;
    }

    void end(ProtobufMessage& node, Picoseconds duration, bool of_host, std::uint64_t flop, std::uint64_t bytes) {
        node.message(chakra::node_attr, attribute("is_cpu_op", chakra::value_bool, of_host ? 1 : 0))
            .message(chakra::node_attr, attribute("num_ops", chakra::value_int64, flop))
            .message(chakra::node_attr, attribute("tensor_size", chakra::value_uint64, bytes))
            .message(chakra::node_attr,
                     attribute("duration_picoseconds", chakra::value_int64, static_cast<Id>(duration)));
        stream_ += node.delimited();
    }

    std::string stream_;
    MicrosecondRounder gpu_, host_;
};

/// Bytes of all parts that an operation reads or writes at its rank.
std::uint64_t bytes_touched(const layouts::Schedule& schedule, const layouts::Op& op) {
    std::int64_t bytes = 0;
    for (const auto& operand : layouts::Operands(op, schedule.options().pass))
        bytes += schedule.bytes(operand.pool, operand.slot, operand.part);
    return static_cast<std::uint64_t>(bytes);
}

/// The id of each instruction. Sends come first; otherwise ids follow the order of the program.
std::vector<Id> ids_of(const RankProgram& program) {
    std::vector<Id> ids(program.code.size());
    Id next = 0;
    for (const bool sends : {true, false})
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (program.code[i].sends() == sends) ids[i] = next++;
    return ids;
}

std::vector<std::vector<std::uint64_t>> message_tags(const layouts::Program& program) {
    std::vector<std::vector<std::uint64_t>> tags;
    for (const auto& rank : program.ranks) tags.emplace_back(rank.code.size());
    std::map<std::pair<int, int>, std::uint64_t> count;  // number of messages, by source and destination
    for (const auto& rank : program.ranks)
        for (std::size_t i = 0; i < rank.code.size(); ++i) {
            const auto& send = rank.code[i];
            if (!send.sends()) continue;
            const auto tag = ++count[{rank.rank, send.op.peer}];
            require(tag <= std::numeric_limits<std::int32_t>::max(),
                    "rank {} sends more than 2^31 messages to rank {}; an execution trace has 32 bits for tags",
                    rank.rank, send.op.peer);
            tags[at(rank.rank)][i] = tags[at(send.op.peer)][at(send.partner)] = tag;
        }
    return tags;
}

SimOptions with_free_links(SimOptions options) {
    options.free = Cause::links;
    options.trace = true;
    return options;
}

}  // namespace

ChakraTraces::ChakraTraces(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                           std::string name)
    : schedule_(schedule),
      name_(std::move(name)),
      placement_(options.placement),
      program_(layouts::resolve(schedule, layouts::Fetches::served)),
      prediction_(simulate(schedule, machine, with_free_links(options))),
      tags_(message_tags(program_)) {
    auto same = with_free_links(options);
    same.compute = ComputeModel::rate;  // attends are not priced here, and this is fastest
    const CostModel cost(schedule, machine, same, prediction_.clocks);
    std::size_t spans = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
        first_span_.push_back(spans);
        spans += program_.ranks[at(rank % schedule.ranks())].operations;
        begins_of_pass_.push_back(cost.begin_of_pass(rank));
        ends_of_pass_.push_back(cost.end_of_pass(rank));
    }
    require(spans == prediction_.timeline.spans.size(), "the program has {} operations, but {} were simulated", spans,
            prediction_.timeline.spans.size());
}

std::string ChakraTraces::of_rank(int rank) const {
    const int ring_rank = rank % schedule_.ranks(), first_of_ring = rank - ring_rank;
    const auto& program = program_.ranks[at(ring_rank)];
    const auto ids = ids_of(program);
    const auto span = first_span_[at(rank)];
    NodeWriter out;
    out.metadata(name_, gpu(rank));

    // The host: a node for each moment at which it has issued something.
    auto next_id = static_cast<Id>(ids.size());
    std::map<Picoseconds, Id> issued;
    for (std::size_t i = 0; i < program.operations; ++i)
        if (const auto end = prediction_.host_issue[span + i].end; end > 0) issued[end] = 0;
    std::vector<Id> after;
    Picoseconds before = 0;
    for (auto& [end, id] : issued) {
        id = next_id++;
        out.issue(id, after, end - before);
        after = {id};
        before = end;
    }

    // The pass: its begin, its operations, its end.
    std::map<layouts::Lane, Id> last;  // by lane
    if (begins_of_pass_[at(rank)] > 0) {
        last[layouts::compute_lane] = next_id;
        out.compute(next_id++, "begin of the pass", {}, begins_of_pass_[at(rank)], 0, 0);
    }
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const auto& instruction = program.code[i];
        const auto& op = instruction.op;
        std::set<Id> waits_for;
        for (const auto other : op.after()) waits_for.insert(ids[at(other)]);
        if (const auto found = last.find(op.lane()); found != last.end()) waits_for.insert(found->second);
        if (!instruction.served)
            if (const auto found = issued.find(prediction_.host_issue[span + i].end); found != issued.end())
                waits_for.insert(found->second);
        last[op.lane()] = ids[i];
        const std::vector<Id> deps(waits_for.begin(), waits_for.end());
        const auto name = layouts::describe(ring_rank, static_cast<layouts::OpIndex>(i), instruction);
        if (op.transfers()) {
            const auto own = gpu(rank), other = gpu(first_of_ring + op.peer);
            const bool sends = instruction.sends();
            out.message(ids[i], name, deps, sends, op.bytes, sends ? own : other, sends ? other : own,
                        tags_[at(ring_rank)][i]);
            continue;
        }
        const auto& played = prediction_.timeline.spans[span + i];
        const auto flop = op.kind == layouts::OpKind::attend ? std::llround(schedule_.flop(op)) : 0;
        out.compute(ids[i], name, deps, played.end - played.begin, static_cast<std::uint64_t>(flop),
                    bytes_touched(schedule_, op));
    }
    if (ends_of_pass_[at(rank)] > 0) {
        std::set<Id> all;
        for (const auto& [lane, id] : last) all.insert(id);
        out.compute(next_id, "end of the pass", {all.begin(), all.end()}, ends_of_pass_[at(rank)], 0, 0);
    }
    return out.take();
}

}  // namespace ringlab::sim
