#pragma once

#include "experiments/config/config.hpp"

namespace ringlab::experiments {

/// main of an experiment that measures: reads the command line over `defaults` and calls `study`, inside an MPI session
/// if the configuration asks for MPI. Returns the exit status; what is thrown ends as in run_main.
int run_study(const Experiment& experiment, Config (*defaults)(), int (*study)(const Config&, int, char**), int argc,
              char** argv);

}  // namespace ringlab::experiments
