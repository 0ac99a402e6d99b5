#include "sim/tiles/kernels.hpp"

#include "sim/machine/tile_rates.hpp"

#include <fmt/format.h>

namespace ringlab::sim {

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

}  // namespace ringlab::sim
