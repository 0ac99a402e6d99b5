#include "layouts/planned/planned.hpp"

#include "layouts/planned/planned_pricer.hpp"

#include <algorithm>

namespace ringlab::layouts {

const LayoutPrices& default_layout_prices() {
    static const LayoutPrices prices{.passes = {PassPrices{.pair = 5.0917e-11,
                                                           .row = 2.1357e-08,
                                                           .piece = 6.0188e-07,
                                                           .again = 9.0657e-09,
                                                           .owner = 1.0081e-05,
                                                           .visit = 1.6152e-08,
                                                           .key = 6.6702e-09,
                                                           .inside = {.key = 1.0530e-08},
                                                           .between = {.key = 8.5333e-08},
                                                           .tile_rows = 128,
                                                           .cut = 4.4297e-01},
                                                PassPrices{.pair = 1.3650e-10,
                                                           .row = 2.9730e-08,
                                                           .piece = 8.4359e-07,
                                                           .owner = 2.9539e-05,
                                                           .key = 5.4754e-09,
                                                           .sum = 7.1164e-06,
                                                           .sum_key = 6.4044e-09,
                                                           .inside = {.key = 1.0530e-08, .gradient = 2.1059e-08},
                                                           .between = {.key = 8.5333e-08, .gradient = 1.7067e-07},
                                                           .tile_rows = 64,
                                                           .cut = 5.0882e-01}},
                                     .ranks_per_host = 8,
                                     .tile = 128,
                                     .crosses_once = true};
    return prices;
}

LayoutPrices for_whole_blocks(LayoutPrices prices) {
    prices.whole_blocks = true;
    prices.crosses_once = false;
    // All keys are in one launch, which reads a tile of rows once.
    for (auto& pass : prices.passes) pass.again = pass.visit = pass.owner = 0;
    return prices;
}

std::string text_of(const LayoutPrices& prices) {
    std::string text =
        fmt::format("ranks_per_host = {}\ntile = {}\ncrosses_once = {}\nwhole_blocks = {}\nmost_gathered = {}\n",
                    prices.ranks_per_host, prices.tile, prices.crosses_once, prices.whole_blocks, prices.most_gathered);
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto& p = prices.passes[static_cast<std::size_t>(pass)];
        const auto add = [&](const char* name, const auto& value) {
            text += fmt::format("{}.{} = {}\n", to_string(pass), name, value);
        };
        add("pair", p.pair);
        add("row", p.row);
        add("piece", p.piece);
        add("again", p.again);
        add("owner", p.owner);
        add("visit", p.visit);
        add("key", p.key);
        add("sum", p.sum);
        add("sum_key", p.sum_key);
        add("inside.key", p.inside.key);
        add("inside.gradient", p.inside.gradient);
        add("between.key", p.between.key);
        add("between.gradient", p.between.gradient);
        add("tile_rows", p.tile_rows);
        add("cut", p.cut);
    }
    return text;
}

std::vector<PackedDocument> packed_documents(const Mask& mask) {
    std::vector<Interval> reaches;  // rows of segments and all keys that they see
    for (const auto& segment : mask.segments())
        if (const auto keys = keys_of(mask, segment.rows); keys.size() > 0)
            reaches.push_back({std::min(keys.begin, segment.rows.begin), std::max(keys.end, segment.rows.end)});
    const KeyCounter all_keys(std::array{Run{0, 1, mask.tokens()}});
    std::vector<PackedDocument> parts;
    const auto add = [&](Interval tokens) {
        const Run rows{tokens.begin, 1, tokens.size()};
        if (rows.count > 0) parts.push_back({tokens, static_cast<double>(visible_pairs(mask, {&rows, 1}, all_keys))});
    };
    std::int64_t next = 0;
    for (const auto& part : merged(std::move(reaches), 0)) {
        add({next, part.begin});
        add(part);
        next = part.end;
    }
    add({next, mask.tokens()});
    return parts;
}

LayoutCost layout_cost(const Layout& layout, const Mask& mask, const LayoutPrices& prices) {
    const auto parts = packed_documents(mask);
    auto pieces = pieces_of(layout, parts);
    return LayoutPricer(mask, parts, prices, layout.ranks()).cost(pieces, layout.ranks());
}

namespace {

Layout planned(const std::string& machine, const Mask& mask, int ranks) {
    require(
        machine.empty(),
        "layout planned:{0} is for the prices of machine {0}, which experiments read alone; planned by itself is for "
        "H200 in hosts of eight",
        machine);
    auto prices = default_layout_prices();
    prices.crosses_once = ranks > prices.ranks_per_host;  // inside one host `seen` has a launch for each rank
    return planned_layout(mask, ranks, prices);
}

const LayoutRegistration registered_planned(
    {"planned[:MACHINE]",
     "documents shorter than a rank's share stay whole, longer ones are spread so that work and traffic cost least on "
     "MACHINE",
     {.make_for = planned},
     {"planned"}});

}  // namespace

}  // namespace ringlab::layouts
