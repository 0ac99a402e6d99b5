#include "experiments/record/record.hpp"

#include "layouts/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <sstream>
#include <type_traits>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// Throws Error unless every part of "a/b/c" is a name that HDF5 takes as such.
void require_path(const std::string& path, const char* what) {
    std::stringstream parts(path + "/");
    for (std::string part; std::getline(parts, part, '/');)
        require(!part.empty() && part != "." && part != "..",
                "'{}' cannot name a {}: its parts must not be empty or dots", path, what);
}

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

/// The names of an enumeration's values 0, 1, ... `last`, as single words.
template <class Enumeration>
std::vector<std::string> names_up_to(Enumeration last) {
    std::vector<std::string> names;
    for (int value = 0; value <= static_cast<int>(last); ++value) {
        auto& name = names.emplace_back(layouts::to_string(static_cast<Enumeration>(value)));
        std::replace(name.begin(), name.end(), ' ', '_');
    }
    return names;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void describe(hdf5::Dataset& dataset, const std::string& unit, const std::string& description) {
    dataset.set("units", unit);
    dataset.set("description", description);
}

/// What an attribute becomes in a table: a list becomes one text.
hdf5::Values as_values(const hdf5::Attribute& value) {
    return std::visit(
        [](const auto& held) -> hdf5::Values {
            using T = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>)
                return std::vector<T>{held};
            else
                return std::vector<std::string>{fmt::format("{}", fmt::join(held, "; "))};
        },
        value);
}

/// Extents of a chunk of a dataset of all runs whose first has this shape: some thousand elements, so that a small
/// table is one chunk and larger runs need not many more.
std::vector<std::int64_t> chunk_of(const std::vector<std::int64_t>& shape) {
    constexpr std::int64_t elements = 1 << 17, of_runs = 512, shortest = 8, most_runs = 64;
    std::vector<std::int64_t> chunk(shape.size());
    std::int64_t inner = 1;
    for (std::size_t i = shape.size(); i-- > 1;) {
        chunk[i] = std::clamp<std::int64_t>(std::max(shape[i], shape[i] > 1 ? shortest : 1), 1, elements / inner);
        inner *= chunk[i];
    }
    chunk[0] = std::clamp<std::int64_t>(of_runs / inner, 1, most_runs);
    return chunk;
}

hdf5::Element element_of(const hdf5::Values& values) {
    if (std::holds_alternative<std::vector<double>>(values)) return hdf5::Element::fp64;
    return std::holds_alternative<std::vector<std::string>>(values) ? hdf5::Element::text : hdf5::Element::integer;
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

constexpr std::int64_t rows_of_names = 64, rows_of_spans = 1 << 14;  // of a chunk

}  // namespace

void RunWriter::attribute(const std::string& name, hdf5::Attribute value, const std::string& unit,
                          const std::string& description) {
    require_path(name, "attribute");
    require(name.find('/') == std::string::npos, "'{}' cannot name an attribute: it holds a '/'", name);
    auto words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    add({"runs/" + name, as_values(value), {}, unit, description.empty() ? words : description});
}

void RunWriter::dimension(const std::string& name, hdf5::Values coordinates, const std::string& unit,
                          const std::string& description) {
    require_path(name, "dimension");
    auto& length = lengths_.try_emplace(name, Dimension::unknown).first->second;
    const auto count = static_cast<std::int64_t>(hdf5::size_of(coordinates));
    require(length == Dimension::unknown || length == count, "dimension '{}' has length {}, its coordinates {}", name,
            length, count);
    for (const auto& other : coordinates_)
        require(other.path != name, "dimension '{}' was given coordinates twice", name);
    length = count;
    coordinates_.push_back({name, std::move(coordinates), {}, unit, description});
}

