#pragma once

#include "layouts/program.hpp"

namespace ringlab::layouts {

/// Checks what one rank's operations say of themselves: peers, bytes, heads, slots. What they do to each other, and to
/// other ranks, is for others to check.
class FormCheck {
public:
    FormCheck(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

    /// Throws Error that names rank and operation.
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

/// Whether both are of the same tokens, in the same order, whatever block they lie in.
bool same_tokens(const Schedule& schedule, const Part& a, const Part& b);

}  // namespace ringlab::layouts
