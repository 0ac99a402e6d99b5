#pragma once

#include "sim/machine/options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What is predicted, and on what.
struct PredictionConfig {
    std::vector<std::string> machines;    ///< machine files, by name or path
    std::string compute_model = "tiles";  ///< or "rate", see sim::ComputeModel
    std::string engine = "events";        ///< or "symmetric": the recurrence of sim::max_plus_symmetric()
    std::string clock = "sustained";      ///< or "calibrated", see sim::Clock
    int threads = 0;                      ///< 0: one for each processor
    std::string slow_gpus, slow_links;    ///< "N" or "N:FACTOR", as they were typed; empty: none
    sim::Jitter jitter;                   ///< without its seed and start skew
    double start_skew_us = 0;
    int cause_ranks = 0;  ///< most ranks for which the causes of the time are predicted
    int span_ranks = 64;  ///< most ranks for which the record keeps when every operation ran

    sim::Clock attend_clock() const { return clock == "sustained" ? sim::Clock::sustained : sim::Clock::calibrated; }

    /// Whether what is predicted is also disturbed, and how.
    bool disturbs() const;
    sim::Jitter disturbance(std::uint64_t seed) const;
};

/// Which traces of predicted passes are written.
struct TraceConfig {
    std::string file;    ///< a Chrome trace of the first run (JSON); empty: there is none
    std::string chakra;  ///< folder for Chakra execution traces of all runs; empty: there are none
};

}  // namespace ringlab::experiments
