#pragma once

#include "experiments/hdf5.hpp"
#include "experiments/provenance.hpp"
#include "experiments/record_files.hpp"
#include "layouts/timeline.hpp"

#include <concepts>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A dimension of a dataset by name, with its length where no earlier use tells it. The last part of "a/b/span" is the
/// name, the rest the group where its scale lives and its length holds; without one that is the whole run.
struct Dimension {
    Dimension(const char* dimension_name, std::int64_t dimension_length = unknown)
        : name(dimension_name), length(dimension_length) {}
    Dimension(std::string dimension_name, std::int64_t dimension_length = unknown)
        : name(std::move(dimension_name)), length(dimension_length) {}

    static constexpr std::int64_t unknown = -1;
    std::string name;
    std::int64_t length;
};

/// Everything one run has to say, gathered in memory until Record::commit() makes it visible.
///
/// Paths are "group/name". Units are as people write them ("s", "B", "FLOP"; "1" for a plain number). Every dimension
/// becomes an HDF5 dimension scale: with the coordinates given to dimension(), or 0, 1, 2 ...
class RunWriter {
public:
    void attribute(const std::string& name, hdf5::Attribute value) { attribute_at("", name, std::move(value)); }
    template <std::integral T>
    void attribute(const std::string& name, T value) {
        attribute_at("", name, static_cast<std::int64_t>(value));
    }

    /// Of a group inside the run.
    void attribute_at(const std::string& group, const std::string& name, hdf5::Attribute value);

    /// Coordinates of a dimension: token counts, step numbers, names of things.
    void dimension(const std::string& name, hdf5::Values coordinates, const std::string& unit,
                   const std::string& description);

    /// Values in row-major order of `dimensions`, none for a single value. At most one length may be left unknown.
    /// Throws Error if the path is taken, unit or description is empty, or lengths contradict each other.
    void dataset(const std::string& path, hdf5::Values values, const std::vector<Dimension>& dimensions,
                 const std::string& unit, const std::string& description);

    void scalar(const std::string& path, double value, const std::string& unit, const std::string& description) {
        dataset(path, std::vector<double>{value}, {}, unit, description);
    }

    /// Spans as columns of equal length in the group `path`: rank, op, step, kind, lane, peer, owner, begin, end, busy,
    /// cells, bytes. Kind and lane are small numbers whose meanings, words between blanks, stand in flag_values and
    /// flag_meanings (the CF convention); the group's attribute `ranks` is the timeline's.
    void timeline(const std::string& path, const layouts::Timeline& timeline);

private:
    friend class Record;

    struct Item {
        std::string path;
        hdf5::Values values;
        std::vector<std::string> dimensions;
        std::vector<std::int64_t> shape;
        std::string unit, description;
        std::vector<std::string> meanings;  ///< of the values 0, 1, 2 ..., if they are an enumeration
    };
    struct GroupAttribute {
        std::string group, name;
        hdf5::Attribute value;
    };

    void add(Item item);
    std::int64_t& length_of(const std::string& dimension);
    void write(hdf5::Group& run) const;

    std::vector<GroupAttribute> attributes_;
    std::vector<Item> items_;
    std::vector<Item> coordinates_;  ///< of dimensions that were given them
    std::map<std::string, std::int64_t> lengths_;
};

enum class RecordMode {
    create,     ///< refuse if there is a file
    overwrite,  ///< in place of any record: the old one stays until finish()
    resume,     ///< add to the record of the same experiment and configuration; a new one if there is none. A record
                ///< that was to replace another and was not finished goes on first
};

/// What a record is of; a record can only be resumed by its like.
struct RecordHeader {
    std::string experiment;     ///< "compare_layouts"
    std::string description;    ///< one sentence for whoever finds the file
    std::string configuration;  ///< lines "name = value", without what does not change results
};

/// One HDF5 file per experiment:
///
///     /                  ringlab_schema, experiment, description, configuration
///     /provenance/0, 1…  one for each invocation that added runs: see collect_provenance()
///     /runs/NAME         one for each finished run: session (its provenance), attributes, datasets, timelines
///
/// The file on disk holds finished runs alone, at every moment: a commit writes a new file beside it and renames. The
/// cost of a commit is therefore one copy of the file in memory and on disk. It ends in a checksum that a resume
/// verifies, so that a damaged file is told before HDF5 stumbles over it. One writer at a time; readers at any time.
///
/// A record that replaces another grows beside it, at unfinished_of(path), and takes its place in finish().
class Record {
public:
    static constexpr std::int64_t schema = 1;

    /// Throws Error, and leaves any file there as it is, if the mode forbids it, if another process is writing it, or
    /// if a record to resume cannot be read or is of something else; the first difference is then named.
    Record(const std::filesystem::path& path, RecordMode mode, RecordHeader header, Provenance provenance);
    ~Record();

    /// Where it is now.
    const std::filesystem::path& path() const { return path_; }

    /// All runs are done: takes the place of the record that it replaces, if any.
    void finish();

    /// Names of finished runs, in the order in which they finished.
    std::vector<std::string> runs() const;
    bool has(const std::string& run) const;

    /// Makes the run part of the file, all of it or, if Error is thrown, none.
    void commit(const std::string& name, const RunWriter& run);

    /// What a finished run holds, for tables over all runs; throws Error if it is missing or of another type.
    bool has(const std::string& run, const std::string& dataset) const;
    std::vector<double> numbers(const std::string& run, const std::string& dataset) const;
    std::string text(const std::string& run, const std::string& attribute) const;
    double number(const std::string& run, const std::string& attribute) const;

private:
    void start();
    void resume();
    void load();
    void save() const;
    void require_same(const std::string& attribute, const std::string& value) const;
    void add_session();

    std::filesystem::path target_, path_;
    RecordHeader header_;
    Provenance provenance_;
    WriterLock lock_;
    std::optional<hdf5::File> file_;  // in memory; what is on disk, but while a commit goes on
    std::optional<std::int64_t> session_;
};

}  // namespace ringlab::experiments
