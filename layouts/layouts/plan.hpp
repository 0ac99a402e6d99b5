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
// Terms: a part of a mask is an interval of tokens whose rows see no key outside it and whose keys no row outside it
// sees, as a packed document; a piece is an interval of a part that one rank owns; a whole part has one owner.

namespace ringlab::layouts {

/// What travels over a link, in seconds for each token of K and V, and of their gradients on the way back.
struct LinkPrices {
    double key = 0;
    double gradient = 0;  ///< 0 in a forward pass
};

/// What one pass of attention costs one rank, all heads and batch elements, in seconds.
struct PassPrices {
    double pair = 0;   ///< of each visible pair
    double row = 0;    ///< of each query row beside its pairs: tiles that are not full, loads and stores of tiles
    double piece = 0;  ///< of each piece of a part
    double again = 0;  ///< of each row of a rank that attends to keys of any other rank: its state is kept and resumed
    double owner = 0;  ///< of each other rank whose keys it attends to: a launch, and what it leaves idle
    double visit = 0;  ///< of each of its rows and other rank whose keys of the same part it attends to
    double key = 0;    ///< of each key of other ranks that it attends to
    double sum = 0;    ///< of each other rank that returns gradients of its keys
    double sum_key = 0;              ///< of each key that a gradient comes back for
    LinkPrices inside{}, between{};  ///< of links inside a host, and of the network
    /// Of the time that links take, what adds to that of the work: 0 where a schedule hides all of it, 1 where it hides
    /// nothing, above 1 where ranks also wait for each other.
    double exposed = 1;
    friend bool operator==(const PassPrices&, const PassPrices&) = default;
};

/// What a plan is made for. `layouts/` knows no machine: whoever knows one makes such a table of it.
struct PlanPrices {
    std::array<PassPrices, 2> passes;  ///< by Pass
    int ranks_per_host = 8;            ///< rank r is on host r / ranks_per_host
    std::int64_t tile = 128;  ///< rows that kernels take up at a time: pieces are whole tiles where they can be
    /// A key that several ranks of a host see crosses the network once and then goes around inside the host.
    bool crosses_once = false;
    std::int64_t most_gathered = 0;  ///< tokens of other ranks' K and V that a rank has memory for; 0: without limit

    friend bool operator==(const PlanPrices&, const PlanPrices&) = default;
};

/// Attention with 64:8 heads of 128 in bf16 on hosts of eight H200 with a network port of 400 Gb/s for each
/// (`plan_prices()` of h200_cluster.toml): what a plan is made for where nobody says for what.
const PlanPrices& default_plan_prices();

/// Every price with its name, a line each, to the last digit: what records keep a digest of.
std::string text_of(const PlanPrices& prices);

/// An interval of tokens that sees only itself.
struct PlanPart {
    Interval tokens;
    double pairs = 0;  ///< that its rows see
};

/// The parts of a mask in order; together all of its tokens. Tokens that see nothing and that nobody sees are parts
/// without pairs, as long as possible.
std::vector<PlanPart> plan_parts(const Mask& mask);

/// What a layout costs, by the closed form that a plan minimises: of each pass, the time of the rank that takes
/// longest. That is its work and what is exposed of its busier link, but no less than that link takes.
struct PlanCost {
    std::array<double, 2> seconds{};  ///< by pass
    std::vector<double> work;         ///< of each rank, both passes, without waiting for any link
    std::int64_t most_gathered = 0;   ///< tokens of other ranks that any one rank sees
    std::int64_t between_hosts = 0;   ///< tokens, counted as often as they cross the network
    double total() const { return seconds[0] + seconds[1]; }
};

/// Throws Error unless all runs of the layout have stride 1.
PlanCost plan_cost(const Layout& layout, const Mask& mask, const PlanPrices& prices);

/// Every rank gets as many tokens; `name` is the layout's. Parts shorter than a share stay whole where balance lets
/// them; longer ones are spread over as few ranks as balance needs, neighbours and so hosts first, in chunks that have
/// as many pairs for each token; what remains evens out the work. The same arguments give the same layout. Throws Error
/// unless the tokens divide by `ranks`.
Layout planned_layout(const Mask& mask, int ranks, const PlanPrices& prices, std::string name = "planned");

}  // namespace ringlab::layouts