void RunWriter::dataset(const std::string& path, hdf5::Values values, const std::vector<Dimension>& dimensions,
                        const std::string& unit, const std::string& description) {
    Item item{path, std::move(values), dimensions, unit, description};
    const auto count = static_cast<std::int64_t>(hdf5::size_of(item.values));
    std::int64_t known = 1;
    std::vector<std::int64_t*> open;
    for (const auto& dimension : item.dimensions) {
        require_path(dimension.name, "dimension");
        if (!dimension.label.empty()) continue;
        auto& length = lengths_.try_emplace(dimension.name, Dimension::unknown).first->second;
        require(length == Dimension::unknown || dimension.length == Dimension::unknown || length == dimension.length,
                "dimension '{}' of dataset '{}' has length {} elsewhere in the run, here {}", dimension.name, path,
                length, dimension.length);
        if (dimension.length != Dimension::unknown) length = dimension.length;
        if (length == Dimension::unknown)
            open.push_back(&length);
        else
            known *= length;
    }
    require(open.size() <= 1, "dataset '{}' has {} dimensions of unknown length; at most one follows from its values",
            path, open.size());
    if (open.size() == 1) {
        require(known > 0 && count % known == 0, "dataset '{}' has {} values; that is no multiple of {}", path, count,
                known);
        *open.front() = count / known;
        known = count;
    }
    require(known == count, "dataset '{}' has {} values; its dimensions ask for {}", path, count, known);
    for (auto& dimension : item.dimensions)
        if (dimension.label.empty()) dimension.length = lengths_.at(dimension.name);
    add(std::move(item));
}

void RunWriter::add(Item item) {
    require_path(item.path, "dataset");
    require(!item.unit.empty() && !item.description.empty(),
            "dataset '{}' lacks a unit or a description; every dataset has both (unit \"1\" for plain numbers)",
            item.path);
    const auto same_place = [](const Dimension& a, const Dimension& b) { return a.label == b.label; };
    for (const auto& other : items_)
        require(other.path != item.path || !std::equal(other.dimensions.begin(), other.dimensions.end(),
                                                       item.dimensions.begin(), item.dimensions.end(), same_place),
                "the run has '{}' already", item.path);
    items_.push_back(std::move(item));
}

void RunWriter::timeline(const std::string& source, const std::string& pass, layouts::Timeline timeline) {
    for (const auto& other : spans_)
        require(other.source != source || other.pass != pass, "the run has a timeline '{}, {}' already", source, pass);
    spans_.push_back({source, pass, std::move(timeline)});
}

Record::Record(const fs::path& path, RecordMode mode, RecordHeader header, Provenance provenance)
    : target_(followed(path)),
      path_(target_),
      header_(std::move(header)),
      provenance_(std::move(provenance)),
      lock_(target_) {
    require_replaceable(target_);
    const auto unfinished = unfinished_of(target_);
    const bool exists = fs::exists(target_), has_unfinished = fs::exists(unfinished);
    require(mode != RecordMode::create || (!exists && !has_unfinished),
            "{} exists; use --resume to add what is missing, --overwrite to start anew, or write elsewhere",
            exists ? target_.string() : unfinished.string());
    if (mode == RecordMode::resume ? has_unfinished : exists) path_ = unfinished;
    if (mode == RecordMode::resume && (exists || has_unfinished))
        resume();
    else
        start();
    if (mode != RecordMode::resume && path_ == target_ && has_unfinished) fs::remove(unfinished);
}

void Record::finish() {
    if (path_ == target_) return;
    replace_by(target_, path_);
    path_ = target_;
}

Record::~Record() = default;

void Record::start() {
    file_.emplace(hdf5::File::create_in_memory(path_));
    file_->set("ringlab_schema", schema);
    file_->set("experiment", header_.experiment);
    file_->set("description", header_.description);
    file_->set("configuration", header_.configuration);
    file_->make_group("provenance");
    file_->make_group("runs");
    make_scale("run", std::vector<std::string>{}, "1", "name of the run");
    look_around();
    save();
}

void Record::resume() {
    try {
        load();
        require(file_->has("ringlab_schema"), "it is an HDF5 file, but not a record of Ringlab");
        const auto found = file_->number("ringlab_schema");
        require(found == static_cast<double>(schema), "it follows schema {}, this program {}", found, schema);
        require_same("experiment", header_.experiment);
        require_same("configuration", header_.configuration);
        file_->group("provenance");
        for (const auto& run : runs()) number(run, "session");
    } catch (const Error& error) {
        fail("cannot resume {}: {}; it is left as it is (--overwrite starts anew)", path_.string(), error.what());
    }
    std::error_code ignored;
    fs::remove(temporary_of(path_), ignored);  // of an invocation that was killed
}

