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

const std::string sha256_suffix = "_sha256";

/// How two configurations differ, by their first different line; empty if they are equal.
std::string first_difference(const std::string& recorded, const std::string& asked) {
    std::stringstream before(recorded), now(asked);
    for (std::string old_line, new_line;;) {
        const bool more_old = !std::getline(before, old_line).fail();
        const bool more_new = !std::getline(now, new_line).fail();
        if (!more_old && !more_new) return "";
        if (more_old && more_new && old_line == new_line) continue;
        return fmt::format("it has {}, this invocation {}", more_old ? "'" + old_line + "'" : "nothing more",
                           more_new ? "'" + new_line + "'" : "nothing more");
    }
}

/// Paths of all datasets below, those of provenance aside.
void find_datasets(const hdf5::Group& group, const std::string& path, std::vector<std::string>& found) {
    for (const auto& name : group.members()) {
        if (!group.is_group(name))
            found.push_back(path + name);
        else if (name != "provenance")
            find_datasets(group.group(name), path + name + "/", found);
    }
}

/// A dataset that can grow, with these values.
hdf5::Dataset grown(hdf5::File& file, const std::string& path, const hdf5::Values& values,
                    const std::vector<std::int64_t>& shape) {
    constexpr std::int64_t fewest_rows = 64, most_rows = 1 << 14;
    auto of_one = shape;
    of_one[0] = shape.size() == 1 ? std::clamp(shape[0], fewest_rows, most_rows) : 1;
    auto made = file.make_growing(path, values, of_one);
    made.grow(shape);
    made.write_block(std::vector<std::int64_t>(shape.size()), shape, values);
    return made;
}

/// SHA-256 by the names of files, as an invocation kept them.
std::map<std::string, std::string> digests_in(const hdf5::Group& session) {
    std::map<std::string, std::string> digests;
    if (!session.has("files")) return digests;
    const auto names = session.texts("files"), all = session.texts("files" + sha256_suffix);
    require(names.size() == all.size(), "{} has {} files and {} digests", session.name(), names.size(), all.size());
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
    return hdf5::File::open(path);
}

Record::Record(const fs::path& path, RecordOpening opening, RecordHeader header, Provenance provenance)
    : place_(path, opening.found, opening.base), header_(std::move(header)), provenance_(std::move(provenance)) {
    const auto mode = opening.mode;
    if (mode == RecordMode::next_free) place_.leave_what_is_there();
    require_replaceable(place_.path());
    const bool exists = fs::exists(place_.path());
    require(mode != RecordMode::create || !exists,
            "{} exists; use --resume to add what is missing, --overwrite to start anew, or write elsewhere", name());
    if (mode == RecordMode::resume && exists) {
        resume();
        return;
    }
    start();
    if (exists) return;  // it stays until the first run is done
    place_.write(file_->image());
    is_new_ = true;
}

Record::~Record() {
    std::error_code ignored;
    if (is_new_ && runs_.empty() && place_.is_untouched()) fs::remove(place_.path(), ignored);
}

void Record::finish() {
    is_new_ = false;
    if (!has_grown_ && place_.is_untouched()) return;
    place_.write(copied(*file_, place_.path(), Storage::packed).image());
    has_grown_ = false;
}

void Record::start() {
    file_.emplace(hdf5::File::create(place_.path()));
    file_->set("ringlab_schema", schema);
    file_->set("experiment", header_.experiment);
    file_->set("description", header_.description);
    file_->set("configuration", header_.configuration);
    file_->make_group("provenance");
    make_scale("run", std::vector<std::string>{}, "1", "name of the run");
    make_stacked({"runs/name", std::vector<std::string>{}, {}, "1", "name of the run"}, {1});
    look_around();
    has_grown_ = true;
}

void Record::resume() {
    try {
        load();
        for (const auto& run : runs()) number(run, "session");
        auto different = difference("experiment", header_.experiment);
        if (different.empty()) different = difference("configuration", header_.configuration);
        if (const auto file = changed_file(); !file.empty()) different += (different.empty() ? "" : "; ") + file;
        require(different.empty(), "{}", different);
    } catch (const Error& error) {
        fail("cannot resume {}: {}; it is left as it is (--overwrite starts anew)", name(), error.what());
    }
    place_.remove_temporaries();  // of invocations that were killed
}

/// Takes what is on disk into memory.
void Record::load() {
    const auto file = hdf5::File::open(place_.path());
    require(file.has("ringlab_schema"), "it is an HDF5 file, but not a record of Ringlab");
    const auto found = file.number("ringlab_schema");
    require(found == static_cast<double>(schema), "it has schema {}, but this program writes schema {}", found, schema);
    file_.reset();
    file_.emplace(copied(file, place_.path(), Storage::growing));
    look_around();
}

void Record::look_around() {
    runs_ = file_->dataset("run").texts();
    stacked_.clear();
    find_datasets(*file_, "", stacked_);
    std::erase_if(stacked_, [&](const auto& path) {
        const auto scales = file_->dataset(path).scales();
        return scales.empty() || scales.front() != "run";
    });
}

std::string Record::difference(const std::string& attribute, const std::string& value) const {
    const auto found = first_difference(file_->text(attribute), value);
    return found.empty() ? "" : fmt::format("it was made with another {}: {}", attribute, found);
}

