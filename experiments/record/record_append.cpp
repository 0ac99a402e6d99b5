#include "experiments/files/files_read.hpp"
#include "experiments/record/record.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

// How a run is added to datasets of all runs.

namespace ringlab::experiments {
namespace {

using layouts::Span;

/// The names of an enumeration's values 0, 1, ... `last`, as single words with blanks between them.
template <class Enumeration>
std::string names_up_to(Enumeration last) {
    std::string names;
    for (int value = 0; value <= static_cast<int>(last); ++value) {
        std::string name(layouts::to_string(static_cast<Enumeration>(value)));
        std::ranges::replace(name, ' ', '_');
        names += (value > 0 ? " " : "") + name;
    }
    return names;
}

/// Where a timeline belongs: places in the dimensions of their names.
struct Places {
    std::int64_t run, source, pass;
};

/// Rows of the flat table of all spans.
std::vector<Column> rows_of(const std::vector<Span>& spans, const Places& places) {
    std::vector<Column> columns;
    const auto add = [&]<class T>(T, const char* name, const char* unit, const char* description, auto field,
                                  const std::string& meanings = "") {
        std::vector<T> values;
        for (const auto& span : spans) values.push_back(static_cast<T>(std::invoke(field, span)));
        columns.push_back({std::string("spans/") + name,
                           unit,
                           description,
                           meanings,
                           {"spans/span"},
                           values,
                           {static_cast<std::int64_t>(spans.size())}});
    };
    const auto all = [](auto value) { return [value](const Span&) { return value; }; };
    const auto seconds = [](auto time) { return [time](const Span& span) { return layouts::to_seconds(span.*time); }; };
    constexpr std::int8_t small = 0;
    constexpr std::int32_t whole = 0;
    constexpr std::int64_t large = 0;
    constexpr double real = 0;
    add(whole, "run", "1", "place of the run in /run", all(places.run));
    add(whole, "source", "1", "place of the source in /source", all(places.source));
    add(whole, "pass", "1", "place of the pass in /pass", all(places.pass));
    add(whole, "rank", "1", "ring rank that ran the span", &Span::rank);
    add(whole, "op", "1", "index of the operation in the rank's schedule", &Span::op);
    add(whole, "step", "1", "step of the schedule", &Span::step);
    add(small, "kind", "1", "kind of operation", &Span::kind, names_up_to(layouts::OpKind::compress));
    add(small, "lane", "1",
        "queue of the rank that the operation ran on: 0 computes, 1 + 2c sends on channel c, 2 + 2c receives",
        &Span::lane);
    add(small, "pool", "1", "what it is about, unless it is an attend", &Span::pool,
        names_up_to(layouts::Pool::dlatent));
    add(whole, "peer", "1", "ring rank at the other end of a transfer, -1 for compute", &Span::peer);
    add(whole, "block", "1",
        "tokens that the operation is about: the shard of that ring rank, or from the number of ranks on a block that "
        "the schedule has put together",
        &Span::block);
    add(real, "posted", "s",
        "when the operation's own side was ready, on the common clock of all ranks, 0 when the pass starts",
        seconds(&Span::posted));
    add(real, "begin", "s",
        "when both sides of a message were ready, so that bytes could move; of others the same as posted",
        seconds(&Span::begin));
    add(real, "end", "s", "end, on the same clock", seconds(&Span::end));
    add(real, "busy", "s", "time that the operation's own processor worked on it", seconds(&Span::busy));
    add(large, "pairs", "1",
        "visible (query, key) pairs of one query head and batch element; an attend of some heads has a share of them, "
        "so that those of a pass sum to what the mask shows",
        &Span::pair_count);
    add(large, "bytes", "B", "size of the message or operand", &Span::bytes);
    return columns;
}

hdf5::Values none_like(const hdf5::Values& values) {
    return std::visit([](const auto& all) -> hdf5::Values { return std::decay_t<decltype(all)>(); }, values);
}

bool are_of_one_kind(const Column& a, const Column& b) {
    return a.is_text() == b.is_text() && a.is_floating() == b.is_floating();
}

}  // namespace

void Record::commit(const std::string& name, const RunWriter& run) {
    require_path(name, "run");
    require(name.find('/') == std::string::npos, "'{}' cannot name a run: it holds a '/'", name);
    require(!has(name), "{} holds a run '{}' already", this->name(), name);
    const auto files_before = files_of_session_;
    const auto index = static_cast<std::int64_t>(runs_.size());
    const auto append_number = [&](const std::string& path, std::int64_t value, const std::string& description) {
        append({path, std::vector{value}, {}, "1", description}, index);
    };
    try {
        if (files_of_session_ != count_read()) add_session();  // the first, or a file was read after an earlier run
        append({"runs/name", std::vector{name}, {}, "1", "name of the run"}, index);
        append_number("runs/session", std::ssize(sessions_) - 1, "group of /provenance it comes from");
        for (const auto& coordinates : run.coordinates_) set_coordinates(coordinates);
        for (const auto& [dimension, length] : run.lengths_) {
            count_up(dimension, length);
            append_number("lengths/" + dimension, length, "how many of " + last_part(dimension) + " it has");
        }
        for (const auto& item : run.items_) append(item, index);
        for (const auto& spans : run.spans_) append(spans, index);
        for (auto& column : columns_) {  // what a run has nothing of, it still has a place in
            if (!column.is_of_runs()) continue;
            auto shape = column.shape;
            shape.front() = index + 1;
            column.grow(shape);
        }
        place_of("run", name);
        place_.write(image(false));
        is_packed_ = false;
    } catch (const std::exception& error) {
        files_of_session_ = files_before;
        if (place_.is_untouched() && index > 0) load();
        if (index == 0) start();
        fail("run '{}' is not recorded: {}; {} holds the {} runs finished before it", name, error.what(), this->name(),
             runs().size());
    }
    runs_.push_back(name);
}

/// The scale of a dimension, which is made if need be.
Column& Record::scale(const std::string& dimension, const hdf5::Values& empty, const std::string& description) {
    const auto found = std::ranges::find(columns_, dimension, &Column::path);
    if (found != columns_.end()) return *found;
    return columns_.emplace_back(Column{dimension, "1", description, {}, {}, empty, {0}});
}

/// Gives the dimension a scale 0, 1, 2 ... up to at least this length, unless it has coordinates of its own.
void Record::count_up(const std::string& dimension, std::int64_t length) {
    auto& scale = this->scale(dimension, std::vector<std::int32_t>(), last_part(dimension) + " number, from 0");
    const auto before = scale.shape.front();
    if (before >= length) return;
    require(!scale.is_text() && !scale.is_floating(), "dimension '{}' is longer than its coordinates", dimension);
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(length - before));
    std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(before));
    scale.put(std::array{before}, Column{{}, {}, {}, {}, {}, numbers, {length - before}});
}

