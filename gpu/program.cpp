#include "gpu/program.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace ringlab::gpu {

using layouts::DType;
using layouts::HeadRange;
using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::Pass;
using layouts::Payload;
using layouts::Schedule;

namespace {

constexpr std::size_t slot_alignment = 256;  // of bytes: vector loads and copy engines like it

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
std::size_t aligned(std::size_t bytes) { return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment; }

std::size_t block_head_bytes(const Schedule& schedule, int owner, DType dtype) {
    const auto& p = schedule.problem();
    return size(p.batch * schedule.layout().shard_tokens(owner) * (p.head_dim + p.value_dim) * bytes_of(dtype));
}

/// What the slots of one payload hold as the operations go by. Program order stands for every order that lanes and
/// dependencies allow, as conflicting accesses are ordered by them.
class SlotContents {
public:
    SlotContents(const SlotMap& map, int rank, int all_heads, const char* name) : map_(map), rank_(rank), name_(name) {
        held_.resize(static_cast<std::size_t>(map.slots()) + 1);
        held_[0] = {rank, {0, all_heads}};
    }

    std::size_t read(int slot, int owner, HeadRange heads) const {
        const auto& held = at(slot);
        require(held.owner == owner && held.heads.begin <= heads.begin && heads.end <= held.heads.end,
                "rank {}: {} slot {} is read for heads {}..{} of rank {}'s block, but holds heads {}..{} of {}", rank_,
                name_, slot, heads.begin, heads.end - 1, owner, held.heads.begin, held.heads.end - 1, held.owner);
        return map_.offset(slot, owner, heads.begin - held.heads.begin);
    }

    std::size_t write(int slot, int owner, HeadRange heads) {
        if (slot == 0) return read(slot, owner, heads);
        at(slot);
        require(heads.count() <= map_.slot_heads(slot), "rank {}: {} slot {} is to hold {} heads, but has room for {}",
                rank_, name_, slot, heads.count(), map_.slot_heads(slot));
        held_[static_cast<std::size_t>(slot)] = {owner, heads};
        return map_.offset(slot, owner, 0);
    }

private:
    struct Held {
        int owner = -1;
        HeadRange heads;
    };

    const Held& at(int slot) const {
        require(0 <= slot && static_cast<std::size_t>(slot) < held_.size(),
                "rank {}: the schedule uses {} slot {}, but asked for scratch slots 1..{}", rank_, name_, slot,
                held_.size() - 1);
        return held_[static_cast<std::size_t>(slot)];
    }

