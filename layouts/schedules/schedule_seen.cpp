#include "layouts/schedules/seen_schedule.hpp"

#include <limits>

namespace ringlab::layouts {

SeenSchedule::SeenSchedule(const Problem& problem, const Mask& mask, const Layout& layout,
                           const ScheduleOptions& options, const SeenArguments& arguments)
    : Schedule(problem, mask, layout, options),
      cut_(arguments.cut),
      ranks_per_host_(static_cast<int>(arguments.ranks_per_host)) {
    require(ranks() <= most_ranks,
            "schedule seen stores what each of {} ranks sees of each other; at most {} ranks are supported", ranks(),
            most_ranks);
    require(ranks() % arguments.ranks_per_host == 0,
            "schedule seen with hosts of {} ranks, but {} ranks are no multiple of that", arguments.ranks_per_host,
            ranks());
    std::vector<std::string> channels{"K,V"}, backward_channels{"dK,dV"};
    if (ranks_per_host_ > 1) {
        channels.push_back("K,V inside");
        backward_channels.push_back("dK,dV inside");
    }
    set_channels(channels, backward_channels);
    gathered_ = find_sections(arguments.gap);
    const int heads = kv_heads().count();
    if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
    first_gathered_ = blocks();
    const auto most_gathered = add_blocks(gathered_);
    find_launches();
    if (options.pass == Pass::backward) returned_.resize(gathered_.size());
    if (most_gathered == 0) return;
    add_slots(Pool::kv, 1, heads, most_gathered);
    if (options.pass == Pass::forward) return;
    for (int rank = 0; rank < ranks(); ++rank)
        for (int section = 1; section < ranks(); ++section)
            returned_[index_of(rank, section)] = gathered_[index_of(consumer(rank, section), section)];
    first_returned_ = blocks();
    const auto most_returned = add_blocks(returned_);
    add_slots(Pool::dkv, 1, heads, most_gathered, options.gradient_dtype);
    add_slots(Pool::dkv, 1, heads, most_returned, options.gradient_dtype);
}

Ops SeenSchedule::ops(int rank) const {
    const bool backward = options().pass == Pass::backward;
    OpIndex count = 0;
    std::vector<OpIndex> arrived(static_cast<std::size_t>(ranks()), -1);  // by section: its last message
    for (auto stream = gather(rank, arrived); const auto* op = stream.next(); ++count) co_yield *op;

    Returning returning(hosts());
    const auto& launches = launches_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < launches.size(); ++i) {
        const auto& [first, end, pairs, attend] = launches[i];
        auto op = attend;
        for (const auto message : last_messages(rank, launches[i], arrived)) op.run_after(message);
        const auto attended = co_yield op;
        count = attended + 1;
        if (partials()) {
            op = merge(first, attend.rows(), 0, 1);
            op.begins = i == 0;
            count = (co_yield op) + 1;
        }
        if (!backward) continue;
        for (int section = std::max(first, 1); section < end; ++section)
            for (const auto& gradient : parts(first_gathered_, gathered_, rank, section)) {
                op = transfer(OpKind::send, channel(section, 1), Pool::dkv, section, provider(rank, section), gradient,
                              gathered_slot);
                op.run_after(attended);
                if (ranks_per_host_ > 1 && section == relay(section))
                    returning.totals[static_cast<std::size_t>(section / ranks_per_host_)].push_back(op);
                else
                    count = (co_yield op) + 1;
            }
        for (auto stream = return_gradients(rank, pairs, returning).numbered_from(count);
             const auto* next = stream.next(); ++count)
            co_yield *next;
    }
    if (!backward) co_return;
    for (auto stream = return_gradients(rank, std::numeric_limits<std::int64_t>::max(), returning).numbered_from(count);
         const auto* op = stream.next();)
        co_yield *op;
    for (const auto& sum : returning.own_sums) co_yield sum;
}