void Record::load() {
    const auto bytes = read_file(path_);
    auto file = hdf5::File::open_image(path_, without_checksum(bytes));
    file_.reset();
    file_.emplace(std::move(file));
    if (file_->contains("run")) look_around();
}

void Record::look_around() {
    runs_ = file_->dataset("run").texts();
    stacked_.clear();
    find_stacked(*file_, "", stacked_);
}

void Record::save() const {
    auto bytes = file_->image();
    const auto checksum = checksum_of(bytes);
    bytes.insert(bytes.end(), checksum.begin(), checksum.end());
    replace_file(path_, bytes);
}

void Record::require_same(const std::string& attribute, const std::string& value) const {
    const auto difference = first_difference(file_->text(attribute), value);
    require(difference.empty(), "it was made with another {}: {}", attribute, difference);
}

bool Record::has(const std::string& run) const { return std::find(runs_.begin(), runs_.end(), run) != runs_.end(); }

bool Record::has(const std::string& run, const std::string& path) const {
    if (!has(run) || !file_->contains(path)) return false;
    if (file_->is_group(path) || file_->dataset(path).element() != hdf5::Element::fp64) return true;
    const auto values = numbers(run, path);
    return !std::all_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

void Record::add_session() {
    session_ = static_cast<std::int64_t>(file_->group("provenance").members().size());
    auto group = file_->make_group(fmt::format("provenance/{}", *session_));
    for (const auto& [name, value] : provenance_.entries()) group.set(name, value);
}

void Record::commit(const std::string& name, const RunWriter& run) {
    require_path(name, "run");
    require(name.find('/') == std::string::npos, "'{}' cannot name a run: it holds a '/'", name);
    require(!has(name), "{} holds a run '{}' already", path_.string(), name);
    const auto session_before = session_;
    const auto index = static_cast<std::int64_t>(runs_.size());
    try {
        if (!session_) add_session();
        append({"runs/name", std::vector<std::string>{name}, {}, "1", "name of the run"}, index);
        append({"runs/session", std::vector<std::int64_t>{*session_}, {}, "1", "group of /provenance it comes from"},
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
        save();
    } catch (const std::exception& error) {
        session_ = session_before;
        load();
        fail("run '{}' is not recorded: {}; {} holds the {} runs finished before it", name, error.what(),
             path_.string(), runs().size());
    }
    runs_.push_back(name);
}

/// Gives the dimension a scale 0, 1, 2 ... up to at least this length, unless it has coordinates of its own.
void Record::count_up(const std::string& dimension, std::int64_t length) {
    const bool is_new = !file_->contains(dimension);
    auto scale = is_new
                     ? make_scale(dimension, std::vector<std::int32_t>{}, "1", last_part(dimension) + " number, from 0")
                     : file_->dataset(dimension);
    const auto before = scale.shape().front();
    if (before >= length) return;
    require(scale.element() == hdf5::Element::integer, "dimension '{}' is longer than its coordinates", dimension);
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(length - before));
    std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(before));
    scale.grow(std::array{length});
    scale.write_block(std::array{before}, std::array{length - before}, numbers);
}

void Record::make_folder_of(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash != std::string::npos) file_->make_group(path.substr(0, slash));
}

hdf5::Dataset Record::make_scale(const std::string& dimension, const hdf5::Values& like, const std::string& unit,
                                 const std::string& description) {
    make_folder_of(dimension);
    auto scale = file_->make_growing(dimension, like, std::array{std::int64_t{0}}, std::array{rows_of_names});
    describe(scale, unit, description);
    scale.make_scale(dimension);
    return scale;
}