    const SlotMap& map_;
    int rank_;
    const char* name_;
    std::vector<Held> held_;
};

/// First and last attend of each head range: where the running softmax begins and ends.
void mark_first_and_last(Program& program, OpKind kind) {
    std::map<std::pair<int, int>, Instruction*> latest;
    for (auto& instruction : program.code) {
        if (instruction.op.kind != kind) continue;
        const auto [begin, end] = instruction.op.heads;
        const auto [entry, is_new] = latest.try_emplace({begin, end}, nullptr);
        instruction.first = is_new;
        entry->second = &instruction;
    }
    int reached = 0;
    for (auto& [heads, instruction] : latest) {
        require(heads.first >= reached, "rank {}: attends take heads in overlapping ranges, {}..{} among them",
                program.rank, heads.first, heads.second - 1);
        reached = heads.second;
        instruction->last = true;
    }
}

/// Runs of fused attends. An attend that waits for what waits for another one of its run begins a new run.
std::vector<std::vector<std::size_t>> find_joins(const Program& program) {
    std::vector<std::vector<std::size_t>> joins;
    std::vector<std::size_t> join;
    // By operation: 1 + the last attend that must have ended before it can begin, apart from the compute lane's order.
    std::vector<std::size_t> needs(program.operations);
    std::array<std::size_t, layouts::lane_count> lane_needs{};
    for (std::size_t i = 0; i < program.operations; ++i) {
        const auto& op = program.code[i].op;
        for (const auto before : op.after()) {
            const auto which = size(before);
            needs[i] =
                std::max({needs[i], needs[which], program.code[which].op.kind == OpKind::attend ? which + 1 : 0});
        }
        if (op.lane != layouts::Lane::compute) {
            auto& lane = lane_needs[static_cast<std::size_t>(op.lane)];
            lane = needs[i] = std::max(needs[i], lane);
            continue;
        }
        const bool continues = op.kind == OpKind::attend && op.fused && !join.empty() && needs[i] <= join.front();
        if (!continues) {
            if (join.size() > 1) joins.push_back(join);
            join.clear();
        }
        if (op.kind == OpKind::attend) join.push_back(i);
    }
    if (join.size() > 1) joins.push_back(join);
    return joins;
}

/// Whether an operation takes in the own gradient before anything has overwritten it, or nothing ever does.
bool adds_to_own_gradient(const Program& program, int all_heads) {
    std::vector<bool> written(size(all_heads));
    for (std::size_t i = 0; i < program.operations; ++i) {
        const auto& op = program.code[i].op;
        const bool overwrites = (op.kind == OpKind::attend && op.gradient_slot == 0) ||
                                (op.kind == OpKind::receive && op.payload == Payload::dkv && op.slot == 0);
        const bool reads = (op.kind == OpKind::add && (op.slot == 0 || op.gradient_slot == 0)) ||
                           (op.kind == OpKind::send && op.payload == Payload::dkv && op.slot == 0);
        for (int head = op.heads.begin; head < op.heads.end; ++head) {
            if (reads && !written[size(head)]) return true;
            if (overwrites) written[size(head)] = true;
        }
    }
    return std::find(written.begin(), written.end(), false) != written.end();
}

Program resolve(const Schedule& schedule, int rank) {
    Program program;
    program.rank = rank;
    program.pass = schedule.options().pass;
    auto stream = schedule.ops(rank);
    bool arrives_at_home = false;
    while (const auto* op = stream.next()) {
        program.code.emplace_back().op = *op;
        arrives_at_home |= op->kind == OpKind::receive && op->payload == Payload::dkv && op->slot == 0;
    }
    program.operations = program.code.size();
    // A gradient that is summed at home is summed in fp32; one that arrives complete stays as it came.
    if (arrives_at_home) program.own_gradient_dtype = schedule.options().gradient_dtype;

    const int all_heads = static_cast<int>(schedule.problem().kv_heads);
    const SlotMap kv_map(schedule, rank, Payload::kv, schedule.problem().dtype, schedule.slots());
    const SlotMap gradient_map(schedule, rank, Payload::dkv, program.own_gradient_dtype, schedule.slots());
    SlotContents kv(kv_map, rank, all_heads, "K/V"), gradients(gradient_map, rank, all_heads, "dK/dV");
    for (std::size_t i = 0; i < program.operations; ++i) {
        auto& instruction = program.code[i];
        const auto& op = instruction.op;
        auto& slots = op.payload == Payload::kv ? kv : gradients;
        const auto& map = op.payload == Payload::kv ? kv_map : gradient_map;
        switch (op.kind) {
            case OpKind::attend:
                instruction.local = kv.read(op.slot, op.owner, op.heads);
                if (program.pass == Pass::backward)
                    instruction.gradient = gradients.write(op.gradient_slot, op.owner, op.heads);
                break;
            case OpKind::merge: break;
            case OpKind::add:
                instruction.local = gradients.read(op.slot, op.owner, op.heads);
                instruction.gradient = gradients.read(op.gradient_slot, op.owner, op.heads);
                break;
            case OpKind::send: instruction.local = slots.read(op.slot, op.owner, op.heads); break;
            case OpKind::receive: instruction.local = slots.write(op.slot, op.owner, op.heads); break;
            case OpKind::fetch:
                instruction.local = slots.write(op.slot, op.owner, op.heads);
                if (op.peer != op.owner || op.payload != Payload::kv)
                    fail("{} is not of its owner's K/V", describe(rank, instruction, static_cast<OpIndex>(i)));
                break;
        }
        if (op.lane == layouts::Lane::compute) continue;
        const auto bytes = map.head_bytes(op.slot, op.owner) * static_cast<std::size_t>(op.heads.count());
        if (bytes != static_cast<std::size_t>(op.bytes))
            fail("{} is to move {} bytes, but the slot holds {} for them",
                 describe(rank, instruction, static_cast<OpIndex>(i)), op.bytes, bytes);
    }
    if (program.pass == Pass::forward) mark_first_and_last(program, OpKind::attend);
    mark_first_and_last(program, OpKind::merge);
    program.joins = find_joins(program);
    program.adds_to_own_gradient = program.pass == Pass::backward && adds_to_own_gradient(program, all_heads);
    return program;
}

/// The owner's halves of fetches, in the order of the algorithm's steps: every rank serves and fetches in this order.
void serve(const Schedule& schedule, std::vector<Program>& programs) {
    struct Served {
        int fetcher;
        Instruction* fetch;
    };
    std::vector<std::vector<Served>> by_owner(programs.size());
    for (auto& program : programs)
        for (auto& instruction : program.code)
            if (instruction.op.kind == OpKind::fetch)
                by_owner[static_cast<std::size_t>(instruction.op.owner)].push_back({program.rank, &instruction});
    std::vector<std::vector<Instruction>> added(programs.size());
    for (std::size_t owner = 0; owner < programs.size(); ++owner) {
        std::stable_sort(by_owner[owner].begin(), by_owner[owner].end(), [](const Served& a, const Served& b) {
            const auto key = [](const Served& x) { return std::tuple(x.fetch->op.heads.begin, x.fetch->op.step); };
            return key(a) < key(b);
        });
        const SlotMap map(schedule, static_cast<int>(owner), Payload::kv, schedule.problem().dtype, schedule.slots());
        for (const auto& [fetcher, fetch] : by_owner[owner]) {
            Instruction send;
            send.op = fetch->op;
            send.op.kind = OpKind::send;
            send.op.lane = layouts::Lane::send_kv;
            send.op.peer = fetcher;
            send.op.slot = 0;
            send.op.after_count = 0;
            send.served = true;
            send.local = map.offset(0, static_cast<int>(owner), fetch->op.heads.begin);
            send.remote = fetch->local;
            added[owner].push_back(send);
        }
    }
    for (auto& program : programs) {
        // From here on the fetch is the receiving half of an ordinary message.
        for (auto& instruction : program.code) instruction.two_sided = instruction.op.kind == OpKind::fetch;
        const auto& sends = added[static_cast<std::size_t>(program.rank)];
        program.code.insert(program.code.end(), sends.begin(), sends.end());
    }
}

/// Tells each send where its receiver wants it: the k-th message of a payload between two ranks is the k-th receive.
void match_messages(std::vector<Program>& programs) {
    using Channel = std::tuple<int, int, Payload>;  // from, to
    std::map<Channel, std::vector<std::pair<const Instruction*, std::size_t>>> receives;
    for (const auto& program : programs)
        for (std::size_t i = 0; i < program.code.size(); ++i)
            if (const auto& op = program.code[i].op; program.code[i].receives())
                receives[{op.peer, program.rank, op.payload}].emplace_back(&program.code[i], i);
    std::map<Channel, std::size_t> sent;
    for (auto& program : programs) {
        for (std::size_t i = 0; i < program.code.size(); ++i) {
            auto& send = program.code[i];
            if (send.op.kind != OpKind::send) continue;
            const Channel channel{program.rank, send.op.peer, send.op.payload};
            const auto& queue = receives[channel];
            auto& count = sent[channel];
            const auto what = [&] { return describe(program.rank, send, static_cast<OpIndex>(i)); };
            if (count == queue.size()) fail("{} has no receive there", what());
            const auto& receive = *queue[count++].first;
            if (receive.op.bytes != send.op.bytes || receive.op.owner != send.op.owner ||
                receive.op.heads != send.op.heads)
                fail("{} has {} bytes, and the receive there expects {} bytes of rank {}'s block", what(),
                     send.op.bytes, receive.op.bytes, receive.op.owner);
            send.remote = receive.local;
        }
    }
    for (const auto& [channel, queue] : receives) {
        if (sent[channel] == queue.size()) continue;
        const auto& [receive, index] = queue[sent[channel]];
        fail("{} has no send there", describe(std::get<1>(channel), *receive, static_cast<OpIndex>(index)));
    }
}

void locate_fetches(const Schedule& schedule, std::vector<Program>& programs) {
    for (auto& program : programs)
        for (auto& instruction : program.code)
            if (const auto& op = instruction.op; op.kind == OpKind::fetch)
                instruction.remote =
                    SlotMap(schedule, op.owner, Payload::kv, schedule.problem().dtype, schedule.slots())
                        .offset(0, op.owner, op.heads.begin);
}

}  // namespace

