#include "tests/mistakes/broken_schedule.hpp"

namespace ringlab::experiments {

BrokenSchedule::BrokenSchedule(std::unique_ptr<layouts::Schedule> original, Break how)
    : Schedule(original->problem(), original->mask(), original->layout(), original->options()),
      original_(std::move(original)),
      how_(how) {
    set_channels(original_->channels());
    for (const auto& group : original_->slots())
        add_slots(group.pool, group.count, group.heads, group.tokens, group.dtype);
    for (int index = blocks(); index < original_->blocks(); ++index)
        add_block({original_->block(index).begin(), original_->block(index).end()});
}

std::vector<layouts::Run> BrokenSchedule::runs(const layouts::Part& part) const {
    if (how_ != Break::local_mask) return Schedule::runs(part);
    return {{part.tokens.begin, 1, part.tokens.size()}};
}

void BrokenSchedule::modify_program(layouts::Program& program) const {
    if (how_ != Break::stale_block) return;
    for (auto& rank : program.ranks)
        for (auto& instruction : rank.code)
            if (instruction.op.kind == layouts::OpKind::attend) {
                instruction.op.slot(layouts::Pool::kv) = 0;
                instruction.first_head[static_cast<std::size_t>(layouts::Pool::kv)] = 0;
            }
}

}  // namespace ringlab::experiments
