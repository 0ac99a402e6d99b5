#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <ranges>
#include <vector>

namespace ringlab::layouts {
namespace {

/// The keys of a shard at the given positions (sorted, disjoint), as ranges in the shard's local order. Ranges with
/// fewer than `gap` keys between them are merged.
std::vector<Interval> ranges_at(std::span<const Interval> positions, std::span<const Run> shard, std::int64_t gap) {
    std::vector<Interval> ranges;
    std::int64_t before = 0;
    for (const auto& run : shard) {
        const auto first = std::ranges::lower_bound(positions, run.first + 1, {}, &Interval::end);
        for (auto at = first; at != positions.end() && at->begin <= run.last(); ++at)
            ranges.push_back({before + run.below(at->begin), before + run.below(at->end)});
        before += run.count;
    }
    return merged(std::move(ranges), gap);
}

struct SeenArguments {
    std::int64_t gap = 64;  ///< ranges with fewer keys between them are merged
    std::int64_t ranks_per_host = 1;
    /// A rank's own keys are cut at multiples of this: kernels have tiles of 128 keys. A shard of fewer than 16 such
    /// ranges is not cut, because in simulated passes one more launch then cost more than it hid.
    std::int64_t cut = 128;
};

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
/// would load the query tiles as often. In the forward pass its own shard comes first, and then one host after the
/// other, the nearest first.
///
/// In the backward pass gradients return while the ranks compute. Keys of the own shard with half of its pairs come
/// first, while keys of others arrive. Then come the other hosts, whose gradients have the longest way, then the rank's
/// own host and the rest of its own keys. A relay that adds gradients too early waits for the rank that sends them. It
/// therefore adds those of a host when it has computed as many pairs as each rank of its own host had when it sent
/// them. The rest of the own keys is cut where that is so for all hosts. Owners add behind the last attend.
class SeenSchedule : public Schedule {
public:
    SeenSchedule(const ScheduleInput& input, const SeenArguments& arguments)
        : Schedule(input), cut_(arguments.cut), ranks_per_host_(static_cast<int>(arguments.ranks_per_host)) {
        require(ranks() <= most_ranks,
                "schedule seen stores what each of {} ranks sees of each other; at most {} ranks are supported",
                ranks(), most_ranks);
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
        if (options().pass == Pass::backward) returned_.resize(gathered_.size());
        if (most_gathered == 0) return;
        add_slots(Pool::kv, 1, heads, most_gathered);
        if (options().pass == Pass::forward) return;
        for (int rank = 0; rank < ranks(); ++rank)
            for (int section = 1; section < ranks(); ++section)
                returned_[index_of(rank, section)] = gathered_[index_of(consumer(rank, section), section)];
        first_returned_ = blocks();
        const auto most_returned = add_blocks(returned_);
        add_slots(Pool::dkv, 1, heads, most_gathered, options().gradient_dtype);
        add_slots(Pool::dkv, 1, heads, most_returned, options().gradient_dtype);
    }

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        std::vector<OpIndex> arrived(index(ranks()), -1);  // by section: its last message
        co_yield gather(rank, arrived);

        Returning returning(hosts());
        const auto& launches = launches_[index(rank)];
        for (std::size_t i = 0; i < launches.size(); ++i) {
            const auto& [first, end, pairs, attend] = launches[i];
            auto op = attend;
            for (const auto message : last_messages(rank, launches[i], arrived)) op.run_after(message);
            const auto attended = co_yield op;
            if (partials()) {
                op = merge(first, attend.rows(), 0, 1);
                op.begins = i == 0;
                co_yield op;
            }
            if (!backward) continue;
            for (int section = std::max(first, 1); section < end; ++section)
                for (const auto& gradient : parts(first_gathered_, gathered_, rank, section)) {
                    op = transfer(OpKind::send, channel(section, 1), Pool::dkv, section, provider(rank, section),
                                  gradient, gathered_slot);
                    op.run_after(attended);
                    if (ranks_per_host_ > 1 && section == relay(section))
                        returning.totals[index(section / ranks_per_host_)].push_back(op);
                    else
                        co_yield op;
                }
            co_yield return_gradients(rank, pairs, returning);
        }
        if (!backward) co_return;
        co_yield return_gradients(rank, std::numeric_limits<std::int64_t>::max(), returning);
        for (const auto& sum : returning.own_sums) co_yield sum;
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

