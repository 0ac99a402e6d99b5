#pragma once

#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"

#include <array>
#include <span>
#include <string>
#include <vector>

// The layout `planned`: made for the documents of a packing and for a table of prices.
//
// Words used here:
//   part        an interval of tokens whose rows see no key outside it, and whose keys no row outside it sees: a packed
//               document
//   piece       an interval of a part that one rank owns
//   whole part  a part with a single owner

namespace ringlab::layouts {

/// Seconds that a link takes for each token: of K and V, and of their gradients on the way back.
struct LinkPrices {
    double key = 0;
    double gradient = 0;  ///< 0 in a forward pass
};

/// Prices of one pass on one rank, in seconds, over all heads and batch elements. Each comment says what is counted.
struct PassPrices {
    double pair = 0;   ///< for each visible pair
    double row = 0;    ///< for each query row, besides its pairs: tiles that are not full, loads and stores of tiles
    double piece = 0;  ///< for each piece
    double again = 0;  ///< for each row of a rank that attends to another rank's keys: its state is stored and resumed
    double owner = 0;  ///< for each launch for keys of other ranks
    double visit = 0;  ///< for each pair of a row and a launch for other ranks' keys of the row's part
    double key = 0;    ///< for each key that it receives
    double sum = 0;    ///< for each other rank that returns gradients to it
    double sum_key = 0;              ///< for each key whose gradient comes back
    LinkPrices inside{}, between{};  ///< of links inside a host, and of the network
    std::int64_t tile_rows = 0;      ///< rows of a tile of the kernel; 0: tiles are not counted
    double cut = 0;                  ///< what a tile that the mask cuts costs above a full one, divided by a full one
    friend bool operator==(const PassPrices&, const PassPrices&) = default;
};

/// The prices that a plan is made for. `layouts/` knows no machine, so the caller makes this table from one.
struct LayoutPrices {
    std::array<PassPrices, 2> passes;  ///< by Pass
    int ranks_per_host = 8;            ///< rank r is on host r / ranks_per_host
    std::int64_t tile = 128;           ///< rows of a tile of the kernels: pieces are whole tiles if possible
    /// A key that several ranks of a host see crosses the network once, to the rank with its owner's number in that
    /// host, which passes it on. A rank attends to the keys of each host in one launch. Without this, it has a launch
    /// for each other rank.
    bool crosses_once = false;
    /// A rank gets all keys of another rank if it sees one of them, and attends to all in one launch: schedule `pull`.
    /// Further cuts then cause no further messages or launches.
    bool whole_blocks = false;
    std::int64_t most_gathered = 0;  ///< tokens of other ranks' K and V that a rank has memory for; 0: without limit

    friend bool operator==(const LayoutPrices&, const LayoutPrices&) = default;
};

/// Attention with 64:8 heads of 128 in bf16 on hosts of eight H200 with a network port of 400 Gb/s for each
/// (`layout_prices()` of h200_cluster.toml). Plans use these prices if no others are given.
const LayoutPrices& default_layout_prices();

/// The same prices for a schedule that moves whole blocks.
LayoutPrices for_whole_blocks(LayoutPrices prices);

/// Every price with its name and all its digits, one a line. Records keep a digest of this text.
std::string text_of(const LayoutPrices& prices);

/// An interval of tokens that sees only itself.
struct PackedDocument {
    Interval tokens;
    double pairs = 0;  ///< that its rows see
};

/// The parts of a mask in order, which together have all of its tokens. Consecutive tokens that see nothing and are not
/// seen form one part without pairs.
std::vector<PackedDocument> packed_documents(const Mask& mask);

/// The cost of a layout, by the closed form that a plan minimises: for each pass the time of the slowest rank. A rank's
/// time is that of its work, but at least that of its busier link, because the schedule hides messages behind work.
struct LayoutCost {
    std::array<double, 2> seconds{};  ///< by pass
    std::vector<double> work;         ///< of each rank, both passes, without waiting for any link
    std::int64_t most_gathered = 0;   ///< tokens of other ranks that any one rank receives
    double total() const { return seconds[0] + seconds[1]; }
};

/// Throws Error unless all runs of the layout have stride 1.
LayoutCost layout_cost(const Layout& layout, const Mask& mask, const LayoutPrices& prices);

/// Makes a plan, as docs/how-to/packed-documents.md describes it. Where whole blocks move, it is the cheapest of the
/// layouts `balanced`, `zigzag` and `contiguous`.
/// Every rank gets the same number of tokens. `name` becomes the name of the layout. The same arguments always give the
/// same layout. Throws Error unless the number of tokens is a multiple of `ranks`.
Layout planned_layout(const Mask& mask, int ranks, const LayoutPrices& prices, std::string name = "planned");

}  // namespace ringlab::layouts
