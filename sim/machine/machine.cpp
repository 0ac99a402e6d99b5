#include "sim/machine/machine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringlab::sim {
namespace {

using layouts::Pass;

constexpr double flops_of_teraflop = 1e12;

/// Seconds of one SM for a tile, if all SMs together have a rate of `flops`.
double tile_seconds(const AttentionCost& cost, Pass pass, double sms, double flops) {
    layouts::Problem problem;
    problem.head_dim = cost.head_dim;
    problem.value_dim = cost.value_dim;
    const auto of_a_pair = pass == Pass::forward ? problem.forward_flop_per_pair() : problem.backward_flop_per_pair();
    return static_cast<double>(cost.tile_rows * cost.tile_keys) * of_a_pair * sms / flops;
}

bool has_no_tile_prices(const AttentionCost& cost) {
    return cost.full_tile_seconds == 0 && cost.partial_tile_seconds == 0;
}

void set_figure(Machine& machine, const std::string& name, double value) {
    const auto source = "computed from teraflops: the file has no tile prices";
    const auto known = std::ranges::find(machine.figures, name, &Figure::name);
    if (known != machine.figures.end())
        *known = {name, value, source};
    else
        machine.figures.push_back({name, value, source});
}

double value_for(double bytes, const std::vector<LinkCost::BySize>& classes, double without_any) {
    for (const auto& some : classes)
        if (bytes <= some.up_to_bytes) return some.value;
    return classes.empty() ? without_any : classes.back().value;
}

}  // namespace

double LinkCost::channels_for(double bytes) const { return value_for(bytes / messages_per_block, channels, 1); }

double LinkCost::rate(double bytes, double slow_link_factor) const {
    return std::min(channels_for(bytes) * channel_bytes_per_second, link_bytes_per_second / slow_link_factor);
}

std::string contradiction_of_rates(const AttentionCost& cost, Pass pass, double sms) {
    if (has_no_tile_prices(cost) || std::isinf(cost.flops) || cost.tile_rows == 1) return "";
    constexpr double alike = 1.2;
    const auto by_tiles = cost.flops * tile_seconds(cost, pass, sms, cost.flops) / cost.full_tile_seconds;
    if (std::max(by_tiles, cost.flops) <= alike * std::min(by_tiles, cost.flops)) return "";
    return fmt::format("{:.4g} TFLOP/s by full_tile_us, {:.4g} by teraflops", by_tiles / flops_of_teraflop,
                       cost.flops / flops_of_teraflop);
}

void complete_tile_prices(Machine& machine) {
    std::vector<std::string> scaled, contradicting;
    const auto settle = [&](const std::string& section, Pass pass, AttentionCost& cost) {
        if (has_no_tile_prices(cost) && std::isfinite(cost.flops)) {
            cost.full_tile_seconds = cost.partial_tile_seconds = tile_seconds(cost, pass, machine.sms, cost.flops);
            cost.tiles_from_rate = true;
            for (const auto* key : {".full_tile_us", ".partial_tile_us"})
                set_figure(machine, section + key, cost.full_tile_seconds * 1e6);
            scaled.push_back(fmt::format("{} ({:.4g} TFLOP/s)", section, cost.flops / flops_of_teraflop));
        } else if (const auto rates = contradiction_of_rates(cost, pass, machine.sms); !rates.empty()) {
            contradicting.push_back(fmt::format("{} {}", section, rates));
        }
    };
    settle("attention.forward", Pass::forward, machine.forward);
    settle("attention.backward", Pass::backward, machine.backward);
    for (auto& kernel : machine.kernels) {
        settle(fmt::format("kernels.{}.forward", kernel.name), Pass::forward, kernel.forward);
        settle(fmt::format("kernels.{}.backward", kernel.name), Pass::backward, kernel.backward);
    }
    if (!scaled.empty())
        machine.notes.push_back(
            fmt::format("no tile prices; they are computed from teraflops: {}", fmt::join(scaled, ", ")));
    if (!contradicting.empty())
        machine.notes.push_back(
            fmt::format("tile prices and teraflops disagree: {}; predictions use tile prices, or teraflops with "
                        "--compute-model rate",
                        fmt::join(contradicting, "; ")));
}

}  // namespace ringlab::sim
