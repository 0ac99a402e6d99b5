#include "layouts/schedule.hpp"

#include "layouts/names.hpp"

namespace ringlab::layouts {

const char* to_string(OpKind kind) {
    switch (kind) {
        case OpKind::attend: return "attend";
        case OpKind::merge: return "merge";
        case OpKind::add: return "add";
        case OpKind::send: return "send";
        case OpKind::receive: return "receive";
        case OpKind::fetch: return "fetch";
    }
    return "?";
}

const char* to_string(Lane lane) {
    switch (lane) {
        case Lane::compute: return "compute";
        case Lane::send_kv: return "send K,V";
        case Lane::receive_kv: return "receive K,V";
        case Lane::send_dkv: return "send dK,dV";
        case Lane::receive_dkv: return "receive dK,dV";
    }
    return "?";
}

const char* to_string(Payload payload) { return payload == Payload::kv ? "kv" : "dkv"; }

void Op::run_after(OpIndex index) {
    if (index < 0) return;
    require(after_count < static_cast<int>(after_storage.size()), "an operation has more than {} dependencies",
            after_storage.size());
    after_storage[static_cast<std::size_t>(after_count++)] = index;
}

const Op* Ops::next() {
    auto& promise = handle_.promise();
    if (!handle_.done()) handle_.resume();
    if (promise.error) std::rethrow_exception(std::exchange(promise.error, nullptr));
    return handle_.done() ? nullptr : promise.current;
}

Schedule::Schedule(Problem problem, Mask mask, Layout layout, ScheduleOptions options)
    : problem_(std::move(problem)), mask_(std::move(mask)), layout_(std::move(layout)), options_(std::move(options)) {
    problem_.validate();
    require(problem_.tokens == mask_.tokens() && problem_.tokens == layout_.tokens(),
            "the problem has {} tokens, mask {} {} and layout {} {}; they must agree", problem_.tokens, mask_.name(),
            mask_.tokens(), layout_.name(), layout_.tokens());
    for (int owner = 0; owner < ranks(); ++owner) keys_.emplace_back(layout_.shard(owner));
}

std::int64_t Schedule::cells(int rank, int owner) const {
    return visible_pairs(mask_, layout_.shard(rank), keys_[static_cast<std::size_t>(owner)]);
}

std::int64_t Schedule::block_bytes(Payload payload, int owner, int head_count) const {
    const auto tokens = layout_.shard_tokens(owner);
    return payload == Payload::kv ? problem_.kv_bytes(tokens, head_count)
                                  : problem_.dkv_bytes(tokens, head_count, options_.gradient_dtype);
}

double Schedule::flop(const Op& attend) const {
    const auto per_cell =
        options_.pass == Pass::forward ? problem_.forward_flop_per_cell() : problem_.backward_flop_per_cell();
    const auto heads = attend.heads.count() * problem_.query_heads_per_kv_head() * problem_.batch;
    return per_cell * static_cast<double>(attend.cells) * static_cast<double>(heads);
}

std::int64_t Schedule::scratch_bytes() const {
    const auto plan = slots();
    const auto tokens = layout_.largest_shard();
    return plan.kv_slots * problem_.kv_bytes(tokens, plan.kv_slot_heads) +
           plan.gradient_slots * problem_.dkv_bytes(tokens, plan.gradient_slot_heads, options_.gradient_dtype);
}

Op Schedule::attend(int rank, int step, int owner, HeadRange heads, int slot, int gradient_slot) const {
    Op op;
    op.kind = OpKind::attend;
    op.step = step;
    op.owner = owner;
    op.heads = heads;
    op.slot = slot;
    op.gradient_slot = gradient_slot;
    op.cells = cells(rank, owner);
    return op;
}

Op Schedule::merge(int rank, int step, int owner, HeadRange heads) const {
    constexpr std::int64_t lse_bytes = 4;
    const auto rows = problem_.batch * layout_.shard_tokens(rank) * heads.count() * problem_.query_heads_per_kv_head();
    Op op;
    op.kind = OpKind::merge;
    op.step = step;
    op.owner = owner;
    op.heads = heads;
    op.bytes = rows * (problem_.value_dim * bytes_of(problem_.dtype) + lse_bytes);
    return op;
}

Op Schedule::add(int step, int owner, HeadRange heads, int slot, int from_slot) const {
    Op op;
    op.kind = OpKind::add;
    op.payload = Payload::dkv;
    op.step = step;
    op.owner = owner;
    op.heads = heads;
    op.slot = slot;
    op.gradient_slot = from_slot;
    op.bytes = block_bytes(Payload::dkv, owner, heads.count());
    return op;
}

Op Schedule::transfer(OpKind kind, Payload payload, int step, int peer, int owner, HeadRange heads, int slot) const {
    Op op;
    op.kind = kind;
    const bool sends = kind == OpKind::send;
    op.lane = payload == Payload::kv ? (sends ? Lane::send_kv : Lane::receive_kv)
                                     : (sends ? Lane::send_dkv : Lane::receive_dkv);
    op.payload = payload;
    op.step = step;
    op.peer = peer;
    op.owner = owner;
    op.heads = heads;
    op.slot = slot;
    op.bytes = block_bytes(payload, owner, heads.count());
    return op;
}

Registry<ScheduleFactory>& schedules() {
    static Registry<ScheduleFactory> registry("schedule");
    return registry;
}

std::unique_ptr<Schedule> make_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                        const ScheduleOptions& options) {
    const auto spec = Spec::parse(options.algorithm);
    return find_typed(schedules(), "schedule", spec.name).factory(spec.arguments, problem, mask, layout, options);
}

}  // namespace ringlab::layouts
