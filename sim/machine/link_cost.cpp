#include "sim/machine/machine.hpp"

#include <algorithm>

namespace ringlab::sim {

double LinkCost::channels_for(double bytes) const {
    const auto message = bytes / messages_per_block;
    for (const auto& some : channels)
        if (message <= some.up_to_bytes) return some.value;
    return channels.empty() ? 1 : channels.back().value;
}

double LinkCost::hidden_rate(double bytes) const {
    constexpr double giga = 1e9;
    for (const auto& some : hidden.rates)
        if (bytes <= some.up_to_bytes) return some.value * giga;
    return hidden.rates.empty() ? std::numeric_limits<double>::infinity() : hidden.rates.back().value * giga;
}

double LinkCost::rate(double bytes, double slow_link_factor) const {
    return std::min(channels_for(bytes) * channel_bytes_per_second, link_bytes_per_second / slow_link_factor);
}

}  // namespace ringlab::sim
