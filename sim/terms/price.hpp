#pragma once

#include "sim/machine/machine.hpp"

#include <string_view>

namespace ringlab::sim {

/// Values that a figure of a machine file may have.
struct Range {
    double low = 0;
    double high = 1e15;
    bool whole = false;
    bool may_be_infinite = false;
};

namespace ranges {

inline constexpr Range not_negative{0, 1e15};
inline constexpr Range bandwidth{1e-9, 1e9, false, true};
inline constexpr Range fraction{1e-6, 1};
inline constexpr Range count{1, 1 << 20, true};
inline constexpr Range ratio{0, 100};

}  // namespace ranges

namespace units {

inline constexpr double micro = 1e-6, percent = 1e-2, mega = 1e6, giga = 1e9, tera = 1e12;

}  // namespace units

/// Whether `calibrate` fits a price to timed attends and passes, and of which kernels.
enum class Fitted {
    no,               ///< the price is found in another way
    yes,              ///< of all kernels
    for_query_tiles,  ///< of kernels whose work tiles are query tiles; for others it is 0
    for_key_tiles,    ///< of kernels whose work tiles are key tiles; for others it is 0
};

/// A key of a machine file that is one number, and the member of `Owner` that holds it. The member's default costs
/// nothing.
template <class Owner>
struct Price {
    const char* key;  ///< with its section; for AttentionCost and LinkCost without the pass's or the link's own
    double Owner::*value;
    Fitted fitted = Fitted::no;
    double unit = units::micro;
    Range range = ranges::not_negative;

    /// A rate is fitted as its inverse, which is 0 where nothing limits it.
    bool is_rate() const { return range.may_be_infinite; }
    double in_fit(const Owner& owner) const { return is_rate() ? 1 / (owner.*value) : owner.*value; }
    void set_in_fit(Owner& owner, double x) const { owner.*value = is_rate() ? 1 / x : x; }

    std::string_view section() const {
        const std::string_view whole = key;
        const auto dot = whole.find('.');
        return dot == whole.npos ? "" : whole.substr(0, dot);
    }
};

}  // namespace ringlab::sim
