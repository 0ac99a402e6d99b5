#pragma once

#include "layouts/program/program.hpp"

namespace ringlab::layouts {

/// Checks each operation of one rank by itself: peers, bytes, heads, slots. How operations interact, within a rank and
/// between ranks, is checked elsewhere (SlotContents, match_messages(), find_deadlock()).
class OperationCheck {
public:
    OperationCheck(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

    /// Throws Error that names rank and operation if the operation is malformed.
    void operator()(OpIndex which, const Op& op) const;

private:
    template <class Expect>
    void check_bytes(const Expect& expect, const Op& op) const;
    template <class Expect>
    void check_heads(const Expect& expect, const Op& op) const;
    template <class Expect>
    void check_operand(const Expect& expect, const Operand& operand) const;

    const Schedule& schedule_;
    int rank_;
};

/// Whether both parts have the same tokens in the same order, possibly in different blocks.
bool same_tokens(const Schedule& schedule, const Part& a, const Part& b);

}  // namespace ringlab::layouts
