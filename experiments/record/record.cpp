#include "experiments/record/record.hpp"

#include "experiments/files/files_read.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// How two texts differ, by their first different line; empty if they are equal.
std::string first_difference(const std::string& what, const std::string& recorded, const std::string& asked) {
    std::stringstream before(recorded), now(asked);
    for (std::string old_line, new_line;;) {
        const bool more_old = !std::getline(before, old_line).fail();
        const bool more_new = !std::getline(now, new_line).fail();
        if (!more_old && !more_new) return "";
        if (more_old && more_new && old_line == new_line) continue;
        return fmt::format("it was made with another {}: it has {}, this invocation {}", what,
                           more_old ? "'" + old_line + "'" : "nothing more",
                           more_new ? "'" + new_line + "'" : "nothing more");
    }
}

/// Reads all datasets below, those of provenance aside.
void read_columns(const hdf5::File& file, const hdf5::Group& group, const std::string& path,
                  std::vector<Column>& columns) {
    for (const auto& name : group.members()) {
        if (!group.is_group(name))
            columns.push_back(Column::read(file, path + name));
        else if (name != "provenance")
            read_columns(file, group.group(name), path + name + "/", columns);
    }
}

/// SHA-256 by the names of files, as an invocation kept them.
std::map<std::string, std::string> digests_in(const Provenance& session) {
    const auto texts = [&](const std::string& name) {
        const auto found = std::ranges::find(session.entries(), name, &Provenance::Entry::first);
        return found == session.entries().end() ? std::vector<std::string>()
                                                : std::get<std::vector<std::string>>(found->second);
    };
    const auto names = texts("files"), all = texts("files_sha256");
    require(names.size() == all.size(), "an invocation has {} files and {} digests", names.size(), all.size());
    std::map<std::string, std::string> digests;
    for (std::size_t i = 0; i < names.size(); ++i) digests[names[i]] = all[i];
    return digests;
}

std::vector<FileDigest> digests_now() {
    auto* account = FilesRead::current();
    return account ? account->digests() : std::vector<FileDigest>();
}

}  // namespace

hdf5::File open_record(const fs::path& path) {
    note_read(path);
    auto file = hdf5::File::open(path);
    if (!file.has("ringlab_schema")) return file;  // its reader says what it is not
    const auto found = file.number("ringlab_schema");
    require(found == static_cast<double>(Record::schema),
            "'{}' follows schema {} of records; this program reads schema {}", path.string(), found, Record::schema);
    return file;
}

Record::Record(const WrittenFile& place, RecordMode mode, RecordHeader header, Provenance provenance)
    : place_(place), header_(std::move(header)), provenance_(std::move(provenance)) {
    require_replaceable(place_.path());
    const bool exists = fs::exists(place_.path());
    if (mode == RecordMode::resume && exists) {
        resume();
        return;
    }
    start();
    if (mode == RecordMode::overwrite && exists) return;  // it stays until the first run is done
    if (mode == RecordMode::create) place_.spare_what_is_there();
    place_.write(image(false));
    is_new_ = true;
}

Record::~Record() {
    std::error_code ignored;
    if (is_new_ && runs_.empty() && place_.is_untouched()) fs::remove(place_.path(), ignored);
}

void Record::finish() {
    is_new_ = false;
    if (is_packed_ && place_.is_untouched()) return;
    place_.write(image(true));
    is_packed_ = true;
}

void Record::start() {
    attributes_ = {{"ringlab_schema", schema},
                   {"experiment", header_.experiment},
                   {"description", header_.description},
                   {"configuration", header_.configuration}};
    columns_.clear();
    sessions_.clear();
    runs_.clear();
    scale("run", std::vector<std::string>{}, "name of the run");
    columns_.push_back({"runs/name", "1", "name of the run", {}, {"run"}, std::vector<std::string>{}, {0}});
}

void Record::resume() {
    try {
        const auto found = load();
        for (const auto& run : runs()) number(run, "session");
        auto different = first_difference("experiment", found.experiment, header_.experiment);
        if (different.empty())
            different = first_difference("configuration", found.configuration, header_.configuration);
        if (const auto file = changed_file(); !file.empty()) different += (different.empty() ? "" : "; ") + file;
        require(different.empty(), "{}", different);
    } catch (const Error& error) {
        fail("cannot resume {}: {}; it is left as it is (--overwrite starts anew)", name(), error.what());
    }
    place_.remove_temporaries();  // of invocations that were killed
}

/// Takes what is on disk into memory.
RecordHeader Record::load() {
    const auto file = hdf5::File::open(place_.path());
    require(file.has("ringlab_schema"), "it is an HDF5 file, but not a record of Ringlab");
    const auto found = file.number("ringlab_schema");
    require(found == static_cast<double>(schema), "it has schema {}, but this program writes schema {}", found, schema);
    attributes_ = file.attributes();
    columns_.clear();
    read_columns(file, file, "", columns_);
    runs_ = std::get<std::vector<std::string>>(column("run").values);
    sessions_.clear();
    const auto sessions = file.group("provenance");
    for (const auto& name : sessions.members()) {
        auto& session = sessions_.emplace_back();
        for (const auto& [entry, value] : sessions.group(name).attributes()) session.set(entry, value);
    }
    is_packed_ = true;
    return {file.text("experiment"), file.text("description"), file.text("configuration")};
}

