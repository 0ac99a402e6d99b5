#pragma once

#include "layouts/basics/basic_types.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// Prefetches `bytes` from `begin` on into the cache; any address is allowed. Always inlined, because GCC takes a
/// function that only prefetches for one without effect and removes its calls.
[[gnu::always_inline]] inline void prefetch(const void* begin, std::size_t bytes) {
    constexpr std::size_t line = 64;
    for (std::size_t at = 0; at < bytes; at += line) __builtin_prefetch(static_cast<const char*>(begin) + at);
}

/// A 4-ary heap of (time, id) with each id in it at most once. Ids are small whole numbers that the caller chooses;
/// times are not negative.
///
/// Equal times leave in the order in which they were set, so a run is reproducible to the bit. An entry has 16 bytes,
/// the four children of a node share a cache line, and nothing is allocated for an event once the heap has grown.
class EventQueue {
public:
    static constexpr std::uint32_t most_ids = 1u << 26;

    struct Event {
        Picoseconds time;
        std::uint32_t id;
    };

    /// Reserves memory for ids below `ids`. Usually fewer events than that are in the queue at a time.
    void reserve(std::size_t ids) { position_.reserve(ids); }

    bool empty() const { return size() == 0; }
    std::size_t size() const { return size_ - hole_; }

    /// When an event leaves. `number` counts calls of set() and decides among equal times.
    struct EventOrder {
        Picoseconds time;
        std::uint64_t number;
        bool operator<(const EventOrder& other) const {
            return time != other.time ? time < other.time : number < other.number;
        }
    };

    /// The earliest event; the queue must not be empty.
    struct First {
        EventOrder event_order;
        std::uint32_t id;
    };
    First first() const {
        auto entry = at(hole_ ? 1 : 0);
        if (hole_)  // one of the root's children
            for (std::uint32_t child = 2; child < size_ && child <= 4; ++child)
                if (at(child) < entry) entry = at(child);
        return {{time_of(entry), static_cast<std::uint64_t>(entry) >> id_bits}, id_of(entry)};
    }

    /// Whether `id` is in the queue and leaves at `time` or earlier.
    bool leaves_by(std::uint32_t id, Picoseconds time) const {
        return id < position_.size() && position_[id] != absent && time_of(at(position_[id])) <= time;
    }

    /// The number that set() would use now, for an event that waits elsewhere first.
    std::uint64_t take_number() { return sequence_++; }

    /// Inserts `id` at `time` or moves it there. It leaves behind everything that was set for that time before.
    void set(std::uint32_t id, Picoseconds time) { set(id, {time, sequence_++}); }

    /// The same with a number from take_number().
    void set(std::uint32_t id, const EventOrder& event_order) {
        if (id >= position_.size()) position_.resize(id + 1, absent);
        const auto entry =
            Entry{static_cast<std::uint64_t>(event_order.time)} << 64 | (event_order.number << id_bits | id);
        const auto before = position_[id];
        if (before != absent) {
            entry < at(before) ? rise(before, entry) : sink(before, entry);
        } else if (hole_) {
            hole_ = false;
            sink(0, entry);
        } else {
            if ((size_ + first_slot) / 4 >= lines_.size()) {
                if (lines_.size() == lines_.capacity()) lines_.reserve(lines_.size() + lines_.size() / 4 + 1);
                lines_.emplace_back();
            }
            rise(size_++, entry);
        }
    }

    /// Removes the earliest event; the queue must not be empty.
    Event pop() {
        fill_hole();
        const auto first = at(0);
        position_[id_of(first)] = absent;
        hole_ = true;
        return {time_of(first), id_of(first)};
    }

private:
    // Time in the upper half, then the sequence number, then the id: one comparison without a branch.
    __extension__ using Entry = unsigned __int128;

    struct alignas(64) Line {
        Entry entry[4];
    };

    static constexpr int id_bits = 26;
    static constexpr std::uint32_t absent = ~0u;
    static constexpr std::uint32_t first_slot = 3;  // of the root, so that children 4i+1 .. 4i+4 fill a line

    static std::uint32_t id_of(Entry entry) { return static_cast<std::uint32_t>(entry) & (most_ids - 1); }
    static Picoseconds time_of(Entry entry) { return static_cast<Picoseconds>(entry >> 64); }

    Entry& at(std::uint32_t i) { return lines_[(i + first_slot) / 4].entry[(i + first_slot) % 4]; }
    const Entry& at(std::uint32_t i) const { return lines_[(i + first_slot) / 4].entry[(i + first_slot) % 4]; }

    void fill_hole() {
        if (!hole_) return;
        hole_ = false;
        const auto last = at(--size_);
        if (size_ > 0) sink(0, last);
    }

    void place(std::uint32_t i, Entry entry) {
        at(i) = entry;
        position_[id_of(entry)] = i;
    }

    void rise(std::uint32_t i, Entry entry) {
        while (i > 0) {
            const auto parent = (i - 1) / 4;
            if (!(entry < at(parent))) break;
            place(i, at(parent));
            i = parent;
        }
        place(i, entry);
    }

    void sink(std::uint32_t i, Entry entry) {
        for (;;) {
            const auto first = 4 * i + 1;
            if (first >= size_) break;
            const auto& children = lines_[i + 1].entry;
            prefetch(lines_.data() + 4 * i + 2, 4 * sizeof(Line));
            const auto count = size_ - first < 4 ? size_ - first : 4;
            auto least = children[0];
            std::uint32_t smallest = 0;
            for (std::uint32_t child = 1; child < count; ++child) {
                const bool less = children[child] < least;
                least = less ? children[child] : least;
                smallest = less ? child : smallest;
            }
            if (!(least < entry)) break;
            place(i, least);
            i = first + smallest;
        }
        place(i, entry);
    }

    std::vector<Line> lines_;
    std::vector<std::uint32_t> position_;  // by id
    std::uint32_t size_ = 0;
    std::uint64_t sequence_ = 0;
    // The root was popped but is still stored. The next set() usually takes its place, which costs one walk down the
    // heap instead of one down and one up.
    bool hole_ = false;
};

}  // namespace ringlab::sim
