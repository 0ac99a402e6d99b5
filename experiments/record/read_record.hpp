#pragma once

#include "experiments/record/hdf5/hdf5.hpp"

#include <filesystem>

namespace ringlab::experiments {

/// Opens a record of unknown origin for reading. Not all records end in a checksum: other programs leave it out when
/// they cut or copy one. So a child process reads everything in it first (files/untrusted.hpp). If that succeeds, HDF5
/// does the same in this process. Throws Error of one line if it fails.
hdf5::File open_record(const std::filesystem::path& path);

}  // namespace ringlab::experiments
