#include "experiments/record/record.hpp"

#include "experiments/files/files_read.hpp"
#include "experiments/record/record_paths.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

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

/// Paths of all datasets below whose first dimension is that of the runs.
void find_stacked(const hdf5::Group& group, const std::string& path, std::vector<std::string>& found) {
    for (const auto& name : group.members()) {
        const auto below = path + name;
        if (group.is_group(name))
            find_stacked(group.group(name), below + "/", found);
        else if (const auto scales = group.dataset(name).scales(); !scales.empty() && scales.front() == "run")
            found.push_back(below);
    }
}

}  // namespace

Record::Record(const fs::path& path, RecordOpening opening, RecordHeader header, Provenance provenance)
    : base_(opening.base.empty() ? path : opening.base),
      header_(std::move(header)),
      provenance_(std::move(provenance)) {
    const auto mode = opening.mode;
    if (mode == RecordMode::next_free)
        take_free_name(path);
    else
        take_name(path);
    if (name_ != path)
        fmt::print(stderr, "[note] '{}' was taken meanwhile; this goes to '{}'\n", path.string(), name());
    require_replaceable(target_);
    const auto unfinished = unfinished_of(target_);
    const bool exists = fs::exists(target_), has_unfinished = fs::exists(unfinished);
    require(mode != RecordMode::create || (!exists && !has_unfinished),
            "{} exists; use --resume to add what is missing, --overwrite to start anew, or write elsewhere",
            exists ? target_.string() : unfinished.string());
    if (mode == RecordMode::resume ? has_unfinished : exists) path_ = unfinished;
    found_ = opening.found.value_or(state_of(target_));
    own_ = state_of(path_);
    if (mode == RecordMode::resume && (exists || has_unfinished))
        resume();
    else
        start();
    if (mode != RecordMode::resume && path_ == target_ && has_unfinished) fs::remove(unfinished);
}

void Record::finish() {
    is_new_ = false;
    const auto unfinished = path_;
    const bool replaces = path_ != target_;
    if (!replaces && !has_grown_ && state_of(path_) == own_) return;
    if (replaces) {
        path_ = target_;
        own_ = found_;
    }
    save(file_->copied(target_, hdf5::Storage::packed));
    has_grown_ = false;
    if (replaces) fs::remove(unfinished);
}

Record::~Record() {
    std::error_code ignored;
    if (is_new_ && runs_.empty() && state_of(path_) == own_) fs::remove(path_, ignored);
}

void Record::take_name(const fs::path& name) {
    name_ = name;
    target_ = path_ = followed(name);
    const auto folder = fs::absolute(target_).parent_path();
    require(fs::is_directory(folder), "{} cannot be written: there is no folder {}", name.string(), folder.string());
    temporary_.watch(temporary_of(target_));
    unfinished_temporary_.watch(temporary_of(unfinished_of(target_)));
    own_ = {};
}

void Record::take_free_name(const fs::path& first) {
    for (int number = 1;; ++number) {
        const auto name = number == 1 ? first : numbered(base_, number);
        if (is_free(followed(name))) return take_name(name);
    }
}

void Record::start() {
    file_.emplace(hdf5::File::create_in_memory(path_));
    file_->set("ringlab_schema", schema);
    file_->set("experiment", header_.experiment);
    file_->set("description", header_.description);
    file_->set("configuration", header_.configuration);
    file_->make_group("provenance");
    file_->make_group("runs");
    make_scale("run", std::vector<std::string>{}, "1", "name of the run");
    make_stacked({"runs/name", std::vector<std::string>{}, {}, "1", "name of the run"}, {0}, {1});
    look_around();
    save(*file_);
    is_new_ = has_grown_ = true;
}

void Record::resume() {
    try {
        load();
        require(file_->has("ringlab_schema"), "it is an HDF5 file, but not a record of Ringlab");
        const auto found = file_->number("ringlab_schema");
        require(found == static_cast<double>(schema), "it has schema {}, but this program writes schema {}", found,
                schema);
        file_->group("provenance");
        for (const auto& run : runs()) number(run, "session");
        auto different = difference("experiment", header_.experiment);
        if (different.empty()) different = difference("configuration", header_.configuration);
        if (const auto file = changed_file(); !file.empty()) different += (different.empty() ? "" : "; ") + file;
        require(different.empty(), "{}", different);
    } catch (const Error& error) {
        fail("cannot resume {}: {}; it is left as it is (--overwrite starts anew)", path_.string(), error.what());
    }
    note_unknown_files();
    remove_temporaries_of(path_);  // of invocations that were killed
}

