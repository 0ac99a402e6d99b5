#pragma once

#include "layouts/basics/basic_types.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ringlab::sim::test {

/// A ring walked by a 4-ary heap of (time, number, rank and what ended), and by nothing else: no schedule is read, no
/// resource shared, nothing added up. What events cost at the least, to judge a simulator by on any machine.
///
/// An attend of a rank follows its last one and the arrival of its block. A hop follows the last hop of the rank and
/// the arrival of what it sends, and goes into one of two slots, which the receiver's attend and hop of the step before
/// must have read.
class HeapRing {
public:
    /// Durations of the first attend, of all others, and by rank of the hop to the next.
    HeapRing(layouts::Picoseconds first, layouts::Picoseconds attend, const std::vector<layouts::Picoseconds>& hops,
             int steps)
        : first_(first), attend_(attend), steps_(steps), ranks_(hops.size()) {
        for (std::size_t rank = 0; rank < hops.size(); ++rank) ranks_[rank].hop = hops[rank];
        heap_.reserve(2 * hops.size());
    }

    /// When the last attend ends.
    layouts::Picoseconds run() {
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            try_attend(rank);
            try_hop(rank);
        }
        while (!heap_.empty()) {
            const auto event = pop();
            now_ = event.time;
            ++events_;
            const std::size_t rank = event.what / 2;
            event.what % 2 == 0 ? attended(rank) : arrived(rank);
        }
        return now_;
    }

    std::uint64_t events() const { return events_; }

private:
    struct Rank {
        layouts::Picoseconds hop = 0;
        int attended = 0, sent = 0, received = 0;
        bool attending = false, sending = false;
    };

    struct Event {
        layouts::Picoseconds time;
        std::uint32_t number, what;
        bool operator<(const Event& other) const {
            return time != other.time ? time < other.time : number < other.number;
        }
    };

    std::size_t after(std::size_t rank) const { return rank + 1 == ranks_.size() ? 0 : rank + 1; }
    std::size_t before(std::size_t rank) const { return rank == 0 ? ranks_.size() - 1 : rank - 1; }

    void try_attend(std::size_t rank) {
        auto& r = ranks_[rank];
        if (r.attending || r.attended == steps_ || r.received < r.attended) return;
        r.attending = true;
        push(now_ + (r.attended == 0 ? first_ : attend_), 2 * rank);
    }

    void try_hop(std::size_t rank) {
        auto& r = ranks_[rank];
        const auto& to = ranks_[after(rank)];
        if (r.sending || r.sent == steps_ - 1 || r.received < r.sent || to.attended < r.sent || to.sent < r.sent)
            return;
        r.sending = true;
        push(now_ + r.hop, 2 * rank + 1);
    }

    void attended(std::size_t rank) {
        auto& r = ranks_[rank];
        r.attending = false;
        ++r.attended;
        try_attend(rank);
        try_hop(before(rank));
    }

    void arrived(std::size_t rank) {
        auto& r = ranks_[rank];
        const auto to = after(rank);
        r.sending = false;
        ++r.sent;
        ++ranks_[to].received;
        try_hop(rank);
        try_hop(before(rank));
        try_hop(to);
        try_attend(to);
    }

    void push(layouts::Picoseconds time, std::size_t what) {
        const Event event{time, number_++, static_cast<std::uint32_t>(what)};
        auto at = heap_.size();
        heap_.push_back(event);
        for (; at > 0 && event < heap_[(at - 1) / 4]; at = (at - 1) / 4) heap_[at] = heap_[(at - 1) / 4];
        heap_[at] = event;
    }

    Event pop() {
        const auto top = heap_.front(), last = heap_.back();
        heap_.pop_back();
        std::size_t at = 0;
        for (auto child = std::size_t{1}; child < heap_.size(); child = 4 * at + 1) {
            const auto end = std::min(child + 4, heap_.size());
            auto least = child;
            for (++child; child < end; ++child)
                if (heap_[child] < heap_[least]) least = child;
            if (!(heap_[least] < last)) break;
            heap_[at] = heap_[least];
            at = least;
        }
        if (!heap_.empty()) heap_[at] = last;
        return top;
    }

    layouts::Picoseconds first_, attend_, now_ = 0;
    int steps_;
    std::vector<Rank> ranks_;
    std::vector<Event> heap_;
    std::uint32_t number_ = 0;
    std::uint64_t events_ = 0;
};

}  // namespace ringlab::sim::test