/// The file that this command has read and that held something else when earlier runs were made, in words; "" if there
/// is none.
std::string Record::changed_file() const {
    const auto now = digests_now();
    const auto sessions = file_->group("provenance");
    for (const auto& session : sessions.members()) {
        const auto before = digests_in(sessions.group(session));
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
    std::vector<std::string> names, digests;
    for (const auto& [file, sha256] : digests_now()) {
        names.push_back(file);
        digests.push_back(sha256);
    }
    session_ = {static_cast<std::int64_t>(file_->group("provenance").members().size()), count_read()};
    auto group = file_->make_group(fmt::format("provenance/{}", session_->number));
    for (const auto& [entry, value] : provenance_.entries()) group.set(entry, value);
    if (!FilesRead::current()) return;
    group.set("files", names);
    group.set("files" + sha256_suffix, digests);
}

/// The same in a file in memory whose datasets can grow, or whose datasets are packed.
hdf5::File Record::copied(const hdf5::File& record, const fs::path& path, Storage storage) {
    auto copy = hdf5::File::create(path);
    copy.copy_attributes(record);
    copy.make_group("provenance");
    const auto sessions = record.group("provenance");
    for (const auto& session : sessions.members())
        copy.make_group("provenance/" + session).copy_attributes(sessions.group(session));
    std::vector<std::string> paths;
    find_datasets(record, "", paths);
    for (const auto& name : paths) {
        const auto old = record.dataset(name);
        const auto values = old.values();
        const auto shape = old.shape();
        auto made =
            storage == Storage::packed ? copy.make_dataset(name, values, shape) : grown(copy, name, values, shape);
        describe(made, old.text("units"), old.text("description"),
                 old.has("flag_meanings") ? old.text("flag_meanings") : "");
        if (old.has("_FillValue")) made.tell_missing();
        if (old.is_scale()) made.make_scale(name);
    }
    for (const auto& name : paths) {
        const auto scales = record.dataset(name).scales();
        for (std::size_t i = 0; i < scales.size(); ++i)
            if (!scales[i].empty()) copy.dataset(name).attach_scale(copy.dataset(scales[i]), i);
    }
    return copy;
}

bool Record::has(const std::string& run) const { return std::ranges::find(runs_, run) != runs_.end(); }

bool Record::has(const std::string& run, const std::string& path) const {
    if (!has(run) || !file_->contains(path)) return false;
    if (file_->is_group(path)) return true;
    const auto element = file_->dataset(path).element();
    if (element != hdf5::Element::fp64 && element != hdf5::Element::fp32) return true;
    const auto values = numbers(run, path);
    return !std::ranges::all_of(values, [](double value) { return std::isnan(value); });
}

void Record::commit(const std::string& name, const RunWriter& run) {
    require_path(name, "run");
    require(name.find('/') == std::string::npos, "'{}' cannot name a run: it holds a '/'", name);
    require(!has(name), "{} holds a run '{}' already", this->name(), name);
    const auto session_before = session_;
    const auto index = static_cast<std::int64_t>(runs_.size());
    try {
        if (!session_ || session_->files != count_read()) add_session();  // or a file was read after an earlier run
        append({"runs/name", std::vector<std::string>{name}, {}, "1", "name of the run"}, index);
        append({"runs/session",
                std::vector<std::int64_t>{session_->number},
                {},
                "1",
                "group of /provenance it comes from"},
               index);
        for (const auto& coordinates : run.coordinates_) set_coordinates(coordinates);
        for (const auto& [dimension, length] : run.lengths_) {
            count_up(dimension, length);
            append({"lengths/" + dimension,
                    std::vector<std::int64_t>{length},
                    {},
                    "1",
                    "how many of " + last_part(dimension) + " it has"},
                   index);
        }
        for (const auto& item : run.items_) append(item, index);
        for (const auto& spans : run.spans_) append(spans, index);
        extend_all(index + 1);
        place_of("run", name);
        place_.write(file_->image());
        has_grown_ = true;
    } catch (const std::exception& error) {
        session_ = session_before;
        if (place_.is_untouched() && index > 0) load();
        if (index == 0) start();
        fail("run '{}' is not recorded: {}; {} holds the {} runs finished before it", name, error.what(), this->name(),
             runs().size());
    }
    runs_.push_back(name);
}

std::size_t Record::index_of(const std::string& run) const {
    const auto found = std::ranges::find(runs_, run);
    require(found != runs_.end(), "{} holds no run '{}'", name(), run);
    return static_cast<std::size_t>(found - runs_.begin());
}

std::vector<double> Record::numbers(const std::string& run, const std::string& path, const Labels& labels) const {
    const auto index = index_of(run);
    const auto dataset = file_->dataset(path);
    const auto scales = dataset.scales();
    if (scales.empty() || scales.front() != "run") return dataset.doubles();  // of a dimension: the same for all runs
    auto count = dataset.shape();
    std::vector<std::int64_t> offset(count.size());
    offset[0] = static_cast<std::int64_t>(index);
    count[0] = 1;
    for (std::size_t i = 1; i < count.size(); ++i) {
        if (const auto label = labels.find(scales[i]); label != labels.end()) {
            const auto known = file_->dataset(scales[i]).texts();
            const auto found = std::ranges::find(known, label->second);
            require(found != known.end(), "{} has no {} '{}'", name(), scales[i], label->second);
            offset[i] = found - known.begin();
            count[i] = 1;
        } else if (file_->contains("lengths/" + scales[i])) {
            const auto length = file_->dataset("lengths/" + scales[i]).integers().at(index);
            count[i] = std::max<std::int64_t>(length, 0);  // missing: the run has nothing of it
        }
    }
    std::int64_t elements = 1;
    for (const auto extent : count) elements *= extent;
    std::vector<double> values(static_cast<std::size_t>(elements));
    dataset.read_block(offset, count, values);
    return values;
}

std::string Record::text(const std::string& run, const std::string& column) const {
    return file_->dataset("runs/" + column).texts().at(index_of(run));
}

double Record::number(const std::string& run, const std::string& column) const {
    return file_->dataset("runs/" + column).doubles().at(index_of(run));
}

}  // namespace ringlab::experiments
