#pragma once

#include "experiments/record/hdf5.hpp"
#include "layouts/program/timeline.hpp"

#include <concepts>
#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A dimension of a dataset of one run.
struct Dimension {
    Dimension(const char* dimension_name, std::int64_t dimension_length = unknown)
        : name(dimension_name), length(dimension_length) {}
    Dimension(std::string dimension_name, std::int64_t dimension_length = unknown)
        : name(std::move(dimension_name)), length(dimension_length) {}

    /// The index `label` of a dimension of named things, for values of one machine or one pass.
    static Dimension at(std::string dimension_name, std::string label) {
        Dimension dimension(std::move(dimension_name), 1);
        dimension.label = std::move(label);
        return dimension;
    }

    static constexpr std::int64_t unknown = -1;
    std::string name;     ///< "rank"; in "a/b/sample" the last part is the name, the rest the group of its scale
    std::int64_t length;  ///< may be unknown if an earlier use in the run gives it
    std::string label;    ///< "" but from at()
};

/// Throws Error unless every part of "a/b/c" is a name that HDF5 takes as such.
void require_path(const std::string& path, const char* what);

/// "c" of "a/b/c".
std::string last_part(const std::string& path);

/// Measured values in single precision, whose 24 bits are more than any clock tells.
hdf5::Values measured(const std::vector<double>& values);

/// The columns and datasets of one run, collected in memory until Record::commit() writes them.
///
/// Units are as people write them ("s", "B", "FLOP"; "1" for a plain number).
class RunWriter {
public:
    /// A column of the table of all runs.
    void attribute(const std::string& name, hdf5::Attribute value, const std::string& unit = "1",
                   const std::string& description = "");
    template <std::integral T>
    void attribute(const std::string& name, T value, const std::string& unit = "1",
                   const std::string& description = "") {
        attribute(name, hdf5::Attribute(static_cast<std::int64_t>(value)), unit, description);
    }

    /// Coordinates of a dimension, equal in all runs: names of things.
    void dimension(const std::string& name, hdf5::Values coordinates, const std::string& unit,
                   const std::string& description);

    /// Values in row-major order of `dimensions`, none for a single value. At most one length may be left unknown.
    /// Throws Error if the path is taken, unit or description is empty, or lengths contradict each other.
    void dataset(const std::string& path, hdf5::Values values, const std::vector<Dimension>& dimensions,
                 const std::string& unit, const std::string& description);

    /// Texts of which few differ, each one word of `meanings` or "", stored as the place in them: an enumeration, as
    /// the conventions for climate data (CF) have it.
    void enumeration(const std::string& path, const std::vector<std::string>& values,
                     const std::vector<std::string>& meanings, const std::vector<Dimension>& dimensions,
                     const std::string& unit, const std::string& description);

    /// Spans of one pass, `source` being a machine they are predicted for, or "measured".
    void timeline(const std::string& source, const std::string& pass, layouts::Timeline timeline);

private:
    friend class Record;

    struct Item {
        std::string path;
        hdf5::Values values;
        std::vector<Dimension> dimensions;
        std::string unit, description;
        std::vector<std::string> meanings = {};  ///< of an enumeration's values 0, 1, ...
    };
    struct Spans {
        std::string source, pass;
        layouts::Timeline timeline;
    };

    void add(Item item);

    std::vector<Item> items_;
    std::vector<Item> coordinates_;                ///< of dimensions that were given them
    std::map<std::string, std::int64_t> lengths_;  ///< of dimensions without labels
    std::vector<Spans> spans_;
};

}  // namespace ringlab::experiments
