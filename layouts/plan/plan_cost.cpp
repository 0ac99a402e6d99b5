#include "layouts/plan/plan_cost.hpp"

#include <algorithm>
#include <utility>

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
                                                         .tile_rows = 128},
                                              PassPrices{.pair = 1.3650e-10,
                                                         .row = 2.9730e-08,
                                                         .piece = 8.4359e-07,
                                                         .owner = 2.9539e-05,
                                                         .key = 5.4754e-09,
                                                         .sum = 7.1164e-06,
                                                         .sum_key = 6.4044e-09,
                                                         .inside = {.key = 1.0530e-08, .gradient = 2.1059e-08},
                                                         .between = {.key = 8.5333e-08, .gradient = 1.7067e-07},
                                                         .tile_rows = 64}},
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
        for (const auto& [name, value] : {std::pair("pair", p.pair),
                                          {"row", p.row},
                                          {"piece", p.piece},
                                          {"again", p.again},
                                          {"owner", p.owner},
                                          {"visit", p.visit},
                                          {"key", p.key},
                                          {"sum", p.sum},
                                          {"sum_key", p.sum_key},
                                          {"inside.key", p.inside.key},
                                          {"inside.gradient", p.inside.gradient},
                                          {"between.key", p.between.key},
                                          {"between.gradient", p.between.gradient},
                                          {"tile_rows", static_cast<double>(p.tile_rows)}})
            text += fmt::format("{}.{} = {}\n", to_string(pass), name, value);
    }
    return text;
}

namespace {

/// The interval from the first to the last key that any of the rows sees.
Interval keys_of(const Mask& mask, Interval rows) {
    Interval seen{mask.tokens(), 0};
    for (auto i = mask.segment_of(rows.begin); i < mask.segments().size(); ++i) {
        const auto& segment = mask.segments()[i];
        if (segment.rows.begin >= rows.end) break;
        for (const auto row : {std::max(rows.begin, segment.rows.begin), std::min(rows.end, segment.rows.end) - 1}) {
            const auto keys = segment.at(row);
            if (keys == RowKeys{}) continue;
            seen = {std::min(seen.begin, keys.first()), std::max(seen.end, keys.end)};
        }
    }
    return seen;
}

}  // namespace

std::vector<PlanPart> plan_parts(const Mask& mask) {
    std::vector<Interval> reaches;  // of each segment: its rows and all keys that they see
    for (const auto& [rows, begin, end, sink, earlier] : mask.segments())
        if (const auto keys = keys_of(mask, rows); keys.size() > 0)
            reaches.push_back({std::min(rows.begin, keys.begin), std::max(rows.end, keys.end)});
    const KeyCounter keys(std::vector{Run{0, 1, mask.tokens()}});
    std::vector<PlanPart> parts;
    const auto add = [&](Interval tokens) {
        const Run rows{tokens.begin, 1, tokens.size()};
        if (rows.count > 0) parts.push_back({tokens, static_cast<double>(visible_pairs(mask, {&rows, 1}, keys))});
    };
    std::int64_t next = 0;
    for (const auto& reach : merged(std::move(reaches), 0)) {
        add({next, reach.begin});
        add(reach);
        next = reach.end;
    }
    add({next, mask.tokens()});
    return parts;
}

/// Counts of what a rank does in a pass.
struct PlanLoad {
    double shard = 0;  // tokens that it owns
    double pairs = 0, rows = 0, pieces = 0;
    std::array<double, 2> wasted{};   // by pass: pairs that tiles of cut parts compute above those that rows see
    double launches = 0, visits = 0;  // for keys of others, and (row, launch) pairs
    double readers = 0;               // other ranks to which it gives keys
    double keys_returned = 0;         // gradients of these keys that come back
    std::array<double, 2> received{}, given{};  // keys: inside the host, between hosts
    double gathered() const { return received[0] + received[1]; }
};

namespace {

double seconds_of(const LinkPrices& link, double received, double given) {
    return std::max(received * link.key + given * link.gradient, given * link.key + received * link.gradient);
}

double work_of(const PlanLoad& load, std::size_t pass, const PassPrices& prices) {
    return prices.pair * (load.pairs + load.wasted[pass]) + prices.row * load.rows + prices.piece * load.pieces +
           (load.launches > 0 ? prices.again * load.shard : 0) + prices.owner * load.launches +
           prices.visit * load.visits + prices.key * load.gathered() + prices.sum * load.readers +
           prices.sum_key * load.keys_returned;
}

}  // namespace

