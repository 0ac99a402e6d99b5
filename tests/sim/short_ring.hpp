#pragma once

#include "layouts/schedules/schedule.hpp"

namespace ringlab::sim::test {

/// The first `steps` steps of a ring's forward pass, for runs with fewer steps than ranks. `whole` must outlive it.
class ShortRing : public layouts::Schedule {
public:
    ShortRing(const layouts::Schedule& whole, int steps)
        : Schedule(whole.problem(), whole.mask(), whole.layout(), whole.options()), whole_(whole), steps_(steps) {
        set_channels(whole.channels());
    }

    bool is_rank_symmetric() const override { return whole_.is_rank_symmetric(); }

    layouts::Ops ops(int rank) const override {
        if (steps_ >= ranks()) return whole_.ops(rank);
        return beginning(rank);
    }

private:
    layouts::Ops beginning(int rank) const {
        layouts::Op& place = co_await layouts::Ops::op_storage;
        auto ops = whole_.ops(rank).with_op_storage(place);
        while (const auto* op = ops.next()) {
            if (op->step >= steps_) co_return;
            // What goes on to a step beyond the last is not sent.
            if (op->kind == layouts::OpKind::send && op->step == steps_ - 1) continue;
            co_yield *op;
        }
    }

    const layouts::Schedule& whole_;
    int steps_;
};

}  // namespace ringlab::sim::test
