#include "layouts/layouts/plan_pieces.hpp"

#include <algorithm>

namespace ringlab::layouts {

/// Counts of what a rank does in a pass.
struct PlanPricer::Load {
    double shard = 0;  // tokens that it owns
    double pairs = 0, rows = 0, pieces = 0;
    double owners = 0, visits = 0;              // other ranks that it attends to, and (row, rank) pairs
    double gathered = 0;                        // keys of other ranks that it sees
    double readers = 0;                         // other ranks that see its keys
    double keys_returned = 0;                   // gradients of its keys that come back
    std::array<double, 2> received{}, given{};  // others' keys, own keys: inside the host, between hosts
};

double PlanPricer::seconds_of(const LinkPrices& link, double received, double given) {
    return std::max(received * link.key + given * link.gradient, given * link.key + received * link.gradient);
}

double PlanPricer::work_of(const Load& load, const PassPrices& prices) {
    return prices.pair * load.pairs + prices.row * load.rows + prices.piece * load.pieces +
           (load.owners > 0 ? prices.again * load.shard : 0) + prices.owner * load.owners + prices.visit * load.visits +
           prices.key * (load.received[0] + load.received[1]) + prices.sum * load.readers +
           prices.sum_key * load.keys_returned;
}

PlanPricer::PlanPricer(const Mask& mask, std::span<const PlanPart> parts, const PlanPrices& prices)
    : mask_(mask),
      parts_(parts),
      prices_(prices),
      everything_{0, 1, mask.tokens()},
      keys_(std::span<const Run>(&everything_, 1)) {}

double PlanPricer::pairs(Interval rows) const {
    const Run run{rows.begin, 1, rows.size()};
    return static_cast<double>(visible_pairs(mask_, {&run, 1}, keys_));
}

double PlanPricer::whole(const PlanPart& part) const {
    double seconds = 0;
    for (const auto& pass : prices_.passes)
        seconds += pass.pair * part.pairs + pass.row * static_cast<double>(part.tokens.size()) + pass.piece;
    return seconds;
}

/// The interval from the first to the last key that any of the rows sees.
Interval PlanPricer::keys_of(Interval rows) const {
    Interval seen{mask_.tokens(), 0};
    for (auto segment = mask_.segment_of(rows.begin);
         segment < mask_.segments().size() && mask_.segments()[segment].rows.begin < rows.end; ++segment) {
        const auto& one = mask_.segments()[segment];
        for (const auto row : {std::max(rows.begin, one.rows.begin), std::min(rows.end, one.rows.end) - 1}) {
            const auto keys = one.at(row);
            if (keys == RowKeys{}) continue;
            seen = {std::min(seen.begin, keys.first()), std::max(seen.end, keys.end)};
        }
    }
    return seen;
}

PlanCost PlanPricer::cost(std::span<const std::vector<PlanPiece>> pieces, int ranks) const {
    std::vector<Load> loads(static_cast<std::size_t>(ranks));
    PlanCost cost;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        add_own_rows(parts_[i], pieces[i], loads);
        if (parts_[i].pairs > 0) cost.between_hosts += add_keys_of_others(pieces[i], loads);
    }
    if (prices_.crosses_once) share_ports(loads);
    cost.work.assign(loads.size(), 0);
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
        const auto& load = loads[rank];
        for (std::size_t pass = 0; pass < 2; ++pass) {
            const auto& prices = prices_.passes[pass];
            const auto work = work_of(load, prices);
            cost.work[rank] += work;
            const auto link = std::max(seconds_of(prices.inside, load.received[0], load.given[0]),
                                       seconds_of(prices.between, load.received[1], load.given[1]));
            cost.seconds[pass] = std::max({cost.seconds[pass], work + prices.exposed * link, link});
        }
        cost.most_gathered = std::max(cost.most_gathered, static_cast<std::int64_t>(load.gathered));
    }
    return cost;
}

/// Adds the work on each rank's own rows of a part, which does not depend on who owns the keys.
void PlanPricer::add_own_rows(const PlanPart& part, std::span<const PlanPiece> pieces, std::span<Load> loads) const {
    for (const auto& piece : pieces) {
        auto& load = loads[static_cast<std::size_t>(piece.rank)];
        const auto rows = static_cast<double>(piece.tokens.size());
        load.shard += rows;
        load.pairs += pieces.size() == 1 ? part.pairs : pairs(piece.tokens);
        load.rows += part.pairs > 0 ? rows : 0;
        load.pieces += part.pairs > 0;
    }
}

