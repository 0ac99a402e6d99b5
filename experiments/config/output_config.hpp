#pragma once

#include "experiments/outputs/file_guard.hpp"

#include <string>

namespace ringlab::experiments {

/// Where results are written, and what a record keeps about how they were made.
struct OutputConfig {
    std::string path;
    std::string default_path;  ///< of which `path` is the first free one of the numbered names; empty: it was given
    std::string save_tensors;  ///< a folder; empty: they are not saved
    bool resume = false;
    bool overwrite = false;

    /// The options that decide results, defaults too, as "name = value" lines in the form of a config file: what a
    /// record keeps, and what --resume compares.
    std::string text;

    /// All files that parse() knows to be read or written by this command. Code that writes another file must ask it
    /// first.
    FileGuard files;
};

}  // namespace ringlab::experiments
