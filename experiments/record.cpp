#include "experiments/record.hpp"

#include "layouts/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

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

}  // namespace

void RunWriter::attribute_at(const std::string& group, const std::string& name, hdf5::Attribute value) {
    require_path(name, "attribute");
    for (const auto& other : attributes_)
        require(other.group != group || other.name != name, "the run has an attribute '{}' already", name);
    attributes_.push_back({group, name, std::move(value)});
}

std::int64_t& RunWriter::length_of(const std::string& dimension) {
    require_path(dimension, "dimension");
    return lengths_.try_emplace(dimension, Dimension::unknown).first->second;
}

void RunWriter::dimension(const std::string& name, hdf5::Values coordinates, const std::string& unit,
                          const std::string& description) {
    auto& length = length_of(name);
    const auto count = static_cast<std::int64_t>(hdf5::size_of(coordinates));
    require(length == Dimension::unknown || length == count, "dimension '{}' has length {}, its coordinates {}", name,
            length, count);
    for (const auto& other : coordinates_)
        require(other.path != name, "dimension '{}' was given coordinates twice", name);
    length = count;
    coordinates_.push_back({name, std::move(coordinates), {}, {count}, unit, description, {}});
}

void RunWriter::dataset(const std::string& path, hdf5::Values values, const std::vector<Dimension>& dimensions,
                        const std::string& unit, const std::string& description) {
    Item item{path, std::move(values), {}, {}, unit, description, {}};
    const auto count = static_cast<std::int64_t>(hdf5::size_of(item.values));
    std::int64_t known = 1;
    std::vector<std::int64_t*> open;
    for (const auto& dimension : dimensions) {
        auto& length = length_of(dimension.name);
        require(length == Dimension::unknown || dimension.length == Dimension::unknown || length == dimension.length,
                "dimension '{}' of dataset '{}' has length {} elsewhere in the run, here {}", dimension.name, path,
                length, dimension.length);
        if (dimension.length != Dimension::unknown) length = dimension.length;
        if (length == Dimension::unknown)
            open.push_back(&length);
        else
            known *= length;
        item.dimensions.push_back(dimension.name);
    }
    require(open.size() <= 1, "dataset '{}' has {} dimensions of unknown length; at most one follows from its values",
            path, open.size());
    if (open.size() == 1) {
        require(known > 0 && count % known == 0, "dataset '{}' has {} values; that is no multiple of {}", path, count,
                known);
        *open.front() = count / known;
        known = count;
    }
    require(known == count, "dataset '{}' has {} values; its dimensions ({}) ask for {}", path, count,
            fmt::join(item.dimensions, ", "), known);
    for (const auto& dimension : item.dimensions) item.shape.push_back(lengths_.at(dimension));
    add(std::move(item));
}

void RunWriter::add(Item item) {
    require_path(item.path, "dataset");
    require(!item.unit.empty() && !item.description.empty(),
            "dataset '{}' lacks a unit or a description; every dataset has both (unit \"1\" for plain numbers)",
            item.path);
    for (const auto& other : items_) require(other.path != item.path, "the run has a dataset '{}' already", item.path);
    items_.push_back(std::move(item));
}

