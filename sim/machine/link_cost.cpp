#include "sim/machine/machine.hpp"

#include <algorithm>

namespace ringlab::sim {

namespace {

double value_for(double bytes, const std::vector<LinkCost::BySize>& classes, double without_any) {
    for (const auto& some : classes)
        if (bytes <= some.up_to_bytes) return some.value;
    return classes.empty() ? without_any : classes.back().value;
}

}  // namespace

double LinkCost::channels_for(double bytes) const { return value_for(bytes / messages_per_block, channels, 1); }

double LinkCost::rate(double bytes, double slow_link_factor) const {
    return std::min(channels_for(bytes) * channel_bytes_per_second, link_bytes_per_second / slow_link_factor);
}

}  // namespace ringlab::sim
