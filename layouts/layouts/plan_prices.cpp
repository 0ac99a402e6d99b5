#include "layouts/layouts/plan.hpp"

namespace ringlab::layouts {

const PlanPrices& default_plan_prices() {
    static const PlanPrices prices{.passes = {PassPrices{.pair = 5.0917e-11,
                                                         .row = 2.1357e-8,
                                                         .piece = 6.0188e-7,
                                                         .again = 9.0657e-9,
                                                         .owner = 1.0081e-5,
                                                         .visit = 1.6152e-8,
                                                         .key = 6.6702e-9,
                                                         .inside = {.key = 1.0530e-8},
                                                         .between = {.key = 8.5333e-8},
                                                         .tile_rows = 128},
                                              PassPrices{.pair = 1.3650e-10,
                                                         .row = 2.9730e-8,
                                                         .piece = 8.4359e-7,
                                                         .owner = 2.9539e-5,
                                                         .key = 5.4754e-9,
                                                         .sum = 7.1164e-6,
                                                         .sum_key = 6.4044e-9,
                                                         .inside = {.key = 1.0530e-8, .gradient = 2.1059e-8},
                                                         .between = {.key = 8.5333e-8, .gradient = 1.7067e-7},
                                                         .tile_rows = 64}},
                                   .ranks_per_host = 8,
                                   .tile = 128,
                                   .crosses_once = true};
    return prices;
}

std::string text_of(const PlanPrices& prices) {
    std::string text = fmt::format("ranks_per_host = {}\ntile = {}\ncrosses_once = {}\nmost_gathered = {}\n",
                                   prices.ranks_per_host, prices.tile, prices.crosses_once, prices.most_gathered);
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto& p = prices.passes[static_cast<std::size_t>(pass)];
        text += fmt::format(
            "{0}.pair = {1}\n{0}.row = {2}\n{0}.piece = {3}\n{0}.again = {4}\n{0}.owner = {5}\n{0}.visit = {6}\n"
            "{0}.key = {7}\n{0}.sum = {8}\n{0}.sum_key = {9}\n{0}.inside.key = {10}\n{0}.inside.gradient = {11}\n"
            "{0}.between.key = {12}\n{0}.between.gradient = {13}\n{0}.tile_rows = {14}\n",
            to_string(pass), p.pair, p.row, p.piece, p.again, p.owner, p.visit, p.key, p.sum, p.sum_key, p.inside.key,
            p.inside.gradient, p.between.key, p.between.gradient, p.tile_rows);
    }
    return text;
}

}  // namespace ringlab::layouts
