// Where the pieces of a plan lie in their shards, and which tiles of rows that makes.

#include "layouts/plan/plan_pieces.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

struct OwnedPiece {
    PlanPiece* piece;
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

void count_tiles(Pieces& pieces, int ranks, const PlanPrices& prices) {
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

}  // namespace ringlab::layouts
