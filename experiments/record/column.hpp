#pragma once

#include "experiments/record/hdf5.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A dataset of all runs in memory, in row-major order. It grows with the runs. Elements that none has written are
/// missing: NaN, "", or the least number.
struct Column {
    std::string path, unit, description;
    std::string meanings = {};                 ///< of an enumeration's values 0, 1, ..., with blanks between them
    std::vector<std::string> dimensions = {};  ///< paths of their scales; none: this is a scale itself
    hdf5::Values values = {};
    std::vector<std::int64_t> shape = {};

    bool is_of_runs() const { return !dimensions.empty() && dimensions.front() == "run"; }
    bool is_text() const { return std::holds_alternative<std::vector<std::string>>(values); }
    bool is_floating() const;

    void grow(const std::vector<std::int64_t>& to);

    /// Writes a block, whose values are of the same kind, from `offset` on. Grows if need be.
    void put(hdf5::Extents offset, const Column& block);

    /// The block of `count` elements from `offset` on. Throws Error if they are texts.
    std::vector<double> numbers(hdf5::Extents offset, hdf5::Extents count) const;

    static Column read(const hdf5::File& file, const std::string& path);

    /// Without the scales of its dimensions.
    hdf5::Dataset write(hdf5::File& file, bool packed) const;
};

}  // namespace ringlab::experiments
