#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What is measured on devices, in types that need no CUDA.

namespace ringlab::gpu {

/// Clocks, power and temperature of a GPU at a moment, by NVML.
struct ClockSample {
    enum class Moment { before, during, after };

    int device = 0;  ///< as CUDA numbers it in this process
    Moment moment = Moment::before;
    double seconds = 0;  ///< host clock (steady)
    int sm_mhz = 0;
    int memory_mhz = 0;
    double watts = 0;
    int celsius = 0;
    std::uint64_t throttle_reasons = 0;  ///< nvmlClocksEventReasons
};

/// Device seconds of one call, by round and by repeat within it.
struct CallTimes {
    std::string name;
    std::vector<std::vector<double>> seconds;

    std::vector<double> all() const {
        std::vector<double> flat;
        for (const auto& round : seconds) flat.insert(flat.end(), round.begin(), round.end());
        return flat;
    }
};

/// Messages of one size from each device to its right neighbour, all at the same time.
struct LinkTimes {
    std::string transport;        ///< "copy", "nccl"
    std::int64_t bytes = 0;       ///< of a message
    std::vector<double> seconds;  ///< of the slowest device, by repeat: mean of messages in a row
};

/// How calls are timed on a device: in rounds, in each of which every call runs for some seconds in a row.
struct CallTiming {
    int rounds = 5;
    double seconds = 0.15;
    double warm_up_seconds = 0.5;  ///< before the first round; see Steady
    /// Pause after each row of calls, in times of its length: 0 keeps the device busy and at the clock that power then
    /// allows; with long pauses and short rows it keeps its highest clock.
    double rest = 0;
    bool sustained = true, bursts = false;  ///< back to back; single passes apart from each other
};

}  // namespace ringlab::gpu
