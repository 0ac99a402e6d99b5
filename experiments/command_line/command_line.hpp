#pragma once

#include "experiments/config/config.hpp"

#include <optional>

namespace ringlab::experiments {

/// Reads the command line and --preset, in this order of precedence, over the defaults in `config`.
/// Returns nothing if --help, --list, --list-machine-keys or --version was asked for and printed. Throws Error on
/// anything it does not understand.
std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv);

}  // namespace ringlab::experiments
