#pragma once

#include "layouts/basics/checked_arithmetic.hpp"

#include <algorithm>

namespace ringlab::sim {

/// Sums of one rank's durations step by step: the estimates that a simulator has to beat.
class NaiveEstimate {
public:
    void add_compute(int step, layouts::Picoseconds duration) {
        enter(step);
        compute_ = layouts::checked_sum(compute_, duration);
    }
    void add_transfer(int step, layouts::Picoseconds duration) {
        enter(step);
        transfer_ = layouts::checked_sum(transfer_, duration);
    }
    layouts::Picoseconds overlapped() const { return layouts::checked_sum(overlapped_, std::max(compute_, transfer_)); }
    layouts::Picoseconds serial() const {
        return layouts::checked_sum(serial_, layouts::checked_sum(compute_, transfer_));
    }

private:
    void enter(int step) {
        if (step == step_) return;
        overlapped_ = overlapped();
        serial_ = serial();
        compute_ = transfer_ = 0;
        step_ = step;
    }

    layouts::Picoseconds overlapped_ = 0, serial_ = 0, compute_ = 0, transfer_ = 0;
    int step_ = -1;
};

}  // namespace ringlab::sim
