#include "sim/cost/layout_prices.hpp"

#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::sim {
namespace {

using layouts::Pass;

/// 0 for an infinite rate, and for a machine without a network (rate 0).
double seconds_of(double bytes, double rate) { return std::isfinite(rate) && rate > 0 ? bytes / rate : 0; }

/// The clock at which a kernel of full tiles uses the power that is allowed. FLOP/s grow with the clock and energy per
/// FLOP with its square, so power grows with its cube.
double sustained_clock(const AttentionCost& cost, const Machine& machine, double flop_per_pair) {
    const auto pairs = static_cast<double>(cost.tile_rows * cost.tile_keys) * machine.sms;
    const auto rate = pairs * flop_per_pair / cost.full_tile_seconds;
    return std::isfinite(cost.power_flops) && std::isfinite(rate) ? std::min(1.0, std::cbrt(cost.power_flops / rate))
                                                                  : 1.0;
}

// Tiles that the last work tile of keys of a launch meets. Not derived: documents of a packing have some thousand rows
// each.
constexpr double tiles_of_last_work_tile = 8;

layouts::PassPrices pass_prices(const Machine& machine, Pass pass, const layouts::Problem& p,
                                layouts::DType gradient_dtype) {
    const auto& cost = *kernel_price(machine, pass, p).cost;
    const bool forward = pass == Pass::forward;
    const auto heads = static_cast<double>(p.query_heads * p.batch),
               kv_heads = static_cast<double>(p.kv_heads * p.batch);
    const auto clock = sustained_clock(cost, machine, forward ? p.forward_flop_per_pair() : p.backward_flop_per_pair());
    const auto slower = tile_time_factor(machine, pass, p) / clock;
    const auto full = cost.full_tile_seconds * slower, partial = cost.partial_tile_seconds * slower;
    const auto work_tile = cost.work_tile_seconds / clock, resume = cost.resume_seconds / clock;
    const auto rows = static_cast<double>(cost.tile_rows), keys = static_cast<double>(cost.tile_keys);
    // Factors from the time of one head on one SM to the time of all heads on the device.
    const auto of_heads = heads / machine.sms, of_kv_heads = kv_heads / machine.sms;

    layouts::PassPrices prices;
    prices.pair = full * of_heads / (rows * keys);
    if (!(prices.pair > 0)) prices.pair = 1e-12;  // free work: the plan then balances pairs
    // Wasted pairs of a row: on the diagonal it meets tiles of which it sees half of the pairs, and at the end of a
    // part it shares tiles with rows and keys of another part.
    const auto hidden = (rows + keys) / 2;
    const auto diagonal = (partial - full) * of_heads * (rows + keys) / (rows * keys);
    prices.row = diagonal + (hidden / 2 + std::min(rows, keys) / 2) * prices.pair;
    prices.row += cost.work_tile == WorkTile::query_tile ? work_tile * of_heads / rows : work_tile * of_kv_heads / keys;
    prices.piece = partial * of_heads / 2;
    prices.owner = cost.launch_seconds;
    const bool by_rows = cost.work_tile == WorkTile::query_tile;
    if (by_rows) {
        prices.again = work_tile * of_heads / rows;
        prices.visit = (work_tile + resume) * of_heads / rows;
    } else {
        prices.key = work_tile * of_kv_heads / keys;
    }
    // SMs wait for half of a work tile on average at the end of a launch.
    const auto waiting = (machine.sms - 1.0) / machine.sms / 2;
    prices.owner += by_rows ? waiting * (work_tile + resume) : work_tile + waiting * tiles_of_last_work_tile * full;
    if (by_rows) prices.key = waiting * full / keys;
    prices.cut = full > 0 ? partial / full - 1 : 0;

    const auto key_bytes = static_cast<double>(p.batch * p.kv_heads * (p.head_dim + p.value_dim) * bytes_of(p.dtype));
    const auto gradient_bytes =
        forward ? 0 : static_cast<double>(p.batch * p.kv_heads * (p.head_dim + p.value_dim) * bytes_of(gradient_dtype));
    const auto port = machine.between_hosts.link_bytes_per_second * machine.nics_per_host / machine.gpus_per_host;
    prices.inside = {seconds_of(key_bytes, machine.inside_host.link_bytes_per_second),
                     seconds_of(gradient_bytes, machine.inside_host.link_bytes_per_second)};
    prices.between = {seconds_of(key_bytes, port), seconds_of(gradient_bytes, port)};
    prices.tile_rows = cost.tile_rows;
    if (forward) return prices;
    prices.sum = machine.accumulate_launch_seconds;
    prices.sum_key = seconds_of(machine.add_memory_ratio * gradient_bytes, machine.memory_bytes_per_second);
    return prices;
}

}  // namespace

layouts::LayoutPrices layout_prices(const Machine& machine, const layouts::Problem& problem, int ranks,
                                    layouts::DType gradient_dtype) {
    layouts::LayoutPrices prices;
    prices.ranks_per_host = std::min(machine.gpus_per_host, ranks);
    prices.tile = machine.forward.tile_rows;
    prices.crosses_once = ranks > machine.gpus_per_host;
    for (const auto pass : {Pass::forward, Pass::backward})
        prices.passes[static_cast<std::size_t>(pass)] = pass_prices(machine, pass, problem, gradient_dtype);
    if (machine.device_memory_bytes > 0) {
        // A rank holds its Q, O, dO and dQ; its K and V, their gradients, and two more gradients that arrive. The rest
        // is for other ranks' K, V and gradients.
        const auto share = static_cast<double>(problem.tokens / ranks);
        const auto element = static_cast<double>(bytes_of(problem.dtype));
        const auto gradient = static_cast<double>(bytes_of(gradient_dtype));
        const auto row = static_cast<double>(problem.batch * problem.query_heads) *
                         (static_cast<double>(problem.head_dim) * (element + gradient) +
                          static_cast<double>(problem.value_dim) * (2 * element + gradient));
        const auto numbers =
            static_cast<double>(problem.batch * problem.kv_heads * (problem.head_dim + problem.value_dim));
        const auto left = machine.device_memory_bytes - machine.reserved_memory_bytes -
                          share * (row + numbers * (element + 3 * gradient));
        prices.most_gathered = static_cast<std::int64_t>(std::max(1.0, left / (numbers * (element + gradient))));
    }
    return prices;
}

}  // namespace ringlab::sim
