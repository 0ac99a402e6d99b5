#pragma once

#include <toml++/toml.h>

#include <string_view>

namespace ringlab::sim {

/// Adds to a parsed machine file the keys that it leaves out, by the rules that docs/reference/machine-files.md
/// shows: the measured H200's figures, scaled or taken over, with a source that begins with "derived: ". Adds
/// nothing to a file that is complete. Never adds one of the keys that a machine must be described with: hosts and GPUs
/// of each, TFLOP/s of forward attention, GB/s of a link inside a host (and of the network, if there are several
/// hosts), memory of a device. `name` is for a file that gives none.
void derive_missing_keys(toml::table& root, std::string_view name);

}  // namespace ringlab::sim
