#include "layouts/plan/plan.hpp"

#include "layouts/plan/plan_pricer.hpp"

#include <algorithm>

namespace ringlab::layouts {

const PlanPrices& default_plan_prices() {
    static const PlanPrices prices{.passes = {PassPrices{.pair = 5.0917e-11,
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

PlanPrices for_whole_blocks(PlanPrices prices) {
    prices.whole_blocks = true;
    prices.crosses_once = false;
    // All keys are in one launch, which reads a tile of rows once.
    for (auto& pass : prices.passes) pass.again = pass.visit = pass.owner = 0;
    return prices;
}

std::string text_of(const PlanPrices& prices) {
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

namespace {

/// Rows of a segment and all keys that they see; empty if they see nothing.
Interval reach(const MaskSegment& segment) {
    Interval all{segment.rows.begin, segment.rows.begin};
    for (const auto row : {segment.rows.begin, segment.rows.end - 1}) {
        const auto keys = segment.at(row);
        if (keys == RowKeys{}) continue;
        all = {std::min({all.begin, segment.rows.begin, keys.first()}),
               std::max({all.end, segment.rows.end, keys.end})};
    }
    return all;
}

}  // namespace

std::vector<PlanPart> plan_parts(const Mask& mask) {
    std::vector<Interval> reaches;
    for (const auto& segment : mask.segments())
        if (const auto all = reach(segment); all.size() > 0) reaches.push_back(all);
    std::ranges::sort(reaches, {}, &Interval::begin);
    std::vector<Interval> intervals;
    const auto add = [&](Interval interval) {
        if (interval.size() > 0) intervals.push_back(interval);
    };
    Interval open{0, 0};
    for (const auto& next : reaches) {
        if (next.begin < open.end) {
            open.end = std::max(open.end, next.end);
            continue;
        }
        add(open);
        add({open.end, next.begin});
        open = next;
    }
    add(open);
    add({open.end, mask.tokens()});

    const Run everything{0, 1, mask.tokens()};
    const KeyCounter keys({&everything, 1});
    std::vector<PlanPart> parts;
    for (const auto& interval : intervals) {
        const Run rows{interval.begin, 1, interval.size()};
        parts.push_back({interval, static_cast<double>(visible_pairs(mask, {&rows, 1}, keys))});
    }
    return parts;
}

PlanCost plan_cost(const Layout& layout, const Mask& mask, const PlanPrices& prices) {
    const auto parts = plan_parts(mask);
    auto pieces = pieces_of(layout, parts);
    return PlanPricer(mask, parts, prices, layout.ranks()).cost(pieces, layout.ranks());
}

namespace {

Layout planned(const std::string& machine, const Mask& mask, int ranks) {
    require(
        machine.empty(),
        "layout planned:{0} is for the prices of machine {0}, which experiments read alone; planned by itself is for "
        "H200 in hosts of eight",
        machine);
    auto prices = default_plan_prices();
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
