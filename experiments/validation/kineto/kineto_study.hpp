#pragma once

#include "experiments/config/config.hpp"

namespace ringlab::experiments {

/// What --kineto asks for: reads the traces, prints where the time of each rank goes, and lays it beside predictions if
/// the configuration names a machine and sizes. All of it goes to a record. Returns the exit status.
int study_kineto(const Config& config, const Experiment& experiment, int argc, char** argv);

}  // namespace ringlab::experiments
