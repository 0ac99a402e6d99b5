#pragma once

#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {

/// Blocks that hop around a ring of ranks (Liu et al. 2023, arXiv 2310.01889): at step t the member at position p holds
/// the K/V block of position p - t, and passes it on to p + 1 while it attends to it. In the backward pass the gradient
/// of a block travels one step behind the block, every member adds its part, and the last contributor sends it to the
/// block's owner.
///
/// A block travels only as far as some member still needs it, and a member whose rows see none of its keys does not
/// compute.
class RingSchedule : public Schedule {
public:
    using Schedule::Schedule;

protected:
    /// One rank's position in a ring, and the blocks and slots of its own tensors.
    struct Member {
        int position = 0;
        int size = 1;
        int first_rank = 0;  ///< at position p is rank first_rank + p * stride, with key block first_block + p
        int stride = 1;
        int first_block = 0;
        HeadRange heads;  ///< of K and V
        Part rows;        ///< the member's query rows
        int slot = 0;     ///< of the member's own tensors, in all pools; the ring's scratch slots follow it
        // Operations after which the own tensors are available; -1: from the start.
        OpIndex ready = -1;   ///< the last message
        OpIndex copied = -1;  ///< the last one on the compute lane

        int at(int steps_back) const { return (position - steps_back + size) % size; }
        int rank(int position_) const { return first_rank + position_ * stride; }
        int next() const { return rank(at(-1)); }
        int previous() const { return rank(at(1)); }
    };

    /// The member of a ring of all ranks.
    Member member_of_all(int rank) const {
        return {.position = rank, .size = ranks(), .heads = kv_heads(), .rows = rows_of(rank, query_heads())};
    }

    static constexpr int kv_channel = 0;
    int dkv_channel_ = 1;  ///< changed by schedules that have other channels before it

    Ops forward(Member self) const;
    Ops backward(Member self) const;

    /// Adds the scratch slots of members of rings of `size`, with at most `rows` query rows and blocks of at most
    /// `tokens` tokens.
    void add_ring_slots(int size, int query_heads, int kv_heads, std::int64_t rows, std::int64_t tokens);

    /// Finds how far the blocks of a ring have to travel. Constructors call it once for each ring. The member at
    /// position p has the keys of block first_block + p and the rows of block first_rows + p.
    void find_hops(int first_block, int first_rows, int size);

    const Hops& hops(const Member& self, int position) const { return hops_[index(self.first_block + position)]; }
    Part keys_at(const Member& self, int step) const { return part(self.first_block + self.at(step), self.heads); }
    bool receives(const Member& self, int step) const {
        return step < self.size && step <= hops(self, self.at(step)).last;
    }
    bool passes_on(const Member& self, int step) const { return step < hops(self, self.at(step)).last; }
    int last_needed(const Member& self) const;
    /// Whether gradients travel in another type than they are summed in.
    bool gradient_types_differ() const { return options().gradient_dtype != accumulator(); }

private:
    // Travelling blocks alternate between two slots, and travelling gradients likewise. A third gradient slot holds the
    // member's own part until it is added, a fourth the final gradient of its own block if that arrives in another type
    // than it is stored in.
    static constexpr std::size_t turn(int step) { return step == 0 ? 0 : 1 + index(step % 2); }
    static int slot_of_step(const Member& self, int step) { return self.slot + static_cast<int>(turn(step)); }
    static int partial_slot(const Member& self) { return self.slot + 3; }
    static int arrival_slot(const Member& self) { return self.slot + 4; }

    Op send_block(const Member& self, int step, OpIndex arrival) const;
    Op receive_block(const Member& self, int step, const Readers& readers) const;
    Op gradient(OpKind kind, const Member& self, int step, int peer, int position, int slot) const;

    std::vector<Hops> hops_;  // by block, of the members that need it
};

}  // namespace ringlab::layouts
