#pragma once

#include "experiments/record/hdf5/hdf5.hpp"

#include <filesystem>

namespace ringlab::experiments {

/// A record that somebody hands over, to read. Not all end in the checksum of their contents: whoever cuts or copies
/// one with another program leaves it out. So a child process first reads all that is in it (files/untrusted.hpp), and
/// HDF5 does in this one what it has just done there. Throws Error of one line if that fails.
hdf5::File open_record(const std::filesystem::path& path);

}  // namespace ringlab::experiments
