#include "layouts/schedules/schedule.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

constexpr Pool travelling(Pool pool) {
    return pool == Pool::kv ? Pool::latent : pool == Pool::dkv ? Pool::dlatent : pool;
}

std::string travelling(std::string channel) {
    const auto replace = [&](const std::string& from, const std::string& to) {
        if (const auto at = channel.find(from); at != std::string::npos) channel.replace(at, from.size(), to);
    };
    replace("dK,dV", "dlatent");
    replace("K,V", "latent");
    return channel;
}

/// Wraps a schedule that was made for the latent as the only kv head (Problem::with_latent_as_key()): its operations on
/// K and V become operations on the latent, and an attend gets an expand before it and a compress after it.
class LatentSchedule : public Schedule {
public:
    LatentSchedule(const ScheduleInput& input, std::unique_ptr<Schedule> keys)
        : Schedule(input), keys_(std::move(keys)) {
        std::int64_t tokens = layout().largest_shard();
        int heads = query_heads().count();
        const bool travels = std::ranges::any_of(keys_->channels(), [](const std::string& name) {
            return name.find(to_string(Pool::kv)) != std::string::npos;
        });
        for (const auto& group : keys_->slots()) {
            add_slots(travelling(group.pool), group.count, group.heads, group.tokens, group.dtype);
            if (group.pool == Pool::kv) tokens = std::max(tokens, group.tokens);
            if (group.pool == Pool::q) heads = std::min(heads, group.heads);
        }
        require(travels,
                "schedule {} does not send K and V, so a latent would not travel; give {}:{} to expand it at its owner",
                options().schedule, expanded_schedule_name, options().schedule);
        add_slots(Pool::kv, 1, heads, tokens);
        if (options().pass == Pass::backward) add_slots(Pool::dkv, 1, heads, tokens);
        take_blocks(*keys_);
        std::vector<std::string> names;
        for (const auto& name : keys_->channels()) names.push_back(travelling(name));
        set_channels(std::move(names));
    }

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        std::vector<std::uint32_t> attends;  // indices in keys_; operations added around them shift all later indices
        Op& op = co_await Ops::op_storage;
        auto stream = keys_->ops(rank);
        for (OpIndex index = 0; const auto* made = stream.next(); ++index) {
            const auto after = shifted(*made, attends, backward ? 2 : 1);
            if (made->kind != OpKind::attend) {
                op = translated(*made);
                op.after_storage = after;
                co_yield op;
                continue;
            }
            attends.push_back(static_cast<std::uint32_t>(index));
            const Op attends_to_keys = *made;
            const Part heads{made->part.block, made->rows().heads, made->part.tokens};
            op = expand(made->step, heads, expanded_slot, attends_to_keys.slot(Pool::kv));
            op.after_storage = after;
            op.after_count = attends_to_keys.after_count;
            co_yield op;
            op = attends_to_keys;
            op.part = heads;
            op.slot(Pool::kv) = op.slot(Pool::dkv) = expanded_slot;
            op.adds = op.fused = false;
            op.after_count = 0;
            co_yield op;
            if (!backward) continue;
            op = compress(attends_to_keys.step, heads, attends_to_keys.slot(Pool::dkv), attends_to_keys.slot(Pool::kv),
                          expanded_slot);
            op.adds = attends_to_keys.adds;
            co_yield op;
        }
    }

private:
    static constexpr int expanded_slot = 1;

    /// The dependencies of an operation of keys_ as indices of this schedule. A dependency on an attend becomes one on
    /// the last operation that belongs to it.
    static std::array<OpIndex, 4> shifted(const Op& made, const std::vector<std::uint32_t>& attends, OpIndex around) {
        std::array<OpIndex, 4> after{};
        std::size_t count = 0;
        for (const auto before : made.after()) {
            const auto passed = std::upper_bound(attends.begin(), attends.end(), before) - attends.begin();
            after[count++] = before + around * static_cast<OpIndex>(passed);
        }
        return after;
    }

    Op translated(const Op& made) const {
        auto op = made;
        op.pool = travelling(made.pool);
        op.slot(Pool::latent) = made.slot(Pool::kv);
        op.slot(Pool::dlatent) = made.slot(Pool::dkv);
        op.bytes = op.transfers() ? bytes(op.pool, op.slot(), op.part) : bytes(op.pool, op.source, op.read());
        return op;
    }

    std::unique_ptr<Schedule> keys_;
};

}  // namespace

std::unique_ptr<Schedule> make_latent_schedule(const ScheduleInput& input) {
    const auto& [problem, mask, layout, options] = input;
    problem.validate();
    return std::make_unique<LatentSchedule>(input, make_schedule(problem.with_latent_as_key(), mask, layout, options));
}

namespace {

/// Wraps another schedule: before it every rank expands K and V of all heads from its own latent, and after a backward
/// pass compresses dK and dV to the latent's gradient. This is multi-head latent attention in which K and V travel.
class ExpandedSchedule : public Schedule {
public:
    ExpandedSchedule(const ScheduleInput& input, std::unique_ptr<Schedule> inner)
        : Schedule(input), inner_(std::move(inner)) {
        require(!inner_->fetches(),
                "schedule {} reads K and V of other ranks, which may not have expanded them yet; give {}, in which the "
                "latent travels",
                inner_->options().schedule, inner_->options().schedule);
        expand_at_owner();
        for (const auto& group : inner_->slots())
            add_slots(group.pool, group.count, group.heads, group.tokens, group.dtype);
        take_blocks(*inner_);
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
    {"expanded:SCHEDULE",
     "with --latent: K and V are expanded from the latent at their owner and travel by SCHEDULE; their gradients are "
     "compressed after it",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         const auto& [problem, mask, layout, options] = input;
         require(problem.latent.is_given(), "schedule expanded:{} is for problems with a latent",
                 arguments.empty() ? "SCHEDULE" : arguments);
         require(!arguments.empty() && Spec::parse(arguments).name != expanded_schedule_name,
                 "schedule expanded needs the schedule by which K and V travel, as in expanded:ring");
         auto inner = options;
         inner.schedule = arguments;
         return std::make_unique<ExpandedSchedule>(input, make_schedule(problem.expanded(), mask, layout, inner));
     },
     {"expanded:ring"}});

}  // namespace

}  // namespace ringlab::layouts