    /// The rank's rows attend to sections [first, end) of one host, or for section 0 to keys of their own shard.
    struct Launch {
        int first = 0, end = 0;
        std::int64_t pairs = 0;  ///< that the rank has computed when it has ended
        Op op;
    };

    /// The gradients of a rank's keys, and of those that it passes on, on their way.
    struct Returning {
        explicit Returning(int count) : totals(index(count)) {}
        std::size_t received = 0;             ///< hosts whose sections have been received, in backward_order()
        std::vector<std::vector<Op>> totals;  ///< by distance of the host: what a relay sends to owners
        std::vector<Op> own_sums;             ///< what an owner adds
    };

    /// Receives the keys that the rank sees, or passes on, and sends its own and those that it passes on. `arrived`, by
    /// section: set to its last message.
    Ops gather(int rank, std::vector<OpIndex>& arrived) const {
        for (int section = 1; section < ranks(); ++section) {
            for (const auto& range : gathered_[index_of(consumer(rank, section), section)].ranges) {
                auto op = transfer(OpKind::send, channel(section, 0), Pool::kv, section, consumer(rank, section),
                                   is_relayed(section) ? relayed(rank, section, range) : own(rank, range),
                                   is_relayed(section) ? gathered_slot : 0);
                if (is_relayed(section)) op.run_after(arrived[index(relay(section))]);
                co_yield op;
            }
            for (const auto& part : parts(first_gathered_, gathered_, rank, section))
                arrived[index(section)] = co_yield transfer(OpKind::receive, channel(section, 0), Pool::kv, section,
                                                            provider(rank, section), part, gathered_slot);
        }
    }