/// Adds the keys of a part that its owners see of each other. Returns the number of keys that cross between hosts.
std::int64_t PlanPricer::add_keys_of_others(std::span<const PlanPiece> pieces, std::span<Load> loads) const {
    if (pieces.size() < 2) return 0;
    std::vector<int> owners;
    for (const auto& piece : pieces) owners.push_back(piece.rank);
    std::ranges::sort(owners);
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    if (owners.size() < 2) return 0;
    std::vector<std::size_t> owner_of(pieces.size());  // by piece: index of its owner
    std::vector<std::vector<Interval>> rows_of(owners.size());
    for (std::size_t j = 0; j < pieces.size(); ++j) {
        owner_of[j] = static_cast<std::size_t>(std::ranges::lower_bound(owners, pieces[j].rank) - owners.begin());
        rows_of[owner_of[j]].push_back(pieces[j].tokens);
    }
    // By host and piece: whether its keys have crossed to that host already. Only with crosses_once.
    std::vector<std::vector<bool>> crossed;
    if (prices_.crosses_once) crossed.resize(static_cast<std::size_t>(host_of(static_cast<int>(loads.size()) - 1) + 1));
    std::int64_t between_hosts = 0;
    std::vector<double> from;  // keys that a rank sees, by owner
    std::vector<Interval> seen;
    for (std::size_t k = 0; k < owners.size(); ++k) {
        const auto rank = owners[k];
        auto& load = loads[static_cast<std::size_t>(rank)];
        seen.clear();
        double rows = 0;
        for (const auto& interval : rows_of[k]) {
            rows += static_cast<double>(interval.size());
            const auto keys = keys_of(interval);
            if (keys.size() > 0) seen.push_back(keys);
        }
        from.assign(owners.size(), 0);
        for (std::size_t j = 0; j < pieces.size(); ++j) {
            const auto& piece = pieces[j];
            if (owner_of[j] == k) continue;
            double keys = 0;
            for (const auto& one : seen)  // the maximum, because a rank's pieces see nearly the same keys
                keys = std::max(
                    keys,
                    static_cast<double>(
                        Interval{std::max(one.begin, piece.tokens.begin), std::min(one.end, piece.tokens.end)}.size()));
            if (keys == 0) continue;
            from[owner_of[j]] += keys;
            bool network = host_of(piece.rank) != host_of(rank);
            if (network && prices_.crosses_once) {
                auto& there = crossed[static_cast<std::size_t>(host_of(rank))];
                there.resize(pieces.size());
                network = !there[j];
                there[j] = true;
            }
            loads[static_cast<std::size_t>(piece.rank)].given[network] += keys;
            load.received[network] += keys;
            if (network) between_hosts += static_cast<std::int64_t>(keys);
        }
        for (std::size_t j = 0; j < owners.size(); ++j) {
            if (from[j] == 0) continue;
            load.owners += 1;
            load.visits += rows;
            load.gathered += from[j];
            auto& owner = loads[static_cast<std::size_t>(owners[j])];
            owner.readers += 1;
            owner.keys_returned += from[j];
        }
    }
    return between_hosts;
}

/// Divides what a host receives over the network equally among its ranks, because they pass keys on to each other.
void PlanPricer::share_ports(std::span<Load> loads) const {
    for (std::size_t first = 0; first < loads.size();) {
        const auto host =
            loads.subspan(first, std::min(loads.size() - first, static_cast<std::size_t>(prices_.ranks_per_host)));
        double received = 0;
        for (const auto& load : host) received += load.received[1];
        for (auto& load : host) load.received[1] = received / static_cast<double>(host.size());
        first += host.size();
    }
}

PlanCost plan_cost(const Layout& layout, const Mask& mask, const PlanPrices& prices) {
    const auto parts = plan_parts(mask);
    std::vector<std::vector<PlanPiece>> pieces(parts.size());
    for (int rank = 0; rank < layout.ranks(); ++rank)
        for (const auto& run : layout.shard(rank)) {
            require(run.stride == 1 || run.count == 1, "layout {} has runs of stride {}; plans have stride 1",
                    layout.name(), run.stride);
            auto part = std::ranges::upper_bound(parts, run.first, {}, [](const PlanPart& p) { return p.tokens.end; });
            for (; part != parts.end() && part->tokens.begin <= run.last(); ++part) {
                const Interval tokens{std::max(run.first, part->tokens.begin),
                                      std::min(run.last() + 1, part->tokens.end)};
                pieces[static_cast<std::size_t>(part - parts.begin())].push_back({tokens, rank});
            }
        }
    for (auto& of_part : pieces)
        std::ranges::sort(of_part, {}, [](const PlanPiece& piece) { return piece.tokens.begin; });
    return PlanPricer(mask, parts, prices).cost(pieces, layout.ranks());
}

}  // namespace ringlab::layouts
