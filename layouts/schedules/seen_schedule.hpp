#pragma once

#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace ringlab::layouts {

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
    SeenSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                 const SeenArguments& arguments);

    Ops ops(int rank) const override;

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
        explicit Returning(int count) : totals(static_cast<std::size_t>(count)) {}
        std::size_t received = 0;             ///< hosts whose sections have been received, in backward_order()
        std::vector<std::vector<Op>> totals;  ///< by distance of the host: what a relay sends to owners
        std::vector<Op> own_sums;             ///< what an owner adds
    };

    /// Receives the keys that the rank sees, or passes on, and sends its own and those that it passes on. `arrived`, by
    /// section: set to its last message.
    Ops gather(int rank, std::vector<OpIndex>& arrived) const;

    /// Receives the gradients of the sections that the rank has sent or passed on, host by host, as far as it may
    /// expect them when it has computed so many pairs. As a relay it adds them up and sends the totals.
    Ops return_gradients(int rank, std::int64_t pairs, Returning& returning) const;

    /// The last message between hosts and the last one inside the host, by index, after which all keys of a launch have
    /// arrived. Messages of a channel arrive in order. Between the keys that the rank sees there may be some that it
    /// only passes on.
    std::array<OpIndex, 2> last_messages(int rank, const Launch& launch, const std::vector<OpIndex>& arrived) const;

    std::size_t index_of(int rank, int section) const { return static_cast<std::size_t>(rank * ranks() + section); }
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

    std::size_t pair_index(int rank, int distance) const {
        return static_cast<std::size_t>(rank / ranks_per_host_ * hosts() + distance);
    }

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

    // seen_sections.cpp

    /// The keys of other ranks that every rank holds, by rank and section.
    std::vector<Section> find_sections(std::int64_t gap) const;

    /// Adds a block for each rank, in which its sections lie host by host. Within a host ranges are in the order of
    /// their positions, so that few tiles of keys hold tokens that lie far apart. Returns the tokens of the largest.
    std::int64_t add_blocks(std::vector<Section>& sections);

    Part own(int rank, Interval range) const { return {rank, kv_heads(), range}; }

    /// The ranges of a section in the rank's block.
    std::vector<Part> parts(int first_block, const std::vector<Section>& sections, int rank, int section) const;

    /// The smallest range of the rank's block that has the keys of sections [first, end) of one host.
    Part together(int rank, int first, int end) const;

    /// The place, in the block of a relay, of a range of the owner's shard that belongs to the consumer's `section`.
    Part relayed(int rank, int section, Interval range) const;

    // seen_launches.cpp

    /// Whether the rank attends to a section. In the backward pass a relay attends to all keys that it holds. For keys
    /// that only other ranks see this writes a gradient of 0, to which their gradients are added.
    bool attends_to(int rank, int section) const;

    /// Finds the launches of all ranks, because one rank's depend on the work of others.
    void find_launches();

    void add_launch(int rank, int first, int end, const Part& keys);

    /// Adds the launches for all sections; in the backward pass only that for the first of the rank's own keys.
    void add_first_launches(int rank);

    /// Adds the launches for the rest of the rank's own keys.
    void add_last_launches(int rank);

    /// The end of the shortest range of the rank's own keys, from `begin` on, of which its rows see at least `pairs`
    /// pairs. It is a multiple of the keys between cuts, or the end of the shard.
    std::int64_t end_of_keys(int rank, std::int64_t begin, std::int64_t pairs) const;

    std::int64_t cut_;                             // keys after which the own shard may be cut
    int ranks_per_host_;                           // ranks of a host
    int first_gathered_ = 0, first_returned_ = 0;  // index of the block of rank 0; those of other ranks follow
    std::vector<Section> gathered_, returned_;     // by rank, then section
    std::vector<std::vector<Launch>> launches_;    // by rank, in order
    /// By host and distance: the most pairs that a rank of the host has computed when it has attended to the sections
    /// of the host at this distance. Backward.
    std::vector<std::int64_t> pairs_when_sent_;
};

}  // namespace ringlab::layouts
