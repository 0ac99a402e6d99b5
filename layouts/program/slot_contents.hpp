#pragma once

#include "layouts/program/program.hpp"

#include <functional>

namespace ringlab::layouts {

/// Follows what each slot of one rank holds, operation by operation, and which operations last accessed it, to check
/// that a schedule uses its slots correctly.
class SlotContents {
public:
    SlotContents(const Schedule& schedule, int rank);

    /// Whether the first operation is certain to have ended before the second one begins, see HappensBefore.
    using Before = std::function<bool(OpIndex, OpIndex)>;

    /// Notes that operation `which` accesses `operand`; returns the first head that the slot holds. Throws Error if the
    /// slot does not hold what is read, or if the access conflicts with that of an earlier operation and `before` does
    /// not put the two in order.
    int use(OpIndex which, const Operand& operand, const Before& before);

    /// Throws Error if the running softmax of some rows was begun and never ended.
    void require_finished() const;

    /// Whether slot 0 of a gradient must be 0 at the start: it is added to before it is written, or not all of it is
    /// ever written.
    bool needs_zeroed(Pool gradient) const {
        return schedule_.keeps(gradient) &&
               (read_before_write_[static_cast<std::size_t>(gradient)] || !covers_own(gradient));
    }
    /// Whether some of slot 0 of the output is never written.
    bool has_unwritten_output() const { return !covers_own(Pool::output); }

private:
    struct Rectangle {
        HeadRange heads;
        Interval tokens;
    };
    struct SlotAccess {
        OpIndex op;
        int generation;
        Rectangle where;
        bool writes;
    };
    struct Slot {
        int generation = 0;  // counts how often the contents were replaced
        int block = -1;
        HeadRange heads;
        std::vector<Rectangle> written;
        std::vector<SlotAccess> visits;
    };

    static bool covered(Rectangle wanted, std::span<const Rectangle> by);
    bool is_given(const Operand& operand) const;
    bool is_input(Pool pool) const;
    bool covers_own(Pool pool) const;
    void replace_contents(Slot& slot, const Operand& operand) const;
    void check_order(OpIndex which, const Operand& operand, const Slot& slot, const Before& before) const;

    const Schedule& schedule_;
    int rank_;
    std::array<bool, pool_count> read_before_write_{};
    std::array<std::vector<Slot>, pool_count> slots_;
};

}  // namespace ringlab::layouts
