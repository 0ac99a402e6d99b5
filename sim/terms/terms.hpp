#pragma once

#include "sim/terms/launch.hpp"
#include "sim/terms/messages.hpp"
#include "sim/terms/pass.hpp"
#include "sim/terms/work_tile.hpp"

#include <span>
#include <string>
#include <tuple>

namespace ringlab::sim {

/// The terms of the cost model, in the order of sim/README.md. Each is a type without state, which has
///
/// - name, effect: as `validate --without` and people call it, and what it models
///
/// - prices: its figures in a machine file. Figures that are no single numbers are with MachineFields
///
/// - remove(owner): makes it cost nothing, where that is not the default of its prices
///
/// - its formula, or the name of the file that has it
///
/// Calibration finds prices in this order: of prices that always occur together, the first is found
/// and the others are 0.
using Terms =
    std::tuple<terms::Launch, terms::WorkTilePrologue, terms::Tiles, terms::Resume, terms::OverflowTail, terms::Power,
               terms::PowerOfGpus, terms::Begin, terms::Sums, terms::MessageIssue, terms::Latency, terms::BesideAttends,
               terms::MemoryShared, terms::SmAdmission, terms::Pieces>;

template <class Visit>
constexpr void for_each_term(Visit visit) {
    std::apply([&](auto... term) { (visit(term), ...); }, Terms{});
}

/// Calls visit(price) for each price of `Owner` of all terms.
template <class Owner, class Visit>
void for_each_price(Visit visit) {
    for_each_term([&](auto term) {
        if constexpr (requires { Price<Owner>(term.prices[0]); })
            for (const auto& price : term.prices) visit(price);
    });
}

/// Seconds of a work tile that the kernel visits, also of one that sees nothing.
inline double work_tile_seconds(const AttentionCost& cost, const terms::WorkTileLoad& load) {
    using namespace terms;
    const auto sum = [&](auto... term) { return (... + term.of_work_tile(cost, load)); };
    // From left to right, in this order: another one changes the last digits of predictions.
    return sum(Resume{}, WorkTilePrologue{}, Tiles{});
}

/// A term of the cost model that a machine can be without: what its keys describe then costs nothing.
struct Term {
    const char* name;
    const char* effect;  ///< what is not modelled any more, for people
    void (*remove)(Machine&);
};

/// All terms, in their order.
std::span<const Term> terms_to_remove();

/// Throws Error that lists the known terms if there is none of this name.
const Term& find_term(const std::string& name);

}  // namespace ringlab::sim
