#include "sim/messages.hpp"

namespace ringlab::sim {

using layouts::OpKind;
using layouts::Pool;

std::int64_t pieces_of(const layouts::Schedule& schedule, const layouts::Op& transfer) {
    const auto fields = [&] {
        switch (transfer.pool) {
            case Pool::output:
            case Pool::dout: return 2;  // o and lse, do and statistics
            case Pool::state: return 3;
            default: return 1;
        }
    }();
    const auto& part = transfer.part;
    const bool is_whole = part.tokens == layouts::Interval{0, schedule.block_tokens(part.block)};
    if (is_whole) return fields;
    const bool has_two = transfer.pool == Pool::kv || transfer.pool == Pool::dkv;
    return (has_two ? 2 : fields) * part.heads.count() * schedule.problem().batch;
}

void Messages::read(int rank, const layouts::Op& op) {
    if (op.kind == OpKind::attend) return decide(rank, schedule_.flop(op));
    if (!op.transfers()) return;
    auto& queued = queue(rank, op.lane()).emplace_back(Queued{{pieces_of(schedule_, op)}, op.bytes});
    // A fetch is served by its owner, whose schedule has no such message.
    if (op.kind != OpKind::fetch && flop_a_byte_ > 0) undecided_[static_cast<std::size_t>(rank)].push_back(&queued);
}

void Messages::decide(int rank, double flop) {
    auto& undecided = undecided_[static_cast<std::size_t>(rank)];
    for (auto* queued : undecided)
        queued->message.has_time = flop > 0 && flop >= flop_a_byte_ * static_cast<double>(queued->bytes);
    undecided.clear();
}

}  // namespace ringlab::sim
