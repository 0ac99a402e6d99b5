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
    sim::Jitter jitter;                   ///< without its seed and start skew
    double start_skew_us = 0;
    int cause_ranks = 0;  ///< most ranks for which the causes of the time are predicted
    int span_ranks = 64;  ///< most ranks for which the record keeps when every operation ran

    sim::Clock attend_clock() const { return clock == "sustained" ? sim::Clock::sustained : sim::Clock::calibrated; }

    /// Whether what is predicted is also disturbed, and how.
    bool disturbs() const;
    sim::Jitter disturbance(std::uint64_t seed) const;
};

/// Which traces of predicted passes are written: a Chrome trace-event JSON file of some runs, and Chakra execution
/// traces of all.
struct TraceConfig {
    std::string file;    ///< the JSON file; empty: there is none
    std::string ranks;   ///< that the JSON file shows, "FIRST-LAST"; empty: all
    std::string steps;   ///< likewise
    int runs = 1;        ///< number of runs that the JSON file shows, from the first one on
    std::string chakra;  ///< folder for execution traces; empty: there are none
};

}  // namespace ringlab::experiments