void Record::set_coordinates(const RunWriter::Item& given) {
    const auto count = static_cast<std::int64_t>(hdf5::size_of(given.values));
    if (const auto* scale = find(given.path))
        require(scale->values == given.values, "dimension '{}' has other coordinates than in earlier runs", given.path);
    else
        columns_.push_back({given.path, given.unit, given.description, {}, {}, given.values, {count}});
}

/// The place of a label in a dimension of named things, which it is added to if need be.
std::int64_t Record::place_of(const std::string& dimension, const std::string& label) {
    auto& scale = this->scale(dimension, std::vector<std::string>(), "name of the " + last_part(dimension));
    require(scale.is_text(), "dimension '{}' is of numbers, not of names", dimension);
    const auto& labels = std::get<std::vector<std::string>>(scale.values);
    const auto place = std::ranges::find(labels, label) - labels.begin();
    if (place == std::ssize(labels)) scale.put(std::array{place}, Column{{}, {}, {}, {}, {}, std::vector{label}, {1}});
    return place;
}

/// Writes a part of a dataset, which is made if need be, from `offset` on.
void Record::append(const Column& part, hdf5::Extents offset) {
    auto found = std::ranges::find(columns_, part.path, &Column::path);
    if (found == columns_.end()) {
        found = columns_.insert(found, part);
        found->values = none_like(part.values);
        found->shape.assign(part.shape.size(), 0);
    }
    require(found->dimensions == part.dimensions && are_of_one_kind(*found, part),
            "dataset '{}' has another type or other dimensions ({}) than in earlier runs ({})", part.path,
            fmt::join(part.dimensions, ", "), fmt::join(found->dimensions, ", "));
    require(found->meanings == part.meanings, "enumeration '{}' has other meanings than in earlier runs", part.path);
    found->put(offset, part);
}

/// Writes one run's part of a dataset of all runs.
void Record::append(const RunWriter::Item& item, std::int64_t run) {
    Column part{item.path,   item.unit, item.description, fmt::format("{}", fmt::join(item.meanings, " ")), {"run"},
                item.values, {1}};
    std::vector<std::int64_t> offset{run};
    for (const auto& dimension : item.dimensions) {
        part.dimensions.push_back(dimension.name);
        part.shape.push_back(dimension.length);
        offset.push_back(dimension.label.empty() ? 0 : place_of(dimension.name, dimension.label));
    }
    append(part, offset);
}

void Record::append(const RunWriter::Spans& item, std::int64_t run) {
    const auto& spans = item.timeline.spans;
    const auto count = static_cast<std::int64_t>(spans.size());
    const Places places{run, place_of("source", item.source), place_of("pass", item.pass)};
    const auto first = find("spans/span") ? column("spans/span").shape.front() : 0;
    const std::vector<Dimension> timeline{Dimension::at("source", item.source), Dimension::at("pass", item.pass)};
    append({"spans/first", std::vector{first}, timeline, "1", "first span of the timeline"}, run);
    append({"spans/count", std::vector{count}, timeline, "1", "spans of the timeline"}, run);
    count_up("spans/span", first + count);
    for (const auto& part : rows_of(spans, places)) append(part, std::array{first});
}

}  // namespace ringlab::experiments
