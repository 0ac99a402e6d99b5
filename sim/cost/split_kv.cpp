#include "sim/cost/split_kv.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::sim {

bool uses_split_kv(const Schedule& schedule, const Op& attend, const Machine& machine) {
    if (schedule.problem().dropout.drops()) return false;  // these kernels have none
    const auto few_rows = machine.split_kv.rows, tokens = attend.rows().tokens.size();
    if (schedule.options().pass != layouts::Pass::forward || few_rows == 0) return false;
    // Kernels take any such rows. Here only rows of decoding: calibration times rings of whole sequences that attend to
    // next to nothing, and the kernels of its records took other work tiles for them.
    const bool decodes = !schedule.problem().queries.empty();
    constexpr std::int64_t tokens_of_batch = 16;  // times `few_rows`, as in the kernels
    return tokens <= few_rows || (decodes && tokens <= tokens_of_batch * few_rows &&
                                  attend.pair_count <= few_rows * attend.part.tokens.size());
}

bool passes_are_one_launch(const Schedule& schedule, const Machine& machine) {
    if (!schedule.is_one_launch() || machine.inside_host.uses_kernels()) return false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next())
            if (op->kind == layouts::OpKind::attend && !uses_split_kv(schedule, *op, machine)) return false;
    }
    return true;
}

double split_kv_seconds(const Schedule& schedule, const Op& attend, const Machine& machine) {
    const auto& price = machine.split_kv;
    const auto all = static_cast<double>(attend.part.tokens.size()), pairs = static_cast<double>(attend.pair_count);
    const auto tokens = attend.rows().tokens.size();
    // Each visible key accounts for at least one pair.
    const auto seen = all == 0 ? 0 : std::min(all, pairs) / all;
    const auto bytes =
        seen * static_cast<double>(schedule.bytes(layouts::Pool::kv, attend.slot(layouts::Pool::kv), attend.part));
    const auto kv_heads = schedule.problem().batch * attend.part.heads.count();
    const auto group = attend.rows().heads.count() / std::max(1, attend.part.heads.count());
    const auto work_tiles = static_cast<double>(kv_heads * ((tokens * group + price.rows - 1) / price.rows));
    // A work tile's rows see no more keys than all do, and than the sum of what each sees.
    const auto tile_tokens = std::max(1.0, static_cast<double>(price.rows) / static_cast<double>(group));
    const auto seen_by_tile =
        pairs == 0 ? 0 : std::min(1.0, tile_tokens * pairs / static_cast<double>(tokens) / std::min(all, pairs));
    const auto work_tile_bytes = seen_by_tile * bytes / static_cast<double>(kv_heads);
    auto share = std::ceil(work_tiles / machine.sms) * work_tile_bytes;  // of the thread block that reads most
    for (const auto& some : price.groups)
        share = std::min(share, std::ceil(work_tiles / static_cast<double>(some.at_a_time)) * work_tile_bytes /
                                    static_cast<double>(some.sms));
    return price.launch_seconds + std::max(bytes / price.bytes_per_second, share / price.block_bytes_per_second);
}

}  // namespace ringlab::sim