    /// Receives the gradients of the sections that the rank has sent or passed on, host by host, as far as it may
    /// expect them when it has computed so many pairs. As a relay it adds them up and sends the totals.
    Ops return_gradients(int rank, std::int64_t pairs, Returning& returning) const {
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
                                   ? add(Pool::dkv, section, relayed(rank, section, ranges[i]), gathered_slot,
                                         returned[i], returned_slot)
                                   : add(Pool::dkv, section, own(rank, ranges[i]), 0, returned[i], returned_slot);
                    sum.run_after(arrival);
                    if (is_relayed(section))
                        added = co_yield sum;
                    else
                        returning.own_sums.push_back(sum);
                }
            }
            for (auto total : returning.totals[index(distance)]) {
                total.run_after(added);
                co_yield total;
            }
        }
    }

    /// The last message between hosts and the last one inside the host, by index, after which all keys of a launch have
    /// arrived. Messages of a channel arrive in order. Between the keys that the rank sees there may be some that it
    /// only passes on.
    std::array<OpIndex, 2> last_messages(int rank, const Launch& launch, const std::vector<OpIndex>& arrived) const {
        std::array<OpIndex, 2> last{-1, -1};  // between hosts, inside the host
        if (launch.first == 0) return last;
        const int distance = launch.first / ranks_per_host_;
        for (int section = first_section(distance); section < end_section(distance); ++section) {
            const auto& keys = launch.op.part.tokens;
            const auto held = parts(first_gathered_, gathered_, rank, section);
            if (std::ranges::none_of(held, [&](const Part& part) {
                    return part.tokens.begin < keys.end && keys.begin < part.tokens.end;
                }))
                continue;
            auto& of_channel = last[section == relay(section) ? 0 : 1];
            of_channel = std::max(of_channel, arrived[index(section)]);
        }
        return last;
    }

    std::size_t index_of(int rank, int section) const { return index(rank * ranks() + section); }
    int rank_at(int host, int number) const {
        return (host + hosts()) % hosts() * ranks_per_host_ + (number + ranks_per_host_) % ranks_per_host_;
    }

    /// A rank receives `section` from a relay, for which the same keys are the section relay(section). If section ==
    /// relay(section), the owner sends it directly.
    int relay(int section) const { return section - section % ranks_per_host_; }

    bool is_relayed(int section) const { return section > relay(section) && section > ranks_per_host_; }

    int hosts() const { return ranks() / ranks_per_host_; }

    /// The sections [first, end) of the host that is `distance` places before the rank's own, without its own shard.
    int first_section(int distance) const { return std::max(1, distance * ranks_per_host_); }
    int end_section(int distance) const { return (distance + 1) * ranks_per_host_; }

    std::size_t pair_index(int rank, int distance) const { return index(rank / ranks_per_host_ * hosts() + distance); }

    /// The distance of the host that comes in this place in the backward pass: the rank's own host is the last one.
    int backward_order(int place) const { return (place + 1) % hosts(); }

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
        std::vector<Section> sections(index(ranks() * ranks()));
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

    /// Adds a block for each rank, in which its sections lie host by host. Within a host ranges are in the order of
    /// their positions, so that few tiles of keys hold tokens that lie far apart. Returns the tokens of the largest.
    std::int64_t add_blocks(std::vector<Section>& sections) {
        std::int64_t most = 0;
        for (int rank = 0; rank < ranks(); ++rank) {
            std::vector<Run> together;
            std::int64_t begin = 0;
            for (int distance = 0; distance < hosts(); ++distance) {
                struct Held {
                    std::vector<Run> runs;
                    std::int64_t tokens, *begin;
                };
                std::vector<Held> host;
                for (int section = first_section(distance); section < end_section(distance); ++section) {
                    auto& keys = sections[index_of(rank, section)];
                    keys.begins.resize(keys.ranges.size());
                    for (std::size_t i = 0; i < keys.ranges.size(); ++i)
                        host.push_back(
                            {runs({keys.owner, {}, keys.ranges[i]}), keys.ranges[i].size(), &keys.begins[i]});
                }
                std::ranges::sort(host, {}, [](const Held& held) { return held.runs.front().first; });
                for (auto& held : host) {
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

    /// The smallest range of the rank's block that has the keys of sections [first, end) of one host.
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

    /// Whether the rank attends to a section. In the backward pass a relay attends to all keys that it holds. For keys
    /// that only other ranks see this writes a gradient of 0, to which their gradients are added.
    bool attends_to(int rank, int section) const {
        const auto& keys = gathered_[index_of(rank, section)];
        if (section == 0) return needs(rank, rank);
        return keys.seen || (options().pass == Pass::backward && !keys.ranges.empty());
    }

    /// Finds the launches of all ranks, because one rank's depend on the work of others.
    void find_launches() {
        launches_.resize(index(ranks()));
        for (int rank = 0; rank < ranks(); ++rank) add_first_launches(rank);
        if (options().pass == Pass::backward) {
            pairs_when_sent_.resize(index(hosts() * hosts()));
            for (int rank = 0; rank < ranks(); ++rank)
                for (const auto& launch : launches_[index(rank)]) {
                    if (launch.first == 0) continue;
                    auto& pairs = pairs_when_sent_[pair_index(rank, launch.first / ranks_per_host_)];
                    pairs = std::max(pairs, launch.pairs);
                }
            for (int rank = 0; rank < ranks(); ++rank) add_last_launches(rank);
        }
        for (auto& launches : launches_) {
            if (launches.empty()) continue;
            launches.front().op.begins = true;
            launches.back().op.ends = true;
        }
    }

    void add_launch(int rank, int first, int end, const Part& keys) {
        auto& launches = launches_[index(rank)];
        auto op = attend(first, rows_of(rank, query_heads()), keys, 0, first == 0 ? 0 : gathered_slot);
        op.slot(Pool::dkv) = op.slot(Pool::kv);
        const auto before = launches.empty() ? 0 : launches.back().pairs;
        launches.push_back({first, end, before + std::max<std::int64_t>(op.pair_count, 1), op});
    }

    /// Adds the launches for all sections; in the backward pass only that for the first of the rank's own keys.
    void add_first_launches(int rank) {
        const bool backward = options().pass == Pass::backward;
        std::vector<Interval> others;  // sections
        for (int place = 0; place < hosts(); ++place) {
            const int distance = backward ? backward_order(place) : place;
            int first = first_section(distance), end = end_section(distance);
            while (first < end && !attends_to(rank, first)) ++first;
            while (first < end && !attends_to(rank, end - 1)) --end;
            if (first < end) others.push_back({first, end});
        }
        if (needs(rank, rank)) {
            const auto pairs = pair_count(row_block(rank), rank);
            // Inside a host gradients take too little time for one more launch.
            const bool cut = backward && ranks_per_host_ > 1 && !others.empty() &&
                             others.front().end > ranks_per_host_ && block_tokens(rank) / 16 >= cut_;
            add_launch(rank, 0, 1, own(rank, {0, cut ? end_of_keys(rank, 0, (pairs + 1) / 2) : block_tokens(rank)}));
        }
        for (const auto& sections : others) {
            const auto first = static_cast<int>(sections.begin), end = static_cast<int>(sections.end);
            add_launch(rank, first, end, together(rank, first, end));
        }
    }

    /// Adds the launches for the rest of the rank's own keys.
    void add_last_launches(int rank) {
        const auto& launches = launches_[index(rank)];
        if (launches.empty() || launches.front().first > 0) return;
        const auto* of_host = &pairs_when_sent_[pair_index(rank, 0)];
        const auto missing = *std::max_element(of_host, of_host + hosts()) - launches.back().pairs;
        auto begin = launches.front().op.part.tokens.end;
        for (const auto end : {end_of_keys(rank, begin, missing), block_tokens(rank)}) {
            if (begin < end) add_launch(rank, 0, 1, own(rank, {begin, end}));
            begin = end;
        }
    }

    /// The end of the shortest range of the rank's own keys, from `begin` on, of which its rows see at least `pairs`
    /// pairs. It is a multiple of the keys between cuts, or the end of the shard.
    std::int64_t end_of_keys(int rank, std::int64_t begin, std::int64_t pairs) const {
        const auto rows = rows_of(rank, query_heads());
        const auto sees_less = [&](std::int64_t end) { return pair_count(rows, own(rank, {begin, end})) < pairs; };
        // begin + cut * n for n from 0 on. The range is empty if no pairs are wanted.
        const auto cuts = std::views::iota(std::int64_t{0}, (block_tokens(rank) - begin) / cut_ + 1);
        const auto end = [&](std::int64_t cut) { return begin + cut * cut_; };
        const auto found = std::ranges::partition_point(cuts, sees_less, end);
        return found == cuts.end() ? block_tokens(rank) : end(*found);
    }

    std::int64_t cut_;                             // keys after which the own shard may be cut
    int ranks_per_host_;                           // ranks of a host
    int first_gathered_ = 0, first_returned_ = 0;  // index of the block of rank 0; those of other ranks follow
    std::vector<Section> gathered_, returned_;     // by rank, then section
    std::vector<std::vector<Launch>> launches_;    // by rank, in order
    /// By host and distance: the most pairs that a rank of the host has computed when it has attended to the sections
    /// of the host at this distance. Backward.
    std::vector<std::int64_t> pairs_when_sent_;
};

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
    {"seen[:GAP[:RANKS[:CUT]]]",
     "every rank receives only the keys that its rows see, in ranges with at least GAP (64) other keys between them; "
     "to "
     "hosts of RANKS (1) ranks a key travels once, and is passed on inside; backward a rank attends to its own keys in "
     "up to three launches, cut at multiples of CUT (128) keys",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         return std::make_unique<SeenSchedule>(input, parse(arguments));
     },
     {"seen", "seen:1", "seen:3:2", "seen:1:2:1"}});

}  // namespace

}  // namespace ringlab::layouts
