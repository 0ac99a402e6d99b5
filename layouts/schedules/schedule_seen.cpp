#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace ringlab::layouts {
namespace {

/// The keys of a shard at the given positions (sorted, disjoint), as ranges in the shard's local order. Ranges with
/// fewer than `gap` keys between them are merged.
std::vector<Interval> ranges_at(std::span<const Interval> positions, std::span<const Run> shard, std::int64_t gap) {
    std::vector<Interval> ranges;
    std::int64_t before = 0;
    for (const auto& run : shard) {
        const auto index = [&](std::int64_t position) {
            const auto rounded_up = (position - run.first + run.stride - 1) / run.stride;
            return position <= run.first ? 0 : std::min(rounded_up, run.count);
        };
        const auto first = std::ranges::lower_bound(positions, run.first + 1, {}, &Interval::end);
        for (auto at = first; at != positions.end() && at->begin <= run.last(); ++at) {
            const Interval range{before + index(at->begin), before + index(at->end)};
            if (range.size() > 0) ranges.push_back(range);
        }
        before += run.count;
    }
    std::vector<Interval> joined;
    for (const auto& range : ranges)  // in order, as runs of a shard and positions are
        if (!joined.empty() && range.begin - joined.back().end < gap)
            joined.back().end = range.end;
        else
            joined.push_back(range);
    return joined;
}

/// The union of ranges; those with fewer than `gap` keys between them are merged.
std::vector<Interval> merged(std::vector<Interval> ranges, std::int64_t gap) {
    std::ranges::sort(ranges, {}, &Interval::begin);
    std::vector<Interval> result;
    for (const auto& range : ranges)
        if (!result.empty() && range.begin - result.back().end < gap)
            result.back().end = std::max(result.back().end, range.end);
        else
            result.push_back(range);
    return result;
}

/// Every rank receives only those keys of each other rank's block that its rows see, and sends their gradients back,
/// which are added in a fixed order. With packed documents and windows most of the traffic of a ring disappears.
///
/// Each `ranks_per_host` ranks in a row form a host, in which they have numbers from 0. A key that several ranks of a
/// host see travels there once: its owner sends it to the rank with the owner's number in that host, the relay, which
/// sends it to the others. Gradients take the same way back: the relay adds them up and sends one sum. With hosts of
/// one rank every owner sends to every rank directly.
///
/// What a rank holds of others is divided into sections, one for each other rank. Section h * ranks_per_host + n comes
/// from the host h places before it (modulo the number of hosts), of the rank whose number is n below its own (modulo
/// ranks_per_host). Section 0 is the rank's own shard.
///
/// A rank attends to all sections of a host at once, but to its own shard alone, because a launch for each section
/// would load the query tiles as often. Additions of gradients wait for attends of other ranks. Between two attends
/// they would make all ranks wait for each other, so they come behind the last attend: first those of relays, then
/// those of owners.
class SeenSchedule : public Schedule {
public:
    SeenSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                 std::int64_t gap, int ranks_per_host)
        : Schedule(problem, mask, layout, options), ranks_per_host_(ranks_per_host) {
        require(ranks() <= most_ranks,
                "schedule seen stores what each of {} ranks sees of each other; at most {} ranks are supported",
                ranks(), most_ranks);
        require(ranks() % ranks_per_host == 0,
                "schedule seen with hosts of {} ranks, but {} ranks are no multiple of that", ranks_per_host, ranks());
        std::vector<std::string> channels{"K,V"}, backward_channels{"dK,dV"};
        if (ranks_per_host > 1) {
            channels.push_back("K,V inside");
            backward_channels.push_back("dK,dV inside");
        }
        set_channels(channels, backward_channels);
        gathered_ = find_sections(gap);
        const int heads = kv_heads().count();
        if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
        first_gathered_ = blocks();
        const auto most_gathered = add_blocks(gathered_);
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

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        const auto rows = rows_of(rank, query_heads());
        OpIndex count = 0;
        std::vector<OpIndex> arrived(static_cast<std::size_t>(ranks()), -1);  // by section: its last message
        for (auto stream = gather(rank, arrived); const auto* op = stream.next(); ++count) co_yield *op;

        int last = ranks() - 1;
        while (last >= 0 && !attends_to(rank, last)) --last;
        bool begun = false;
        std::vector<Op> totals;  // what a relay sends to owners, behind its additions
        for (int group = 0; group < ranks(); group = end_of_group(group)) {
            int first = group, end = end_of_group(group);
            while (first < end && !attends_to(rank, first)) ++first;
            while (first < end && !attends_to(rank, end - 1)) --end;
            if (first == end) continue;
            auto op = first == 0 ? attend(0, rows, part(rank, kv_heads()), 0, 0)
                                 : attend(first, rows, together(rank, first, end), 0, gathered_slot);
            op.slot(Pool::dkv) = first == 0 ? 0 : gathered_slot;
            op.begins |= !begun;
            op.ends |= last < end;
            for (const auto message : last_messages(arrived, first, end)) op.run_after(message);
            const auto attended = co_yield op;
            count = attended + 1;
            if (partials()) {
                op = merge(first, rows, 0, 1);
                op.begins = !begun;
                count = (co_yield op) + 1;
            }
            begun = true;
            for (int section = std::max(first, 1); backward && section < end; ++section)
                for (const auto& gradient : parts(first_gathered_, gathered_, rank, section)) {
                    op = transfer(OpKind::send, channel(section, 1), Pool::dkv, section, provider(rank, section),
                                  gradient, gathered_slot);
                    op.run_after(attended);
                    if (ranks_per_host_ > 1 && section == relay(section))
                        totals.push_back(op);
                    else
                        count = (co_yield op) + 1;
                }
        }
        if (!backward) co_return;
        for (auto stream = add_gradients(rank, totals).numbered_from(count); const auto* op = stream.next();)
            co_yield *op;
    }

private:
    static constexpr int most_ranks = 2048;
    static constexpr int gathered_slot = 1;
    static constexpr int returned_slot = 2;

