#pragma once

#include "layouts/problem/dropout.hpp"

#include <cstdint>
#include <span>

namespace ringlab::reference {

/// Draws the dropout factors of p, row by row, on a CPU.
class DropoutFactors {
public:
    explicit DropoutFactors(const layouts::Dropout& dropout)
        : drops_(dropout.drops()), factor_(dropout.factor()), draw_(layouts::dropout_draw(dropout)) {}

    bool drops() const { return drops_; }

    /// One row of one query head.
    struct Row {
        std::int64_t batch, head, query;  ///< `query` is a global position
    };

    /// Sets factors[c] for the row and the key at global position keys[c]: 0 if the pair is dropped, otherwise
    /// Dropout::factor().
    template <class Real>
    void draw(std::span<Real> factors, std::span<const std::int64_t> keys, const Row& row) const;

private:
    bool drops_;
    double factor_;
    layouts::DropoutDraw draw_;
};

}  // namespace ringlab::reference
