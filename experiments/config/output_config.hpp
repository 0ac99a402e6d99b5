#pragma once

#include "experiments/outputs/file_guard.hpp"

#include <string>

namespace ringlab::experiments {

/// Where results go, and what a record says of how they came about.
struct OutputConfig {
    std::string path;
    std::string default_path;  ///< of which `path` is the first free one of the numbered names; empty: it was given
    std::string save_tensors;  ///< a folder; empty: they are not saved
    bool resume = false;
    bool overwrite = false;

    /// The options that decide results, defaults too, as "name = value" lines in the form of a config file: what a
    /// record keeps, and what --resume compares.
    std::string text;

    /// All that parse() knows this command reads and writes; whoever writes more asks it first.
    FileGuard files;
};

}  // namespace ringlab::experiments
