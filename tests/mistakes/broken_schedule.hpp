#pragma once

#include "layouts/program/program.hpp"
#include "layouts/schedules/schedule.hpp"

#include <memory>

namespace ringlab::experiments {

/// Wraps a schedule so that interpreters make a mistake. A schedule itself cannot make these mistakes, because its
/// rules are checked.
class BrokenSchedule : public layouts::Schedule {
public:
    enum class Break {
        stale_block,  ///< every attend uses the rank's own K and V instead of the block that arrived
        local_mask,   ///< the mask is asked with positions inside the block
    };

    BrokenSchedule(std::unique_ptr<layouts::Schedule> original, Break how);

    layouts::Ops ops(int rank) const override { return original_->ops(rank); }
    std::vector<layouts::Run> runs(const layouts::Part& part) const override;
    void modify_program(layouts::Program& program) const override;

private:
    std::unique_ptr<layouts::Schedule> original_;
    Break how_;
};

}  // namespace ringlab::experiments