void RunWriter::timeline(const std::string& path, const layouts::Timeline& timeline) {
    const auto& spans = timeline.spans;
    const auto span = path + "/span";
    const auto column = [&](const char* name, auto values, const char* unit, const char* description,
                            std::vector<std::string> meanings = {}) {
        length_of(span) = static_cast<std::int64_t>(spans.size());
        add({path + "/" + name, std::move(values), {span}, {length_of(span)}, unit, description, std::move(meanings)});
    };
    const auto numbers = [&](auto element, auto field) {
        std::vector<decltype(element)> values;
        values.reserve(spans.size());
        for (const auto& one : spans) values.push_back(static_cast<decltype(element)>(field(one)));
        return values;
    };
    using layouts::Span;
    using layouts::to_seconds;
    attribute_at(path, "ranks", std::int64_t{timeline.ranks});
    column("rank", numbers(std::int32_t{}, [](const Span& s) { return s.rank; }), "1", "ring rank that ran the span");
    column("op", numbers(std::int32_t{}, [](const Span& s) { return s.op; }), "1",
           "index of the operation in the rank's schedule");
    column("step", numbers(std::int32_t{}, [](const Span& s) { return s.step; }), "1", "step of the algorithm");
    column("kind", numbers(std::int8_t{}, [](const Span& s) { return s.kind; }), "1", "kind of operation",
           names_up_to(layouts::OpKind::fetch));
    column("lane", numbers(std::int8_t{}, [](const Span& s) { return s.lane; }), "1",
           "queue of the rank that the operation ran on", names_up_to(layouts::Lane::receive_dkv));
    column("peer", numbers(std::int32_t{}, [](const Span& s) { return s.peer; }), "1",
           "ring rank at the other end of a transfer, -1 for compute");
    column("owner", numbers(std::int32_t{}, [](const Span& s) { return s.owner; }), "1",
           "ring rank whose K/V block, or gradient of it, the operation is about");
    column("begin", numbers(double{}, [](const Span& s) { return to_seconds(s.begin); }), "s",
           "start, on the common clock of all ranks, 0 when the pass starts");
    column("end", numbers(double{}, [](const Span& s) { return to_seconds(s.end); }), "s", "end, on the same clock");
    column("busy", numbers(double{}, [](const Span& s) { return to_seconds(s.busy); }), "s",
           "time that the operation's own processor worked on it");
    column("cells", numbers(std::int64_t{}, [](const Span& s) { return s.cells; }), "1",
           "visible (query, key) pairs of one query head and batch element");
    column("bytes", numbers(std::int64_t{}, [](const Span& s) { return s.bytes; }), "B",
           "size of the message or operand");
}

void RunWriter::write(hdf5::Group& run) const {
    const auto describe = [](hdf5::Dataset& dataset, const Item& item) {
        dataset.set("units", item.unit);
        dataset.set("description", item.description);
        if (item.meanings.empty()) return;
        std::vector<std::int8_t> numbers(item.meanings.size());
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int8_t>(i);
        dataset.set("flag_values", numbers);
        dataset.set("flag_meanings", fmt::format("{}", fmt::join(item.meanings, " ")));
    };

    std::map<std::string, hdf5::Dataset> scales;
    for (const auto& [name, length] : lengths_) {
        const auto given =
            std::find_if(coordinates_.begin(), coordinates_.end(), [&](const Item& item) { return item.path == name; });
        Item item;
        if (given != coordinates_.end()) {
            item = *given;
        } else {
            std::vector<std::int32_t> index(static_cast<std::size_t>(length));
            for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i);
            const auto last = name.substr(name.rfind('/') + 1);
            item = {name, std::move(index), {}, {length}, "1", last + " number, from 0", {}};
        }
        auto scale = run.make_dataset(name, item.values, item.shape);
        describe(scale, item);
        scale.make_scale(name.substr(name.rfind('/') + 1));
        scales.emplace(name, std::move(scale));
    }
    for (const auto& item : items_) {
        auto dataset = run.make_dataset(item.path, item.values, item.shape);
        describe(dataset, item);
        for (std::size_t i = 0; i < item.dimensions.size(); ++i) dataset.attach_scale(scales.at(item.dimensions[i]), i);
    }
    for (const auto& [group, name, value] : attributes_) {
        if (group.empty())
            run.set(name, value);
        else
            run.make_group(group).set(name, value);
    }
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

std::vector<std::string> Record::runs() const { return file_->group("runs").members(); }

bool Record::has(const std::string& run) const { return file_->group("runs").contains(run); }

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
    try {
        if (!session_) add_session();
        auto group = file_->make_group("runs/" + name);
        group.set("session", *session_);
        run.write(group);
        save();
    } catch (const std::exception& error) {
        session_ = session_before;
        load();
        fail("run '{}' is not recorded: {}; {} holds the {} runs finished before it", name, error.what(),
             path_.string(), runs().size());
    }
}

bool Record::has(const std::string& run, const std::string& dataset) const {
    return has(run) && file_->group("runs/" + run).contains(dataset);
}

std::vector<double> Record::numbers(const std::string& run, const std::string& dataset) const {
    return file_->group("runs/" + run).dataset(dataset).doubles();
}

std::string Record::text(const std::string& run, const std::string& attribute) const {
    return file_->group("runs/" + run).text(attribute);
}

double Record::number(const std::string& run, const std::string& attribute) const {
    return file_->group("runs/" + run).number(attribute);
}

}  // namespace ringlab::experiments
