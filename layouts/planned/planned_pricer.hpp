#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/planned/planned.hpp"

#include <array>
#include <span>
#include <vector>

namespace ringlab::layouts {

/// Tiles of rows that see the keys of a part.
struct SeeingTiles {
    std::int64_t all = 0;
    std::int64_t shared = 0;  ///< those that also hold rows of other parts, so that the mask cuts all their tiles
};

/// An interval of a part that one rank owns.
struct DocumentPiece {
    Interval tokens;
    int rank = 0;
    std::int64_t place = 0;              ///< of its first token in the rank's shard
    std::array<SeeingTiles, 2> tiles{};  ///< by pass; see count_tiles()
};

/// The pieces of each part, in the order of their positions.
using Pieces = std::vector<std::vector<DocumentPiece>>;

/// The pieces of a layout whose runs have stride 1. Throws Error if they have not.
Pieces pieces_of(const Layout& layout, std::span<const PackedDocument> parts);

/// Sets the places of all pieces and returns them by rank, in this order: first the pieces of parts that are cut, if
/// they are whole tiles, then all others by position. So few tiles hold rows of several parts.
std::vector<std::vector<DocumentPiece*>> place_pieces(Pieces& pieces, int ranks, std::int64_t tile);

/// Counts the tiles of all pieces of cut parts from their places.
///
/// A kernel gives a tile all keys from the first to the last that any of its rows sees. So a tile that holds rows of a
/// part before A and of one behind A also meets the keys of A that the rank holds. It counts for the last piece of A.
void count_tiles(Pieces& pieces, int ranks, const LayoutPrices& prices);

/// The interval from the first to the last key that any of the rows sees; empty if they see none.
Interval keys_of(const Mask& mask, Interval rows);

/// Prices plans of one mask.
class LayoutPricer {
public:
    /// Mask, parts and prices must outlive the pricer.
    LayoutPricer(const Mask& mask, std::span<const PackedDocument> parts, const LayoutPrices& prices, int ranks);

    /// Sets the tiles of the pieces, whose places must be set.
    LayoutCost cost(Pieces& pieces, int ranks) const;

    double pairs(Interval rows) const;

    /// Both passes of a whole part.
    double whole(const PackedDocument& part) const;

private:
    struct Load;
    struct Loads;

    int host_of(int rank) const { return rank / prices_.ranks_per_host; }
    void add_own_rows(const PackedDocument& part, std::span<const DocumentPiece> pieces, std::span<Load> loads) const;
    void add_keys_of_others(std::span<const DocumentPiece> pieces, Loads& loads) const;
    static double seconds_of(const LinkPrices& link, double received, double given);
    static double work_of(const Load& load, Pass pass, const PassPrices& prices);

    const Mask& mask_;
    std::span<const PackedDocument> parts_;
    const LayoutPrices& prices_;
    double block_;  // tokens of a rank
    KeyCounter keys_;
};

}  // namespace ringlab::layouts