/// The bytes of the file.
std::vector<std::byte> Record::image(bool packed) const {
    auto file = hdf5::File::create(place_.path());
    for (const auto& [name, value] : attributes_) file.set(name, value);
    file.make_group("provenance");
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
        auto group = file.make_group(fmt::format("provenance/{}", i));
        for (const auto& [entry, value] : sessions_[i].entries()) group.set(entry, value);
    }
    std::map<std::string, hdf5::Dataset> made;
    for (const auto& column : columns_) made.emplace(column.path, column.write(file, packed));
    for (const auto& column : columns_)
        for (std::size_t i = 0; i < column.dimensions.size(); ++i)
            if (const auto scale = made.find(column.dimensions[i]); scale != made.end())
                made.at(column.path).attach_scale(scale->second, i);
    return file.image();
}

/// The file that this command has read and that held something else when earlier runs were made, in words; "" if there
/// is none.
std::string Record::changed_file() const {
    const auto now = digests_now();
    for (const auto& session : sessions_) {
        const auto before = digests_in(session);
        for (const auto& [file, sha256] : now)
            if (const auto found = before.find(file); found != before.end() && found->second != sha256)
                return fmt::format("file '{}' has changed: its SHA-256 was {}, now it is {}", file, found->second,
                                   sha256);
    }
    return "";
}

/// Keeps where the runs of this invocation come from, and what it has read.
void Record::add_session() {
    const auto changed = changed_file();
    require(changed.empty(), "{}", changed);
    files_of_session_ = count_read();
    auto& session = sessions_.emplace_back(provenance_);
    if (!FilesRead::current()) return;
    std::vector<std::string> names, digests;
    for (const auto& [file, sha256] : digests_now()) {
        names.push_back(file);
        digests.push_back(sha256);
    }
    session.set("files", names);
    session.set("files_sha256", digests);
}

const Column* Record::find(const std::string& path) const {
    const auto found = std::ranges::find(columns_, path, &Column::path);
    return found == columns_.end() ? nullptr : &*found;
}

const Column& Record::column(const std::string& path) const {
    const auto* found = find(path);
    require(found != nullptr, "{}:/{} is missing", name(), path);
    return *found;
}

bool Record::has(const std::string& run) const { return std::ranges::find(runs_, run) != runs_.end(); }

bool Record::has(const std::string& run, const std::string& path) const {
    if (!has(run)) return false;
    if (!find(path))
        return std::ranges::any_of(columns_, [&](const Column& one) { return one.path.starts_with(path + "/"); });
    if (!column(path).is_floating()) return true;
    return !std::ranges::all_of(numbers(run, path), [](double value) { return std::isnan(value); });
}

std::size_t Record::index_of(const std::string& run) const {
    const auto found = std::ranges::find(runs_, run);
    require(found != runs_.end(), "{} holds no run '{}'", name(), run);
    return static_cast<std::size_t>(found - runs_.begin());
}

std::vector<double> Record::numbers(const std::string& run, const std::string& path, const Labels& labels) const {
    const auto index = index_of(run);
    const auto& all = column(path);
    auto count = all.shape;
    std::vector<std::int64_t> offset(count.size());
    if (!all.is_of_runs()) return all.numbers(offset, count);  // of a dimension: the same for all runs
    offset[0] = static_cast<std::int64_t>(index);
    count[0] = 1;
    for (std::size_t i = 1; i < count.size(); ++i) {
        const auto& dimension = all.dimensions[i];
        if (const auto label = labels.find(dimension); label != labels.end()) {
            const auto& known = std::get<std::vector<std::string>>(column(dimension).values);
            const auto found = std::ranges::find(known, label->second);
            require(found != known.end(), "{} has no {} '{}'", name(), dimension, label->second);
            offset[i] = found - known.begin();
            count[i] = 1;
        } else if (find("lengths/" + dimension)) {
            const auto length = numbers(run, "lengths/" + dimension).front();
            count[i] = std::max<std::int64_t>(static_cast<std::int64_t>(length), 0);  // missing: it has nothing of it
        }
    }
    return all.numbers(offset, count);
}

std::string Record::text(const std::string& run, const std::string& path) const {
    const auto& all = column("runs/" + path);
    require(all.is_text(), "{}:/{} holds numbers, not texts", name(), all.path);
    return std::get<std::vector<std::string>>(all.values).at(index_of(run));
}

double Record::number(const std::string& run, const std::string& path) const {
    return numbers(run, "runs/" + path).front();
}

}  // namespace ringlab::experiments
