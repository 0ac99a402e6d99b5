#pragma once

#include "layouts/units.hpp"

#include <cstdint>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// A 4-ary heap of (time, id) with each id in it at most once; ids are small whole numbers chosen by the caller.
///
/// Equal times leave in the order in which they were set, so a run is reproducible to the bit. An entry is 16 bytes,
/// so the four children of a node share a cache line; nothing is allocated per event once the heap has grown.
class EventQueue {
public:
    static constexpr std::uint32_t most_ids = 1u << 24;

    struct Event {
        Picoseconds time;
        std::uint32_t id;
    };

    bool empty() const { return heap_.empty(); }
    std::size_t size() const { return heap_.size(); }
    Picoseconds next_time() const { return heap_.front().time; }

    /// Puts `id` in at `time`, or moves it there; either way it goes behind everything set for that time before.
    void set(std::uint32_t id, Picoseconds time) {
        if (id >= position_.size()) position_.resize(id + 1, absent);
        const Entry entry{time, sequence_++ << id_bits | id};
        auto at = position_[id];
        if (at == absent) {
            at = static_cast<std::uint32_t>(heap_.size());
            heap_.push_back(entry);
            rise(at, entry);
        } else if (entry < heap_[at]) {
            rise(at, entry);
        } else {
            sink(at, entry);
        }
    }

    /// Takes out the earliest event; the queue must not be empty.
    Event pop() {
        const auto first = heap_.front();
        position_[first.id()] = absent;
        const auto last = heap_.back();
        heap_.pop_back();
        if (!heap_.empty()) sink(0, last);
        return {first.time, first.id()};
    }

private:
    static constexpr int id_bits = 24;
    static constexpr std::uint32_t absent = ~0u;

    struct Entry {
        Picoseconds time;
        std::uint64_t order;  // sequence number above, id below

        std::uint32_t id() const { return static_cast<std::uint32_t>(order & (most_ids - 1)); }
        bool operator<(const Entry& other) const {
            return time < other.time || (time == other.time && order < other.order);
        }
    };

    void place(std::uint32_t at, const Entry& entry) {
        heap_[at] = entry;
        position_[entry.id()] = at;
    }

    void rise(std::uint32_t at, const Entry& entry) {
        while (at > 0) {
            const auto parent = (at - 1) / 4;
            if (!(entry < heap_[parent])) break;
            place(at, heap_[parent]);
            at = parent;
        }
        place(at, entry);
    }

    void sink(std::uint32_t at, const Entry& entry) {
        const auto size = static_cast<std::uint32_t>(heap_.size());
        for (;;) {
            const auto first = 4 * at + 1;
            if (first >= size) break;
            const auto end = first + 4 < size ? first + 4 : size;
            auto least = first;
            for (auto child = first + 1; child < end; ++child)
                if (heap_[child] < heap_[least]) least = child;
            if (!(heap_[least] < entry)) break;
            place(at, heap_[least]);
            at = least;
        }
        place(at, entry);
    }

    std::vector<Entry> heap_;
    std::vector<std::uint32_t> position_;  // by id
    std::uint64_t sequence_ = 0;
};

}  // namespace ringlab::sim