    /// Keys of one owner that a rank holds beside its own: those that it sees, and as a relay those that any rank of
    /// its host sees. Or their gradients, which a rank is sent.
    struct Section {
        int owner = 0;
        bool seen = false;                 ///< by the rank itself
        std::vector<Interval> ranges;      ///< of the owner's shard
        std::vector<std::int64_t> begins;  ///< of each range: where it lies in the rank's block
    };

    /// Receives the keys that the rank sees, or passes on, and sends its own and those that it passes on. `arrived`, by
    /// section: set to its last message.
    Ops gather(int rank, std::vector<OpIndex>& arrived) const {
        for (int section = 1; section < ranks(); ++section) {
            for (const auto& range : gathered_[index_of(consumer(rank, section), section)].ranges) {
                auto op = transfer(OpKind::send, channel(section, 0), Pool::kv, section, consumer(rank, section),
                                   is_relayed(section) ? relayed(rank, section, range) : own(rank, range),
                                   is_relayed(section) ? gathered_slot : 0);
                if (is_relayed(section)) op.run_after(arrived[static_cast<std::size_t>(relay(section))]);
                co_yield op;
            }
            for (const auto& part : parts(first_gathered_, gathered_, rank, section))
                arrived[static_cast<std::size_t>(section)] =
                    co_yield transfer(OpKind::receive, channel(section, 0), Pool::kv, section, provider(rank, section),
                                      part, gathered_slot);
        }
    }

