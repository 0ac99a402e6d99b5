#pragma once

#include "layouts/layouts/visible_pairs.hpp"

#include <cstdint>
#include <span>

namespace ringlab::gpu::hopper {

/// The row groups of a launch, and how many key tiles (entries) all of them have and the longest has.
struct RowGroupLoad {
    std::int64_t row_groups = 0, entries = 0, longest = 0;
};

/// Thread blocks per row group that make a launch shortest, of some choices (SmGroup::sms is the number of blocks), and
/// on the current device.
int blocks_per_row_group(const RowGroupLoad& load, std::span<const layouts::SmGroup> choices);
int blocks_per_row_group(const RowGroupLoad& load);

}  // namespace ringlab::gpu::hopper