void Record::set_coordinates(const RunWriter::Item& given) {
    const auto count = static_cast<std::int64_t>(hdf5::size_of(given.values));
    if (!file_->contains(given.path)) {
        auto scale = make_scale(given.path, given.values, given.unit, given.description);
        scale.grow(std::array{count});
        scale.write_block(std::array{std::int64_t{0}}, std::array{count}, given.values);
        return;
    }
    const auto scale = file_->dataset(given.path);
    const bool same = std::visit(
        [&](const auto& values) {
            using T = typename std::decay_t<decltype(values)>::value_type;
            if (scale.shape().front() != count) return false;
            if constexpr (std::is_same_v<T, std::string>)
                return scale.element() == hdf5::Element::text && scale.texts() == values;
            else
                return scale.element() != hdf5::Element::text &&
                       scale.doubles() == std::vector<double>(values.begin(), values.end());
        },
        given.values);
    require(same, "dimension '{}' has other coordinates than in earlier runs", given.path);
}

/// The place of a label in a dimension of named things, which it is added to if need be.
std::int64_t Record::place_of(const std::string& dimension, const std::string& label) {
    auto scale = file_->contains(dimension)
                     ? file_->dataset(dimension)
                     : make_scale(dimension, std::vector<std::string>{}, "1", "name of the " + last_part(dimension));
    require(scale.element() == hdf5::Element::text, "dimension '{}' is of numbers, not of names", dimension);
    const auto labels = scale.texts();
    const auto found = std::find(labels.begin(), labels.end(), label);
    const auto place = static_cast<std::int64_t>(found - labels.begin());
    if (found == labels.end()) {
        scale.grow(std::array{place + 1});
        scale.write_block(std::array{place}, std::array{std::int64_t{1}}, std::vector<std::string>{label});
    }
    return place;
}

/// Writes one run's part of a dataset of all runs.
void Record::append(const RunWriter::Item& item, std::int64_t run) {
    std::vector<std::string> names{"run"};
    std::vector<std::int64_t> offset{run}, count{1};
    bool labelled = false;
    for (const auto& dimension : item.dimensions) {
        names.push_back(dimension.name);
        labelled = labelled || !dimension.label.empty();
        offset.push_back(dimension.label.empty() ? 0 : place_of(dimension.name, dimension.label));
        count.push_back(dimension.length);
    }
    std::vector<std::int64_t> end(count.size());
    for (std::size_t i = 0; i < end.size(); ++i) end[i] = offset[i] + count[i];

    const bool is_new = !file_->contains(item.path);
    if (is_new) {
        make_folder_of(item.path);
        auto made = file_->make_growing(item.path, item.values, end, chunk_of(count));
        describe(made, item.unit, item.description);
        made.attach_scale(file_->dataset("run"), 0);
        for (std::size_t i = 1; i < names.size(); ++i)
            made.attach_scale(file_->dataset(item.dimensions[i - 1].name), i);
        stacked_.push_back(item.path);
    }
    auto dataset = file_->dataset(item.path);
    require(is_new || (dataset.scales() == names && dataset.element() == element_of(item.values)),
            "dataset '{}' has another type or other dimensions ({}) than in earlier runs ({})", item.path,
            fmt::join(names, ", "), fmt::join(dataset.scales(), ", "));
    auto shape = dataset.shape();
    bool missing = labelled || (is_new && run > 0);
    for (std::size_t i = 0; i < shape.size(); ++i) {
        missing = missing || (i > 0 && shape[i] != end[i]);
        shape[i] = std::max(shape[i], end[i]);
    }
    dataset.grow(shape);
    dataset.write_block(offset, count, item.values);
    if (missing) dataset.tell_missing();
}