    /// Receives the gradients of all sections that the rank has sent or passed on, and adds them up. Sends the `totals`
    /// of a relay behind its additions.
    Ops add_gradients(int rank, const std::vector<Op>& totals) const {
        OpIndex added = -1;
        std::vector<Op> own_sums;
        for (int section = 1; section < ranks(); ++section) {
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
                    own_sums.push_back(sum);
            }
        }
        for (auto total : totals) {
            total.run_after(added);
            co_yield total;
        }
        for (const auto& sum : own_sums) co_yield sum;
    }

    /// The last message between hosts and the last one inside the host, by index, after which the sections [first, end)
    /// have arrived. Messages of a channel arrive in order.
    std::array<OpIndex, 2> last_messages(const std::vector<OpIndex>& arrived, int first, int end) const {
        std::array<OpIndex, 2> last{-1, -1};  // between hosts, inside the host
        for (int section = first; section < end; ++section) {
            auto& of_channel = last[section == relay(section) ? 0 : 1];
            of_channel = std::max(of_channel, arrived[static_cast<std::size_t>(section)]);
        }
        return last;
    }

    /// Whether the rank attends to a section. In the backward pass a relay attends to all keys that it holds. For keys
    /// that only other ranks see this writes a gradient of 0, to which their gradients are added.
    bool attends_to(int rank, int section) const {
        const auto& keys = gathered_[index_of(rank, section)];
        if (section == 0) return needs(rank, rank);
        return keys.seen || (options().pass == Pass::backward && !keys.ranges.empty());
    }

    std::size_t index_of(int rank, int section) const { return static_cast<std::size_t>(rank * ranks() + section); }
    int rank_at(int host, int number) const {
        const int hosts = ranks() / ranks_per_host_;
        return (host + hosts) % hosts * ranks_per_host_ + (number + ranks_per_host_) % ranks_per_host_;
    }

    /// A rank receives `section` from a relay, for which the same keys are the section relay(section). If section ==
    /// relay(section), the owner sends it directly.
    int relay(int section) const { return section - section % ranks_per_host_; }

    /// The end of the sections that are attended to in one launch with `first`: those of one host, or the rank's own
    /// shard alone.
    int end_of_group(int first) const { return first == 0 ? 1 : std::min(ranks(), relay(first) + ranks_per_host_); }
    bool is_relayed(int section) const { return section > relay(section) && section > ranks_per_host_; }

    int owner(int rank, int section) const {
        return rank_at(rank / ranks_per_host_ - section / ranks_per_host_,
                       rank % ranks_per_host_ - section % ranks_per_host_);
    }

    /// The rank that sends this rank its `section`, and the rank whose `section` this rank sends.
    int provider(int rank, int section) const {
        return section % ranks_per_host_ == 0
                   ? owner(rank, section)
                   : rank_at(rank / ranks_per_host_, rank % ranks_per_host_ - section % ranks_per_host_);
    }
    int consumer(int rank, int section) const {
        return section % ranks_per_host_ == 0
                   ? rank_at(rank / ranks_per_host_ + section / ranks_per_host_, rank % ranks_per_host_)
                   : rank_at(rank / ranks_per_host_, rank % ranks_per_host_ + section % ranks_per_host_);
    }

    /// Channel of the messages with `section`: there are channels for messages between hosts and inside one, each for
    /// keys and for gradients. With hosts of one rank there are only those for keys and for gradients.
    int channel(int section, int gradients) const {
        return ranks_per_host_ == 1 ? gradients : 2 * gradients + (section % ranks_per_host_ == 0 ? 0 : 1);
    }

    /// The keys of other ranks that every rank holds, by rank and section.
    std::vector<Section> find_sections(std::int64_t gap) const {
        std::vector<Section> sections(static_cast<std::size_t>(ranks() * ranks()));
        for (int rank = 0; rank < ranks(); ++rank) {
            const Run everything{0, 1, problem().tokens};
            const auto positions = seen_keys(mask(), block(row_block(rank)), {&everything, 1}, 1);
            for (int section = 1; section < ranks(); ++section) {
                auto& keys = sections[index_of(rank, section)];
                keys.owner = owner(rank, section);
                keys.ranges = ranges_at(positions, layout().shard(keys.owner), gap);
                // Where rows lie far apart, seen_keys() may include keys that no row sees.
                keys.seen = !keys.ranges.empty() && needs(rank, keys.owner);
                if (!keys.seen) keys.ranges.clear();
            }
        }
        for (int rank = 0; rank < ranks() && ranks_per_host_ > 1; ++rank)
            for (int section = ranks_per_host_; section < ranks(); section += ranks_per_host_) {
                auto& ranges = sections[index_of(rank, section)].ranges;
                for (int other = section + 1; other < section + ranks_per_host_; ++other) {
                    const auto& more = sections[index_of(consumer(rank, other), other)].ranges;
                    ranges.insert(ranges.end(), more.begin(), more.end());
                }
                ranges = merged(std::move(ranges), gap);
            }
        return sections;
    }

    /// Adds a block for each rank, in which its sections lie group by group. Within a group ranges are in the order of
    /// their positions, so that few tiles of keys hold tokens that lie far apart. Returns the tokens of the largest.
    std::int64_t add_blocks(std::vector<Section>& sections) {
        std::int64_t most = 0;
        for (int rank = 0; rank < ranks(); ++rank) {
            std::vector<Run> together;
            std::int64_t begin = 0;
            for (int first = 1; first < ranks(); first = end_of_group(first)) {
                struct Held {
                    std::vector<Run> runs;
                    std::int64_t tokens, *begin;
                };
                std::vector<Held> group;
                for (int section = first; section < end_of_group(first); ++section) {
                    auto& keys = sections[index_of(rank, section)];
                    keys.begins.resize(keys.ranges.size());
                    for (std::size_t i = 0; i < keys.ranges.size(); ++i)
                        group.push_back(
                            {runs({keys.owner, {}, keys.ranges[i]}), keys.ranges[i].size(), &keys.begins[i]});
                }
                std::ranges::sort(group, {}, [](const Held& held) { return held.runs.front().first; });
                for (auto& held : group) {
                    together.insert(together.end(), held.runs.begin(), held.runs.end());
                    *held.begin = begin;
                    begin += held.tokens;
                }
            }
            add_block(std::move(together));
            most = std::max(most, begin);
        }
        return most;
    }

    Part own(int rank, Interval range) const { return {rank, kv_heads(), range}; }

    /// The ranges of a section in the rank's block.
    std::vector<Part> parts(int first_block, const std::vector<Section>& sections, int rank, int section) const {
        const auto& keys = sections[index_of(rank, section)];
        std::vector<Part> parts;
        for (std::size_t i = 0; i < keys.ranges.size(); ++i)
            parts.push_back({first_block + rank, kv_heads(), {keys.begins[i], keys.begins[i] + keys.ranges[i].size()}});
        return parts;
    }

    /// The smallest range of the rank's block that has the keys of sections [first, end) of one group.
    Part together(int rank, int first, int end) const {
        Interval tokens{std::numeric_limits<std::int64_t>::max(), 0};
        for (int section = first; section < end; ++section)
            for (const auto& part : parts(first_gathered_, gathered_, rank, section))
                tokens = {std::min(tokens.begin, part.tokens.begin), std::max(tokens.end, part.tokens.end)};
        return {first_gathered_ + rank, kv_heads(), tokens};
    }

    /// The place, in the block of a relay, of a range of the owner's shard that belongs to the consumer's `section`.
    Part relayed(int rank, int section, Interval range) const {
        const auto& keys = gathered_[index_of(rank, relay(section))];
        std::size_t i = 0;
        while (!(keys.ranges[i].begin <= range.begin && range.end <= keys.ranges[i].end)) ++i;
        const auto begin = keys.begins[i] + range.begin - keys.ranges[i].begin;
        return {first_gathered_ + rank, kv_heads(), {begin, begin + range.size()}};
    }

    int ranks_per_host_ = 1;                       // ranks of a host
    int first_gathered_ = 0, first_returned_ = 0;  // index of the block of rank 0; those of other ranks follow
    std::vector<Section> gathered_, returned_;     // by rank, then section
};

const ScheduleRegistration registered_seen(
    "seen", "seen[:GAP[:RANKS]]",
    "every rank receives only the keys that its rows see, in ranges with at least GAP (64) other keys between them; to "
    "hosts of RANKS (1) ranks a key travels once, and is passed on inside",
    {"seen", "seen:1", "seen:3:2"},
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        const auto colon = arguments.find(':');
        const auto gap = arguments.substr(0, colon);
        return std::make_unique<SeenSchedule>(
            problem, mask, layout, options, gap.empty() ? 64 : parse_count(gap, "the least gap between ranges", 1),
            colon == std::string::npos
                ? 1
                : static_cast<int>(parse_count(arguments.substr(colon + 1), "the ranks of a host", 1)));
    });

}  // namespace
}  // namespace ringlab::layouts
