#pragma once

#include "layouts/schedule.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace ringlab::reference {

/// The numbered buffers of one payload of one rank (layouts::Op), and what each holds now. Slot 0 is the rank's own
/// block, all heads; the others are scratch.
///
/// A block lies in its slot head by head, tight for its owner's tokens: (heads, batch, tokens, elements), so that any
/// range of heads is one piece of memory, and a message. Reading heads of a block that the slot does not hold, or
/// touching what a transfer is still working on, throws Error: a schedule that does so is wrong.
class SlotSet {
public:
    struct Shape {
        std::string name;    ///< for messages: "K/V"
        int slots = 0;       ///< scratch slots
        int slot_heads = 0;  ///< heads that a scratch slot holds
        std::int64_t scratch_bytes_per_head_token = 0;
        std::int64_t own_bytes_per_head_token = 0;  ///< in slot 0, which may be of a wider type; all batch elements
    };

    SlotSet(Shape shape, const layouts::Layout& layout, int rank, int all_heads);

    /// Memory of `heads` of `owner`'s block in `slot`, to be read.
    std::span<std::byte> read(int slot, int owner, layouts::HeadRange heads);

    /// The same to be written whole: a scratch slot holds these heads and nothing else from now on.
    std::span<std::byte> write(int slot, int owner, layouts::HeadRange heads);

    /// The same to be changed in place: the slot goes on holding all that it holds.
    std::span<std::byte> change(int slot, int owner, layouts::HeadRange heads);

    /// A transfer reads or writes the slot from now until release().
    void lock_for_reading(int slot) { ++at(slot).readers; }
    void lock_for_writing(int slot) { at(slot).writing = true; }
    void release(int slot, bool reads) { reads ? void(--at(slot).readers) : void(at(slot).writing = false); }

    /// All of slot 0.
    std::span<std::byte> own() { return at(0).memory; }

    /// Where `heads` begin in slot 0 of `owner`, in bytes.
    std::size_t own_offset(int owner, layouts::HeadRange heads) const;

    /// Bytes of the scratch slots.
    std::int64_t scratch_bytes() const;

private:
    struct Slot {
        std::vector<std::byte> memory;
        int owner = -1;  // -1: undefined
        layouts::HeadRange heads;
        int readers = 0;
        bool writing = false;
    };

    Slot& at(int slot);
    std::int64_t head_bytes(int slot, int owner) const;
    std::span<std::byte> piece(int slot, int owner, layouts::HeadRange heads);

    Shape shape_;
    int rank_;
    std::vector<std::int64_t> shard_tokens_;
    std::vector<Slot> slots_;
};

}  // namespace ringlab::reference
