#include "layouts/schedules/latent.hpp"

namespace ringlab::layouts {
namespace {

/// Wraps another schedule: before it every rank expands K and V of all heads from its own latent, and after a backward
/// pass compresses dK and dV to the latent's gradient. This is multi-head latent attention in which K and V travel.
class ExpandedSchedule : public Schedule {
public:
    ExpandedSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                     std::unique_ptr<Schedule> inner)
        : Schedule(problem, mask, layout, options), inner_(std::move(inner)) {
        require(!inner_->fetches(),
                "schedule {} reads K and V of other ranks, which may not have expanded them yet; give {}, in which the "
                "latent travels",
                inner_->options().schedule, inner_->options().schedule);
        expand_at_owner();
        for (const auto& group : inner_->slots())
            add_slots(group.pool, group.count, group.heads, group.tokens, group.dtype);
        for (int block = blocks(); block < inner_->blocks(); ++block) {
            const auto runs = inner_->block(block);
            add_block({runs.begin(), runs.end()});
        }
        set_channels(inner_->channels());
    }

    Ops ops(int rank) const override {
        const auto own = part(rank, kv_heads());
        const OpIndex expanded = co_yield expand(0, own, 0, 0);
        Op compression = compress(0, own, 0, 0, 0);
        auto stream = inner_->ops(rank);
        while (const auto* made = stream.next()) {
            Op op = *made;
            for (int i = 0; i < op.after_count; ++i) ++op.after_storage[static_cast<std::size_t>(i)];
            if (op.kind == OpKind::send && op.pool == Pool::kv && op.slot() == 0) op.run_after(expanded);
            const auto index = co_yield op;
            if (op.kind == OpKind::receive && op.pool == Pool::dkv && op.slot() == 0) compression.run_after(index);
            compression.step = std::max(compression.step, op.step);
        }
        if (options().pass == Pass::backward) co_yield compression;
    }

private:
    std::unique_ptr<Schedule> inner_;
};

const ScheduleRegistration registered_expanded(
    expanded_schedule_name, "expanded:SCHEDULE",
    "with --latent: K and V are expanded from the latent at their owner and travel by SCHEDULE; their gradients are "
    "compressed after it",
    {"expanded:ring"},
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        require(problem.latent.is_given(), "schedule expanded:{} is for problems with a latent",
                arguments.empty() ? "SCHEDULE" : arguments);
        require(!arguments.empty() && Spec::parse(arguments).name != expanded_schedule_name,
                "schedule expanded needs the schedule by which K and V travel, as in expanded:ring");
        auto inner = options;
        inner.schedule = arguments;
        return std::make_unique<ExpandedSchedule>(problem, mask, layout, options,
                                                  make_schedule(problem.expanded(), mask, layout, inner));
    });

}  // namespace
}  // namespace ringlab::layouts
