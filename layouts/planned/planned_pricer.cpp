#include "layouts/planned/planned_pricer.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::layouts {

Pieces pieces_of(const Layout& layout, std::span<const PackedDocument> parts) {
    Pieces pieces(parts.size());
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        std::int64_t place = 0;
        for (const auto& run : layout.shard(rank)) {
            require(run.stride == 1 || run.count == 1, "layout {} has runs of stride {}; plans have stride 1",
                    layout.name(), run.stride);
            auto part =
                std::ranges::upper_bound(parts, run.first, {}, [](const PackedDocument& p) { return p.tokens.end; });
            for (; part != parts.end() && part->tokens.begin <= run.last(); ++part) {
                const Interval tokens{std::max(run.first, part->tokens.begin),
                                      std::min(run.last() + 1, part->tokens.end)};
                pieces[static_cast<std::size_t>(part - parts.begin())].push_back({tokens, rank, place});
                place += tokens.size();
            }
        }
    }
    for (auto& of_part : pieces)
        std::ranges::sort(of_part, {}, [](const DocumentPiece& piece) { return piece.tokens.begin; });
    return pieces;
}

namespace {

struct OwnedPiece {
    DocumentPiece* piece;
    std::size_t part;
    bool is_cut;
    std::int64_t end() const { return piece->place + piece->tokens.size(); }
};

/// Counts the tiles of one rank's pieces, which are in the order of their places. `last_of_cut` has the last piece of
/// each cut part.
void count_tiles_of_rank(std::span<const OwnedPiece> pieces, std::span<const OwnedPiece> last_of_cut, std::size_t pass,
                         std::int64_t tile) {
    std::int64_t next = 0;  // first tile that is not counted yet
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto& one = pieces[i];
        if (next * tile >= one.end()) continue;
        const auto whole_until = one.end() / tile;
        if (one.is_cut) one.piece->tiles[pass].all += whole_until - next;
        next = whole_until;
        if (next * tile == one.end()) continue;
        // The tile at the end of the piece, from the first to the last part that it has rows of.
        auto low = one, high = one;
        const bool is_shared = i + 1 < pieces.size();
        for (auto k = i + 1; k < pieces.size() && pieces[k].piece->place < (next + 1) * tile; ++k) {
            if (pieces[k].part < low.part) low = pieces[k];
            if (pieces[k].part >= high.part) high = pieces[k];
        }
        for (const auto& cut : last_of_cut) {
            if (cut.part < low.part || cut.part > high.part) continue;
            auto& tiles = (cut.part == high.part ? high : cut).piece->tiles[pass];
            ++tiles.all;
            tiles.shared += is_shared;
        }
        ++next;
    }
}

}  // namespace