SlotMap::SlotMap(const Schedule& schedule, int rank, Payload payload, DType own_dtype, layouts::SlotPlan plan)
    : schedule_(schedule),
      own_dtype_(own_dtype),
      scratch_dtype_(payload == Payload::kv ? schedule.problem().dtype : schedule.options().gradient_dtype),
      slots_(payload == Payload::kv ? plan.kv_slots : plan.gradient_slots),
      all_heads_(static_cast<int>(schedule.problem().kv_heads)),
      slot_heads_(payload == Payload::kv ? plan.kv_slot_heads : plan.gradient_slot_heads) {
    const bool has_own = payload == Payload::kv || schedule.options().pass == Pass::backward;
    own_bytes_ = has_own ? aligned(block_head_bytes(schedule, rank, own_dtype_) * size(all_heads_)) : 0;
    std::size_t largest = 0;
    for (int owner = 0; owner < schedule.ranks(); ++owner)
        largest = std::max(largest, block_head_bytes(schedule, owner, scratch_dtype_));
    slot_bytes_ = aligned(largest * size(slot_heads_));
}

std::size_t SlotMap::bytes() const { return own_bytes_ + scratch_bytes(); }
std::size_t SlotMap::scratch_bytes() const { return slot_bytes_ * size(slots_); }

