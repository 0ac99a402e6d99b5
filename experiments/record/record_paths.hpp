#pragma once

#include "experiments/record/hdf5/hdf5.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// Throws Error unless every part of "a/b/c" is a name that HDF5 takes as such.
void require_path(const std::string& path, const char* what);

/// "c" of "a/b/c".
std::string last_part(const std::string& path);

/// Gives a dataset of a record the attributes that every one has.
void describe(hdf5::Dataset& dataset, const std::string& unit, const std::string& description);

/// Gives an enumeration the names of its values 0, 1, ...
void tell_meanings(hdf5::Dataset& dataset, const std::vector<std::string>& meanings);

}  // namespace ringlab::experiments