std::vector<std::vector<DocumentPiece*>> place_pieces(Pieces& pieces, int ranks, std::int64_t tile) {
    std::vector<std::vector<DocumentPiece*>> owned(static_cast<std::size_t>(ranks));
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

void count_tiles(Pieces& pieces, int ranks, const LayoutPrices& prices) {
    std::vector<std::vector<OwnedPiece>> owned(static_cast<std::size_t>(ranks));
    for (std::size_t part = 0; part < pieces.size(); ++part)
        for (auto& piece : pieces[part]) {
            piece.tiles = {};
            owned[static_cast<std::size_t>(piece.rank)].push_back({&piece, part, pieces[part].size() > 1});
        }
    std::vector<OwnedPiece> last_of_cut;
    for (auto& of_rank : owned) {
        last_of_cut.clear();
        for (const auto& one : of_rank) {
            if (!one.is_cut) continue;
            if (!last_of_cut.empty() && last_of_cut.back().part == one.part) last_of_cut.pop_back();
            last_of_cut.push_back(one);
        }
        if (last_of_cut.empty()) continue;
        std::ranges::sort(of_rank, {}, [](const OwnedPiece& one) { return one.piece->place; });
        for (std::size_t pass = 0; pass < 2; ++pass)
            if (const auto tile = prices.passes[pass].tile_rows; tile > 0)
                count_tiles_of_rank(of_rank, last_of_cut, pass, tile);
    }
}

/// Counts of what a rank does in a pass.
struct LayoutPricer::Load {
    double shard = 0;  // tokens that it owns
    double pairs = 0, rows = 0, pieces = 0;
    std::array<double, 2> wasted{};   // by pass: pairs that tiles of cut parts compute above those that rows see
    double launches = 0, visits = 0;  // for keys of others, and (row, launch) pairs
    double readers = 0;               // other ranks to which it gives keys
    double keys_returned = 0;         // gradients of these keys that come back
    std::array<double, 2> received{}, given{};  // keys: inside the host, between hosts
    double gathered() const { return received[0] + received[1]; }
};

/// The loads of all ranks, and which pairs have been counted in them.
struct LayoutPricer::Loads {
    explicit Loads(std::size_t ranks) : by_rank(ranks), attends(ranks * ranks), gives(ranks * ranks) {}
    int ranks() const { return static_cast<int>(by_rank.size()); }
    Load& of(int rank) { return by_rank[static_cast<std::size_t>(rank)]; }
    /// Whether the pair was not in the set; it is then.
    bool is_new(std::vector<bool>& set, int rank, int other) const {
        auto counted = set[static_cast<std::size_t>(rank) * by_rank.size() + static_cast<std::size_t>(other)];
        const bool is_new = !counted;
        counted = true;
        return is_new;
    }
    std::vector<Load> by_rank;
    std::vector<bool> attends, gives;  // (rank, launch), (giver, reader)
};

double LayoutPricer::seconds_of(const LinkPrices& link, double received, double given) {
    return std::max(received * link.key + given * link.gradient, given * link.key + received * link.gradient);
}

double LayoutPricer::work_of(const Load& load, Pass pass, const PassPrices& prices) {
    return prices.pair * (load.pairs + load.wasted[static_cast<std::size_t>(pass)]) + prices.row * load.rows +
           prices.piece * load.pieces + (load.launches > 0 ? prices.again * load.shard : 0) +
           prices.owner * load.launches + prices.visit * load.visits + prices.key * load.gathered() +
           prices.sum * load.readers + prices.sum_key * load.keys_returned;
}

LayoutPricer::LayoutPricer(const Mask& mask, std::span<const PackedDocument> parts, const LayoutPrices& prices,
                           int ranks)
    : mask_(mask),
      parts_(parts),
      prices_(prices),
      block_(static_cast<double>(mask.tokens()) / ranks),
      keys_(std::array{Run{0, 1, mask.tokens()}}) {}

double LayoutPricer::pairs(Interval rows) const {
    const Run run{rows.begin, 1, rows.size()};
    return static_cast<double>(visible_pairs(mask_, {&run, 1}, keys_));
}

double LayoutPricer::whole(const PackedDocument& part) const {
    double seconds = 0;
    for (const auto& pass : prices_.passes)
        seconds += pass.pair * part.pairs + pass.row * static_cast<double>(part.tokens.size()) + pass.piece;
    return seconds;
}

Interval keys_of(const Mask& mask, Interval rows) {
    Interval seen{mask.tokens(), 0};
    for (auto segment = mask.segment_of(rows.begin);
         segment < mask.segments().size() && mask.segments()[segment].rows.begin < rows.end; ++segment) {
        const auto& one = mask.segments()[segment];
        for (const auto row : {std::max(rows.begin, one.rows.begin), std::min(rows.end, one.rows.end) - 1}) {
            const auto keys = one.at(row);
            if (keys == RowKeys{}) continue;
            seen = {std::min(seen.begin, keys.first()), std::max(seen.end, keys.end)};
        }
    }
    return seen;
}

LayoutCost LayoutPricer::cost(Pieces& pieces, int ranks) const {
    count_tiles(pieces, ranks, prices_);
    Loads loads(static_cast<std::size_t>(ranks));
    LayoutCost cost;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        add_own_rows(parts_[i], pieces[i], loads.by_rank);
        if (parts_[i].pairs > 0) add_keys_of_others(pieces[i], loads);
    }
    cost.work.assign(loads.by_rank.size(), 0);
    for (std::size_t rank = 0; rank < loads.by_rank.size(); ++rank) {
        const auto& load = loads.by_rank[rank];
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto& prices = prices_.passes[static_cast<std::size_t>(pass)];
            const auto work = work_of(load, pass, prices);
            cost.work[rank] += work;
            const auto link = std::max(seconds_of(prices.inside, load.received[0], load.given[0]),
                                       seconds_of(prices.between, load.received[1], load.given[1]));
            auto& seconds = cost.seconds[static_cast<std::size_t>(pass)];
            seconds = std::max({seconds, work, link});
        }
        cost.most_gathered = std::max(cost.most_gathered, static_cast<std::int64_t>(load.gathered()));
    }
    return cost;
}

