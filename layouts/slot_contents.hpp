#pragma once

#include "layouts/program.hpp"

#include <functional>

namespace ringlab::layouts {

/// What the slots of one rank hold as its operations go by, and who was there last.
class SlotContents {
public:
    SlotContents(const Schedule& schedule, int rank);

    using Before = std::function<bool(OpIndex, OpIndex)>;

    /// Notes that operation `which` works on `operand`; returns the first head that the slot holds. Throws Error if it
    /// does not hold what is read, or if an earlier operation is there of which `before` does not say that it has
    /// ended.
    int use(OpIndex which, const Operand& operand, const Before& before);

    /// Throws Error if rows were begun and never ended.
    void require_finished() const;

    bool sums_from_zero(Pool gradient) const {
        return schedule_.keeps(gradient) && (needs_zero_[static_cast<std::size_t>(gradient)] || !covers_own(gradient));
    }
    bool leaves_output() const { return !covers_own(Pool::output); }

private:
    struct Rectangle {
        HeadRange heads;
        Interval tokens;
    };
    struct Visit {
        OpIndex op;
        int frame;
        Rectangle where;
        bool writes;
    };
    struct Slot {
        int frame = 0;  // counts what has lain here
        int block = -1;
        HeadRange heads;
        std::vector<Rectangle> written;
        std::vector<Visit> visits;
    };

    static bool covered(Rectangle wanted, std::span<const Rectangle> by);
    bool is_given(const Operand& operand) const;
    bool is_input(Pool pool) const;
    bool covers_own(Pool pool) const;
    void displace(Slot& slot, const Operand& operand) const;
    void check_order(OpIndex which, const Operand& operand, const Slot& slot, const Before& before) const;

    const Schedule& schedule_;
    int rank_;
    std::array<bool, pool_count> needs_zero_{};
    std::array<std::vector<Slot>, pool_count> slots_;
};

}  // namespace ringlab::layouts
