#pragma once

#include "experiments/options/config.hpp"

#include <functional>
#include <optional>

namespace ringlab::experiments {

/// Reads the command line and --preset, in this order of precedence, over the defaults in `config`.
/// Returns nothing if --help, --list, --list-machine-keys or --version was asked for and printed. Throws Error on
/// anything it does not understand.
std::optional<Config> parse(const Experiment& experiment, Config config, int argc, const char* const* argv);

/// What a program does with its configuration. Returns the exit status.
using Body = std::function<int(Config& config, int argc, char** argv)>;

/// main() of a program: reads the command line over `defaults` and calls `body`. Returns the exit status; an Error, or
/// any other exception, becomes one line on stderr that names the program, and status 1.
int run_program(const Experiment& experiment, const Config& defaults, const Body& body, int argc, char** argv);

/// The same for a program that executes: calls `body` inside an MPI session if the configuration asks for MPI.
int run_program_in_session(const Experiment& experiment, const Config& defaults, const Body& body, int argc,
                           char** argv);

}  // namespace ringlab::experiments