/// Adds the work on each rank's own rows of a part, which does not depend on who owns the keys.
void LayoutPricer::add_own_rows(const PackedDocument& part, std::span<const DocumentPiece> pieces,
                                std::span<Load> loads) const {
    const bool is_cut = pieces.size() > 1;
    for (const auto& piece : pieces) {
        auto& load = loads[static_cast<std::size_t>(piece.rank)];
        const auto rows = static_cast<double>(piece.tokens.size());
        load.shard += rows;
        const auto seen = is_cut ? pairs(piece.tokens) : part.pairs;
        load.pairs += seen;
        load.rows += part.pairs > 0 ? rows : 0;
        load.pieces += part.pairs > 0;
        for (std::size_t pass = 0; is_cut && pass < 2; ++pass) {
            const auto& prices = prices_.passes[pass];
            if (prices.tile_rows == 0) continue;
            const auto tiles =
                static_cast<double>(piece.tiles[pass].all) + prices.cut * static_cast<double>(piece.tiles[pass].shared);
            load.wasted[pass] += seen / rows * (tiles * static_cast<double>(prices.tile_rows) - rows);
        }
    }
}

/// Adds the keys of a part that its owners see of each other.
void LayoutPricer::add_keys_of_others(std::span<const DocumentPiece> pieces, Loads& loads) const {
    std::vector<int> owners;
    for (const auto& piece : pieces) owners.push_back(piece.rank);
    std::ranges::sort(owners);
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    if (owners.size() < 2) return;
    const auto give = [&](int from, int to, double keys, bool network) {
        auto& giver = loads.of(from);
        const bool is_first = loads.is_new(loads.gives, from, to);
        if (prices_.whole_blocks) {
            if (!is_first) return;
            keys = block_;
        }
        giver.given[network] += keys;
        giver.keys_returned += keys;
        giver.readers += is_first;
        loads.of(to).received[network] += keys;
    };
    std::vector<std::vector<const DocumentPiece*>> rows_of(owners.size());
    for (const auto& piece : pieces)
        rows_of[static_cast<std::size_t>(std::ranges::lower_bound(owners, piece.rank) - owners.begin())].push_back(
            &piece);
    const auto hosts = host_of(loads.ranks() - 1) + 1;
    // By host and piece: how many of its keys have crossed to that host already. Only with crosses_once.
    std::vector<std::vector<double>> crossed(static_cast<std::size_t>(hosts));
    std::vector<Interval> seen;
    std::vector<bool> attends;  // by launch
    for (std::size_t k = 0; k < owners.size(); ++k) {
        const auto rank = owners[k];
        auto& load = loads.of(rank);
        seen.clear();
        attends.assign(static_cast<std::size_t>(loads.ranks()), false);
        double rows = 0;
        for (const auto* piece : rows_of[k]) {
            rows += static_cast<double>(piece->tokens.size());
            const auto keys = keys_of(mask_, piece->tokens);
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
                const auto relay = std::min(loads.ranks() - 1,
                                            host_of(rank) * prices_.ranks_per_host + owner % prices_.ranks_per_host);
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

}  // namespace ringlab::layouts
