#include "sim/cost/split_kv.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::sim {

bool uses_split_kv(const Schedule& schedule, const Op& attend, const Machine& machine) {
    return schedule.options().pass == layouts::Pass::forward && attend.rows().tokens.size() <= machine.split_kv.rows;
}

double split_kv_seconds(const Schedule& schedule, const Op& attend, const Machine& machine) {
    const auto& few = machine.split_kv;
    const auto all = static_cast<double>(attend.part.tokens.size());
    // Each visible key accounts for at least one pair.
    const auto seen = all == 0 ? 0 : std::min(all, static_cast<double>(attend.pair_count)) / all;
    const auto bytes =
        seen * static_cast<double>(schedule.bytes(layouts::Pool::kv, attend.slot(layouts::Pool::kv), attend.part));
    const auto kv_heads = schedule.problem().batch * attend.part.heads.count();
    const auto group = attend.rows().heads.count() / std::max(1, attend.part.heads.count());
    const auto work_tiles =
        static_cast<double>(kv_heads * ((attend.rows().tokens.size() * group + few.rows - 1) / few.rows));
    const auto work_tile_bytes = bytes / static_cast<double>(kv_heads);
    auto share = std::ceil(work_tiles / machine.sms) * work_tile_bytes;  // of the thread block that reads most
    for (const auto& some : few.groups)
        share = std::min(share, std::ceil(work_tiles / static_cast<double>(some.at_a_time)) * work_tile_bytes /
                                    static_cast<double>(some.sms));
    return few.launch_seconds + std::max(bytes / few.bytes_per_second, share / few.block_bytes_per_second);
}

}  // namespace ringlab::sim