std::size_t SlotMap::head_bytes(int slot, int owner) const { return block_head_bytes(schedule_, owner, dtype(slot)); }

std::size_t SlotMap::offset(int slot, int owner, int head) const {
    const auto begin = slot == 0 ? 0 : own_bytes_ + slot_bytes_ * size(slot - 1);
    return begin + head_bytes(slot, owner) * size(head);
}

bool Program::uses(layouts::Lane lane) const {
    return std::any_of(code.begin(), code.end(), [&](const Instruction& i) { return i.op.lane == lane; });
}

std::vector<Program> make_programs(const Schedule& schedule, bool serve_fetches) {
    std::vector<Program> programs;
    for (int rank = 0; rank < schedule.ranks(); ++rank) programs.push_back(resolve(schedule, rank));
    if (serve_fetches)
        serve(schedule, programs);
    else
        locate_fetches(schedule, programs);
    match_messages(programs);
    return programs;
}

std::string describe(int rank, const Instruction& instruction, OpIndex index) {
    const auto& op = instruction.op;
    auto text = fmt::format("rank {}: operation {}, {} {} of rank {}'s block, step {}", rank, index, to_string(op.kind),
                            to_string(op.payload), op.owner, op.step);
    if (instruction.served)
        text = fmt::format("rank {}: half of a fetch by rank {}, step {}", rank, op.peer, op.step);
    else if (op.peer >= 0)
        text += fmt::format(", {} rank {}", op.kind == OpKind::send ? "to" : "from", op.peer);
    return text;
}

}  // namespace ringlab::gpu
