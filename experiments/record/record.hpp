#pragma once

#include "experiments/files/written_file.hpp"
#include "experiments/record/column.hpp"
#include "experiments/record/provenance.hpp"
#include "experiments/record/run_writer.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Opens a record for reading; it counts among the files that the command has read. Throws Error of one line.
hdf5::File open_record(const std::filesystem::path& path);

/// What happens if there is a file at the record's path.
enum class RecordMode {
    create,     ///< it stays, and the record goes to the next free name
    overwrite,  ///< the record takes its place as soon as the first run is done
    resume,     ///< add to the record of the same experiment and configuration; a new one if there is none
};

/// What a record is of; a record can only be resumed by its like.
struct RecordHeader {
    std::string experiment;     ///< "compare_layouts"
    std::string description;    ///< one sentence for whoever finds the file
    std::string configuration;  ///< lines "name = value", without what does not change results
};

// clang-format off
/// One HDF5 file per experiment. Its datasets are about all runs, so that they stay few:
///
///     /                   ringlab_schema, experiment, description, configuration (every option, defaults too)
///     /run, /rank, ...    dimension scales: run holds the names of the runs, the others names of things or 0, 1 ...
///     /runs/COLUMN        (run): a flat table of all runs: what was run, and figures that sum it up
///     /GROUP/DATASET      (run, ...): what RunWriter::dataset() was given. Runs differ in size: what lies beyond the
///                         size of one is missing (NaN, "", or _FillValue), and
///     /lengths/DIMENSION  (run) says how far each run goes
///     /spans/COLUMN       (span): a flat table of all operations of all timelines, with run, source and pass; those
///                         of one timeline are /spans/count (run, source, pass) rows from /spans/first on
///     /provenance/0, 1…   one for each invocation that added runs: see collect_provenance(); and of all FilesRead the
///                         names and digests, files and files_sha256
///
/// Every dataset has the attributes units and description.
///
/// All of it is in memory too, as columns, from which tables are made. The file on disk holds finished runs alone, at
/// every moment (see WrittenFile), so that readers may come at any time. A commit therefore writes the whole file; only
/// finish() compresses it.
// clang-format on
class Record {
public:
    static constexpr std::int64_t schema = 4;

    /// Throws Error, and leaves any file there as it is, if a record to resume cannot be read or is of something else:
    /// of another configuration, or of files (see FilesRead) whose contents were others; the first difference is then
    /// named.
    Record(const WrittenFile& place, RecordMode mode, RecordHeader header, Provenance provenance);

    /// Without finish() and before any run, as where the first one throws, no new file is left.
    ~Record();

    /// Where it is, by the name that was given or by the free one that was taken.
    std::string name() const { return place_.name().string(); }
    const WrittenFile& place() const { return place_; }

    /// All runs are done.
    void finish();

    /// Names of finished runs, in the order in which they finished.
    const std::vector<std::string>& runs() const { return runs_; }
    bool has(const std::string& run) const;

    /// Whether a finished run has any number in the dataset, or there is such a group.
    bool has(const std::string& run, const std::string& path) const;

    /// Makes the run part of the file, all of it or, if Error is thrown, none.
    void commit(const std::string& name, const RunWriter& run);

    /// What a finished run holds, for tables over all runs, without what is missing at the end of a dimension. `labels`
    /// choose from dimensions of named things. Throws Error if there is no such thing, or if it is of another type.
    using Labels = std::map<std::string, std::string>;
    std::vector<double> numbers(const std::string& run, const std::string& dataset, const Labels& labels = {}) const;
    std::string text(const std::string& run, const std::string& column) const;
    double number(const std::string& run, const std::string& column) const;

private:
    void start();
    void resume();
    RecordHeader load();
    std::vector<std::byte> image(bool packed) const;
    std::string changed_file() const;
    void add_session();
    std::size_t index_of(const std::string& run) const;
    const Column* find(const std::string& path) const;
    const Column& column(const std::string& path) const;

    // record_append.cpp
    Column& scale(const std::string& dimension, const hdf5::Values& empty, const std::string& description);
    void count_up(const std::string& dimension, std::int64_t length);
    void set_coordinates(const RunWriter::Item& given);
    std::int64_t place_of(const std::string& dimension, const std::string& label);
    void append(const Column& part, hdf5::Extents offset);
    void append(const RunWriter::Item& item, std::int64_t run);
    void append(const RunWriter::Spans& item, std::int64_t run);

    WrittenFile place_;
    bool is_new_ = false;     // made by this object, and finish() was not called
    bool is_packed_ = false;  // what is on disk
    RecordHeader header_;
    Provenance provenance_;
    // What is on disk, but while a commit goes on.
    std::vector<std::pair<std::string, hdf5::Attribute>> attributes_;  // of the file
    std::vector<Column> columns_;
    std::vector<Provenance> sessions_;
    std::vector<std::string> runs_;
    std::optional<std::size_t> files_of_session_;  // that were read when this invocation's last session was made
};

}  // namespace ringlab::experiments
