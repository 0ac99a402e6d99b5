#pragma once

#include "sim/terms/price.hpp"

#include <algorithm>

/// Terms of the time of one launch of an attention kernel, beside its work tiles.
namespace ringlab::sim::terms {

struct Launch {
    static constexpr auto name = "launch", effect = "launch, ramp and drain of kernels";
    static constexpr Price<AttentionCost> prices[] = {{"launch_us", &AttentionCost::launch_seconds, Fitted::yes}};
};

/// The last work tiles of a launch all wait for memory at once.
struct OverflowTail {
    static constexpr auto name = "overflow-tail", effect = "L2 overflow of O at the end of a launch";
    static constexpr Price<AttentionCost> prices[] = {
        {"ends.last_byte_us", &AttentionCost::tail_seconds_per_byte, Fitted::for_query_tiles}};

    /// Share of a launch's memory traffic that L2 misses: 0 if the launch touches at most half of L2's size, 1 from one
    /// and a half times its size on. These bounds are not derived.
    static double missed(double touched_bytes, double cache_bytes) {
        return std::clamp(touched_bytes / cache_bytes - 0.5, 0.0, 1.0);
    }
    /// `bytes`: read and written for each number of O. `busy_sms`: share of all SMs that have a work tile.
    static double of_launch(const AttentionCost& cost, double missed, double bytes, double busy_sms) {
        return cost.tail_seconds_per_byte * missed * bytes * busy_sms;
    }
};

/// play/clocks.cpp finds the clock.
struct Power {
    static constexpr auto name = "power", effect = "the clock that power allows";
    static constexpr Price<AttentionCost> prices[] = {
        {"power_teraflops", &AttentionCost::power_flops, Fitted::yes, units::tera, ranges::bandwidth}};
};

struct PowerOfGpus {
    static constexpr auto name = "power-of-gpus", effect = "that GPUs differ in power";
    static void remove(Machine& machine) { machine.power_of_gpus.clear(); }
};

}  // namespace ringlab::sim::terms