/// The loads of all ranks, and which pairs have been counted in them.
struct PlanPricer::Loads {
    explicit Loads(int ranks)
        : by_rank(static_cast<std::size_t>(ranks)),
          attends(by_rank.size() * by_rank.size()),
          gives(by_rank.size() * by_rank.size()) {}
    PlanLoad& of(int rank) { return by_rank[static_cast<std::size_t>(rank)]; }
    /// Whether the pair was not in the set; it is then.
    bool is_new(std::vector<bool>& set, int rank, int other) const {
        auto counted = set[static_cast<std::size_t>(rank) * by_rank.size() + static_cast<std::size_t>(other)];
        const bool is_new = !counted;
        counted = true;
        return is_new;
    }
    std::vector<PlanLoad> by_rank;
    std::vector<bool> attends, gives;  // (rank, launch), (giver, reader)
};

double PlanPricer::pairs(Interval rows) const {
    const Run run{rows.begin, 1, rows.size()};
    return static_cast<double>(visible_pairs(mask_, {&run, 1}, keys_));
}

double PlanPricer::seconds(Interval rows) const {
    const auto seen = pairs(rows);
    double seconds = 0;
    for (const auto& pass : prices_.passes)
        seconds += pass.pair * seen + pass.row * static_cast<double>(rows.size()) + pass.piece;
    return seconds;
}

PlanCost PlanPricer::cost(const Pieces& pieces) const {
    Loads loads(ranks_);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        add_own_rows(parts_[i], pieces[i], loads);
        if (parts_[i].pairs > 0) add_keys_of_others(pieces[i], loads);
    }
    PlanCost cost;
    for (const auto& load : loads.by_rank) {
        cost.work.push_back(0);
        for (std::size_t pass = 0; pass < 2; ++pass) {
            const auto& prices = prices_.passes[pass];
            const auto work = work_of(load, pass, prices);
            cost.work.back() += work;
            cost.seconds[pass] =
                std::max({cost.seconds[pass], work, seconds_of(prices.inside, load.received[0], load.given[0]),
                          seconds_of(prices.between, load.received[1], load.given[1])});
        }
        cost.most_gathered = std::max(cost.most_gathered, static_cast<std::int64_t>(load.gathered()));
    }
    return cost;
}

/// Adds the work on each rank's own rows of a part, which does not depend on who owns the keys.
void PlanPricer::add_own_rows(const PlanPart& part, std::span<const PlanPiece> pieces, Loads& loads) const {
    const bool is_cut = pieces.size() > 1;
    for (const auto& piece : pieces) {
        auto& load = loads.of(piece.rank);
        const auto rows = static_cast<double>(piece.tokens.size());
        load.shard += rows;
        const auto seen = is_cut ? pairs(piece.tokens) : part.pairs;
        load.pairs += seen;
        load.rows += part.pairs > 0 ? rows : 0;
        load.pieces += part.pairs > 0;
        for (std::size_t pass = 0; is_cut && pass < 2; ++pass) {
            const auto tile = prices_.passes[pass].tile_rows;
            if (tile == 0) continue;
            const auto tiles = (piece.place + piece.tokens.size() + tile - 1) / tile - piece.place / tile;
            load.wasted[pass] += seen / rows * (static_cast<double>(tiles * tile) - rows);
        }
    }
}

