#pragma once

#include "experiments/record/hdf5/hdf5.hpp"

#include <filesystem>

namespace ringlab::experiments {

/// Opens a record for reading; it counts among the files that the command has read. Throws Error of one line.
hdf5::File open_record(const std::filesystem::path& path);

}  // namespace ringlab::experiments