Ops SeenSchedule::gather(int rank, std::vector<OpIndex>& arrived) const {
    for (int section = 1; section < ranks(); ++section) {
        for (const auto& range : gathered_[index_of(consumer(rank, section), section)].ranges) {
            auto op = transfer(OpKind::send, channel(section, 0), Pool::kv, section, consumer(rank, section),
                               is_relayed(section) ? relayed(rank, section, range) : own(rank, range),
                               is_relayed(section) ? gathered_slot : 0);
            if (is_relayed(section)) op.run_after(arrived[static_cast<std::size_t>(relay(section))]);
            co_yield op;
        }
        for (const auto& part : parts(first_gathered_, gathered_, rank, section))
            arrived[static_cast<std::size_t>(section)] = co_yield transfer(
                OpKind::receive, channel(section, 0), Pool::kv, section, provider(rank, section), part, gathered_slot);
    }
}

Ops SeenSchedule::return_gradients(int rank, std::int64_t pairs, Returning& returning) const {
    for (auto& next = returning.received; next < returning.totals.size(); ++next) {
        const int distance = backward_order(static_cast<int>(next));
        if (pairs < pairs_when_sent_[pair_index(rank, distance)]) co_return;
        OpIndex added = -1;
        for (int section = first_section(distance); section < end_section(distance); ++section) {
            const auto& ranges = returned_[index_of(rank, section)].ranges;
            const auto returned = parts(first_returned_, returned_, rank, section);
            for (std::size_t i = 0; i < ranges.size(); ++i) {
                const auto arrival = co_yield transfer(OpKind::receive, channel(section, 1), Pool::dkv, section,
                                                       consumer(rank, section), returned[i], returned_slot);
                auto sum = is_relayed(section)
                               ? add(Pool::dkv, section, relayed(rank, section, ranges[i]), gathered_slot, returned[i],
                                     returned_slot)
                               : add(Pool::dkv, section, own(rank, ranges[i]), 0, returned[i], returned_slot);
                sum.run_after(arrival);
                if (is_relayed(section))
                    added = co_yield sum;
                else
                    returning.own_sums.push_back(sum);
            }
        }
        for (auto total : returning.totals[static_cast<std::size_t>(distance)]) {
            total.run_after(added);
            co_yield total;
        }
    }
}

std::array<OpIndex, 2> SeenSchedule::last_messages(int rank, const Launch& launch,
                                                   const std::vector<OpIndex>& arrived) const {
    std::array<OpIndex, 2> last{-1, -1};  // between hosts, inside the host
    if (launch.first == 0) return last;
    const int distance = launch.first / ranks_per_host_;
    for (int section = first_section(distance); section < end_section(distance); ++section) {
        const auto& keys = launch.op.part.tokens;
        const auto held = parts(first_gathered_, gathered_, rank, section);
        if (std::ranges::none_of(
                held, [&](const Part& part) { return part.tokens.begin < keys.end && keys.begin < part.tokens.end; }))
            continue;
        auto& of_channel = last[section == relay(section) ? 0 : 1];
        of_channel = std::max(of_channel, arrived[static_cast<std::size_t>(section)]);
    }
    return last;
}

namespace {

SeenArguments parse(const std::string& text) {
    SeenArguments arguments;
    std::vector<std::string> parts;
    for (auto rest = text; !rest.empty();) {
        auto [part, others] = Spec::parse(rest);
        parts.push_back(std::move(part));
        rest = std::move(others);
    }
    require(parts.size() <= 3, "schedule seen has the arguments GAP, RANKS and CUT, but 'seen:{}' has {}", text,
            parts.size());
    if (parts.size() > 0 && !parts[0].empty()) arguments.gap = parse_count(parts[0], "the least gap between ranges", 1);
    if (parts.size() > 1) arguments.ranks_per_host = parse_count(parts[1], "the ranks of a host", 1);
    if (parts.size() > 2) arguments.cut = parse_count(parts[2], "the keys between cuts", 1);
    return arguments;
}

const ScheduleRegistration registered_seen(
    "seen", "seen[:GAP[:RANKS[:CUT]]]",
    "every rank receives only the keys that its rows see, in ranges with at least GAP (64) other keys between them; to "
    "hosts of RANKS (1) ranks a key travels once, and is passed on inside; backward a rank attends to its own keys in "
    "up to three launches, cut at multiples of CUT (128) keys",
    {"seen", "seen:1", "seen:3:2", "seen:1:2:1"},
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        return std::make_unique<SeenSchedule>(problem, mask, layout, options, parse(arguments));
    });

}  // namespace
}  // namespace ringlab::layouts