void Record::append(const RunWriter::Spans& item, std::int64_t run) {
    const auto& spans = item.timeline.spans;
    const auto count = static_cast<std::int64_t>(spans.size());
    const auto source = static_cast<std::int32_t>(place_of("source", item.source));
    const auto pass = static_cast<std::int32_t>(place_of("pass", item.pass));
    const auto first = file_->contains("spans/span") ? file_->dataset("spans/span").shape().front() : 0;
    const std::vector<Dimension> timeline{Dimension::at("source", item.source), Dimension::at("pass", item.pass)};
    append({"spans/first", std::vector<std::int64_t>{first}, timeline, "1", "first span of the timeline"}, run);
    append({"spans/count", std::vector<std::int64_t>{count}, timeline, "1", "spans of the timeline"}, run);
    count_up("spans/span", first + count);

    const auto column = [&](const char* name, auto element, auto field, const char* unit, const char* description,
                            const std::vector<std::string>& meanings = {}) {
        std::vector<decltype(element)> values;
        values.reserve(spans.size());
        for (const auto& one : spans) values.push_back(static_cast<decltype(element)>(field(one)));
        const auto path = std::string("spans/") + name;
        if (!file_->contains(path)) {
            auto made = file_->make_growing(path, values, std::array{std::int64_t{0}}, std::array{rows_of_spans});
            describe(made, unit, description);
            made.attach_scale(file_->dataset("spans/span"), 0);
            if (!meanings.empty()) {
                std::vector<std::int8_t> numbers(meanings.size());
                std::iota(numbers.begin(), numbers.end(), std::int8_t{0});
                made.set("flag_values", numbers);
                made.set("flag_meanings", fmt::format("{}", fmt::join(meanings, " ")));
            }
        }
        auto dataset = file_->dataset(path);
        dataset.grow(std::array{first + count});
        dataset.write_block(std::array{first}, std::array{count}, values);
    };
    using layouts::Span;
    using layouts::to_seconds;
    constexpr std::int8_t small = 0;
    constexpr std::int32_t number = 0;
    column(
        "run", number, [&](const Span&) { return run; }, "1", "place of the run in /run");
    column(
        "source", number, [&](const Span&) { return source; }, "1", "place of the source in /source");
    column(
        "pass", number, [&](const Span&) { return pass; }, "1", "place of the pass in /pass");
    column(
        "rank", number, [](const Span& s) { return s.rank; }, "1", "ring rank that ran the span");
    column(
        "op", number, [](const Span& s) { return s.op; }, "1", "index of the operation in the rank's schedule");
    column(
        "step", number, [](const Span& s) { return s.step; }, "1", "step of the algorithm");
    column(
        "kind", small, [](const Span& s) { return s.kind; }, "1", "kind of operation",
        names_up_to(layouts::OpKind::copy));
    column(
        "lane", small, [](const Span& s) { return s.lane; }, "1",
        "queue of the rank that the operation ran on: 0 computes, 1 + 2c sends on channel c, 2 + 2c receives");
    column(
        "pool", small, [](const Span& s) { return s.pool; }, "1", "what a transfer, merge, add or copy is about",
        names_up_to(layouts::Pool::dq));
    column(
        "peer", number, [](const Span& s) { return s.peer; }, "1",
        "ring rank at the other end of a transfer, -1 for compute");
    column(
        "block", number, [](const Span& s) { return s.block; }, "1",
        "tokens that the operation is about: the shard of that ring rank, or from the number of ranks on a block that "
        "the "
        "schedule has put together");
    column(
        "posted", double{}, [](const Span& s) { return to_seconds(s.posted); }, "s",
        "when the operation's own side was ready, on the common clock of all ranks, 0 when the pass starts");
    column(
        "begin", double{}, [](const Span& s) { return to_seconds(s.begin); }, "s",
        "when both sides of a message were ready, so that bytes could move; of others the same as posted");
    column(
        "end", double{}, [](const Span& s) { return to_seconds(s.end); }, "s", "end, on the same clock");
    column(
        "busy", double{}, [](const Span& s) { return to_seconds(s.busy); }, "s",
        "time that the operation's own processor worked on it");
    column(
        "cells", std::int64_t{}, [](const Span& s) { return s.cells; }, "1",
        "visible (query, key) pairs of one query head and batch element");
    column(
        "bytes", std::int64_t{}, [](const Span& s) { return s.bytes; }, "B", "size of the message or operand");
}

/// What a run has nothing of, it still has a place in.
void Record::extend_all(std::int64_t runs) {
    for (const auto& path : stacked_) {
        auto dataset = file_->dataset(path);
        auto shape = dataset.shape();
        if (shape.front() == runs) continue;
        shape.front() = runs;
        dataset.grow(shape);
        dataset.tell_missing();
    }
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