void Record::load() {
    const auto [bytes, state] = read_file(path_);
    auto file = hdf5::File::open_image(path_, bytes);
    own_ = state;
    file_.reset();
    file_.emplace(std::move(file));
    if (!file_->contains("run")) return;
    file_.emplace(file_->copied(path_, hdf5::Storage::growing));
    look_around();
}

void Record::look_around() {
    runs_ = file_->dataset("run").texts();
    stacked_.clear();
    find_stacked(*file_, "", stacked_);
}

void Record::save(const hdf5::File& file) {
    const auto bytes = file.image();
    if (replace_file(path_, bytes, own_)) return;
    const auto before = name_;
    do take_free_name(numbered(base_, 2));
    while (!replace_file(path_, bytes, own_));
    say_that_it_goes_beside(before, name_);
}

std::string Record::difference(const std::string& attribute, const std::string& value) const {
    const auto found = first_difference(file_->text(attribute), value);
    return found.empty() ? "" : fmt::format("it was made with another {}: {}", attribute, found);
}

bool Record::has(const std::string& run) const { return std::find(runs_.begin(), runs_.end(), run) != runs_.end(); }

bool Record::has(const std::string& run, const std::string& path) const {
    if (!has(run) || !file_->contains(path)) return false;
    if (file_->is_group(path)) return true;
    const auto element = file_->dataset(path).element();
    if (element != hdf5::Element::fp64 && element != hdf5::Element::fp32) return true;
    const auto values = numbers(run, path);
    return !std::all_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

void Record::commit(const std::string& name, const RunWriter& run) {
    require_path(name, "run");
    require(name.find('/') == std::string::npos, "'{}' cannot name a run: it holds a '/'", name);
    require(!has(name), "{} holds a run '{}' already", path_.string(), name);
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
        save(*file_);
        has_grown_ = true;
    } catch (const std::exception& error) {
        session_ = session_before;
        if (state_of(path_) == own_) load();
        fail("run '{}' is not recorded: {}; {} holds the {} runs finished before it", name, error.what(),
             path_.string(), runs().size());
    }
    runs_.push_back(name);
}

std::int64_t Record::index_of(const std::string& run) const {
    const auto found = std::find(runs_.begin(), runs_.end(), run);
    require(found != runs_.end(), "{} holds no run '{}'", path_.string(), run);
    return found - runs_.begin();
}

std::vector<double> Record::numbers(const std::string& run, const std::string& path, const Labels& labels) const {
    const auto index = index_of(run);
    const auto dataset = file_->dataset(path);
    const auto shape = dataset.shape();
    const auto names = dataset.scales();
    if (names.empty() || names.front() != "run") return dataset.doubles();  // of a dimension: the same for all runs
    std::vector<std::int64_t> offset(shape.size()), count = shape;
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (i == 0) {
            offset[i] = index;
            count[i] = 1;
        } else if (const auto label = labels.find(names[i]); label != labels.end()) {
            const auto known = file_->dataset(names[i]).texts();
            const auto found = std::find(known.begin(), known.end(), label->second);
            require(found != known.end(), "{} has no {} '{}'", path_.string(), names[i], label->second);
            offset[i] = found - known.begin();
            count[i] = 1;
        } else if (file_->contains("lengths/" + names[i])) {
            const auto length = file_->dataset("lengths/" + names[i]).integers().at(static_cast<std::size_t>(index));
            count[i] = std::max<std::int64_t>(length, 0);  // missing: the run has nothing of it
        }
        elements *= count[i];
    }
    std::vector<double> values(static_cast<std::size_t>(elements));
    dataset.read_block(offset, count, values);
    return values;
}

std::string Record::text(const std::string& run, const std::string& column) const {
    return file_->dataset("runs/" + column).texts().at(static_cast<std::size_t>(index_of(run)));
}

double Record::number(const std::string& run, const std::string& column) const {
    return file_->dataset("runs/" + column).doubles().at(static_cast<std::size_t>(index_of(run)));
}

}  // namespace ringlab::experiments