/// Adds the keys of a part that its owners see of each other.
void PlanPricer::add_keys_of_others(std::span<const PlanPiece> pieces, Loads& loads) const {
    std::vector<int> owners;
    for (const auto& piece : pieces) owners.push_back(piece.rank);
    std::ranges::sort(owners);
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    if (owners.size() < 2) return;
    const auto host_of = [&](int rank) { return rank / prices_.ranks_per_host; };
    const auto give = [&](int from, int to, double keys, bool network) {
        auto& giver = loads.of(from);
        const bool is_first = loads.is_new(loads.gives, from, to);
        if (prices_.whole_blocks) {
            if (!is_first) return;
            keys = static_cast<double>(mask_.tokens() / ranks_);
        }
        giver.given[network] += keys;
        giver.keys_returned += keys;
        giver.readers += is_first;
        loads.of(to).received[network] += keys;
    };
    // By host and piece: how many of its keys have crossed to that host already. Only with crosses_once.
    std::vector<std::vector<double>> crossed(static_cast<std::size_t>(host_of(ranks_ - 1) + 1));
    std::vector<Interval> seen;
    std::vector<bool> attends;  // by launch
    for (const auto rank : owners) {
        auto& load = loads.of(rank);
        seen.clear();
        attends.assign(static_cast<std::size_t>(ranks_), false);
        double rows = 0;
        for (const auto& piece : pieces) {
            if (piece.rank != rank) continue;
            rows += static_cast<double>(piece.tokens.size());
            const auto keys = keys_of(mask_, piece.tokens);
            if (keys.size() > 0) seen.push_back(keys);
        }
        for (std::size_t j = 0; j < pieces.size(); ++j) {
            const auto& tokens = pieces[j].tokens;
            const auto owner = pieces[j].rank;
            if (owner == rank) continue;
            double keys = 0;  // the maximum, because a rank's pieces see nearly the same keys
            for (const auto& of_piece : seen) {
                const auto here = std::min(of_piece.end, tokens.end) - std::max(of_piece.begin, tokens.begin);
                keys = std::max(keys, static_cast<double>(here));
            }
            if (keys == 0) continue;
            attends[static_cast<std::size_t>(prices_.crosses_once ? host_of(owner) : owner)] = true;
            if (host_of(owner) == host_of(rank)) {
                give(owner, rank, keys, false);
            } else if (!prices_.crosses_once) {
                give(owner, rank, keys, true);
            } else {
                const auto relay =
                    std::min(ranks_ - 1, host_of(rank) * prices_.ranks_per_host + owner % prices_.ranks_per_host);
                auto& here = crossed[static_cast<std::size_t>(host_of(rank))];
                here.resize(pieces.size());
                if (keys > here[j]) give(owner, relay, keys - std::exchange(here[j], keys), true);
                if (relay != rank) give(relay, rank, keys, false);
            }
        }
        for (std::size_t launch = 0; launch < attends.size(); ++launch) {
            if (!attends[launch]) continue;
            load.visits += rows;
            load.launches += loads.is_new(loads.attends, rank, static_cast<int>(launch));
        }
    }
}

double price_within_memory(const PlanCost& cost, const PlanPrices& prices) {
    constexpr double too_much = 1e6;  // seconds
    const bool fits = prices.most_gathered == 0 || cost.most_gathered <= prices.most_gathered;
    return cost.total() + (fits ? 0 : too_much);
}

PlanCost plan_cost(const Layout& layout, const Mask& mask, const PlanPrices& prices) {
    const auto parts = plan_parts(mask);
    const auto pieces = pieces_of(layout, parts);
    return PlanPricer(mask, parts, prices, layout.ranks()).cost(pieces);
}

Pieces pieces_of(const Layout& layout, std::span<const PlanPart> parts) {
    Pieces pieces(parts.size());
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        std::int64_t place = 0;
        for (const auto& run : layout.shard(rank)) {
            require(run.stride == 1 || run.count == 1, "layout {} has runs of stride {}; plans have stride 1",
                    layout.name(), run.stride);
            auto part = std::ranges::upper_bound(parts, run.first, {}, [](const PlanPart& p) { return p.tokens.end; });
            for (; part != parts.end() && part->tokens.begin <= run.last(); ++part) {
                const Interval tokens{std::max(run.first, part->tokens.begin),
                                      std::min(run.last() + 1, part->tokens.end)};
                pieces[static_cast<std::size_t>(part - parts.begin())].push_back({tokens, rank, place});
                place += tokens.size();
            }
        }
    }
    for (auto& of_part : pieces)
        std::ranges::sort(of_part, {}, [](const PlanPiece& piece) { return piece.tokens.begin; });
    return pieces;
}

std::vector<std::vector<PlanPiece*>> place_pieces(Pieces& pieces, int ranks, std::int64_t tile) {
    std::vector<std::vector<PlanPiece*>> owned(static_cast<std::size_t>(ranks));
    for (const bool whole_tiles : {true, false})
        for (auto& of_part : pieces)
            for (auto& piece : of_part)
                if ((of_part.size() > 1 && piece.tokens.size() % tile == 0) == whole_tiles)
                    owned[static_cast<std::size_t>(piece.rank)].push_back(&piece);
    for (auto& of_rank : owned) {
        std::int64_t place = 0;
        for (auto* piece : of_rank) {
            piece->place = place;
            place += piece->tokens.size();
        }
    }
    return owned;
}

}  // namespace ringlab::layouts
