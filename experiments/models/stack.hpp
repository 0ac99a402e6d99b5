#pragma once

#include "experiments/config/case.hpp"
#include "layouts/problem/problem.hpp"

#include <array>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The attention layers of a model.
struct Stack {
    std::vector<std::string> kinds;   ///< presets, by first use
    std::vector<std::size_t> layers;  ///< the kind of each layer, from the first one on
};

/// From the text of a file "46 layers: LOCAL 5x GLOBAL", in which names are presets and the list is gone through again
/// until there are so many; # begins a comment. Throws Error that names `file` and says what would be right.
Stack parse_stack(const std::string& text, const std::string& file);

/// Loads a stack by the name of one that comes with Ringlab, or from a file.
Stack load_stack(const std::string& name);

/// Seconds of a layer's forward and backward pass.
using PassSeconds = std::array<double, 2>;

/// By which schedules the layers of a stack take least time. A layer's forward and backward pass may take different
/// ones, as both leave every rank its own rows.
struct StackSchedules {
    std::vector<std::array<std::size_t, 2>> chosen;  ///< by kind and pass: the schedule's place
    PassSeconds seconds{};                           ///< of all layers, by the chosen ones
    std::size_t single = 0;                          ///< the best schedule if all layers take the same
    double single_seconds = 0;                       ///< of all layers, both passes, by that one
};

/// Chooses the fastest schedules. `seconds` has the times by kind of layer and schedule; every kind has the same
/// schedules. If two are equally fast, the first one is chosen.
StackSchedules choose_schedules(const Stack& stack, const std::vector<std::vector<PassSeconds>>& seconds);

/// A mask whose windows, chunks and sinks are so many times shorter, at least one token. Throws Error if a term has
/// lengths of another kind.
std::string scaled_down(const std::string& mask, std::int64_t factor);

/// A layer of which a kv head and the query heads that read it are computed.
layouts::Problem one_kv_head(layouts::Problem problem);

/// Bytes that a layer leaves for its backward pass on a rank of `tokens` tokens: q, k, v, o and lse.
std::int64_t kept_bytes(const layouts::Problem& problem, std::int64_t tokens);

}  // namespace ringlab::experiments
