#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ringlab::sim {

using layouts::Op;
using layouts::Pass;
using layouts::Problem;
using layouts::Schedule;

KernelPrice kernel_price(const Machine& machine, Pass pass, const Problem& problem) {
    const auto wanted = problem.soft_cap > 0 ? Scores::capped : Scores::plain;
    KernelPrice best{&machine.attention(pass)};
    const auto consider = [&](const AttentionCost& cost, Scores scores) {
        const KernelPrice price{&cost, problem.head_dim <= cost.head_dim && problem.value_dim <= cost.value_dim,
                                scores == wanted};
        const auto rank = [](const KernelPrice& one) {
            return std::tuple(!one.fits_dims, !one.fits_scores, one.cost->head_dim + one.cost->value_dim);
        };
        if (price.fits_dims && (!best.fits_dims || rank(price) < rank(best))) best = price;
    };
    consider(machine.attention(pass), Scores::plain);
    for (const auto& kernel : machine.kernels) consider(kernel.attention(pass), kernel.scores);
    if (!best.fits_dims) best.fits_scores = wanted == Scores::plain;
    return best;
}

const AttentionCost& attention_cost(const Machine& machine, const Schedule& schedule) {
    return *kernel_price(machine, schedule.options().pass, schedule.problem()).cost;
}

double tile_time_factor(const Machine& machine, const Schedule& schedule) {
    return tile_time_factor(machine, schedule.options().pass, schedule.problem());
}

double tile_time_factor(const Machine& machine, Pass pass, const Problem& p) {
    const auto price = kernel_price(machine, pass, p);
    if (price.fits_dims && !machine.kernels.empty()) return 1;
    const auto flop = [&](std::int64_t d, std::int64_t v) {
        return static_cast<double>(pass == Pass::forward ? d + v : 3 * d + 2 * v);
    };
    return flop(p.head_dim, p.value_dim) / flop(price.cost->head_dim, price.cost->value_dim);
}

std::vector<std::string> notes_of_kernel(const Machine& machine, const Schedule& schedule) {
    const auto& p = schedule.problem();
    const auto price = kernel_price(machine, schedule.options().pass, p);
    const auto& cost = *price.cost;
    std::vector<std::string> notes;
    if (tile_time_factor(machine, schedule) != 1)
        notes.push_back(fmt::format(
            "tile times were calibrated for head and value dims {} and {}; for {} and {} they are scaled by FLOP",
            cost.head_dim, cost.value_dim, p.head_dim, p.value_dim));
    if (cost.tiles_from_rate)
        notes.push_back(fmt::format("the machine file has no tile prices: they are computed from teraflops, {:.4g}",
                                    cost.flops / 1e12));
    if (const auto rates = contradiction_of_rates(cost, schedule.options().pass, machine.sms); !rates.empty())
        notes.push_back("tile prices and teraflops of the machine file disagree: " + rates);
    if (!price.fits_scores)
        notes.push_back(p.soft_cap > 0
                            ? fmt::format("the machine file has no kernel with a soft cap for head and value dims {} "
                                          "and {}: the prediction assumes that the cap takes no time",
                                          p.head_dim, p.value_dim)
                            : fmt::format("for head and value dims {} and {} the machine file has only a kernel with a "
                                          "soft cap: its times are used",
                                          p.head_dim, p.value_dim));
    return notes;
}

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
