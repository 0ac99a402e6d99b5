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

hdf5::Element element_of(const hdf5::Values& values) {
    if (std::holds_alternative<std::vector<double>>(values)) return hdf5::Element::fp64;
    if (std::holds_alternative<std::vector<float>>(values)) return hdf5::Element::fp32;
    return std::holds_alternative<std::vector<std::string>>(values) ? hdf5::Element::text : hdf5::Element::integer;
}

/// The names of an enumeration's values 0, 1, ... `last`, as single words.
template <class Enumeration>
std::vector<std::string> names_up_to(Enumeration last) {
    std::vector<std::string> names;
    for (int value = 0; value <= static_cast<int>(last); ++value) {
        auto& name = names.emplace_back(layouts::to_string(static_cast<Enumeration>(value)));
        std::ranges::replace(name, ' ', '_');
    }
    return names;
}

/// Adds rows for the spans of one timeline to the flat table of all spans.
class SpanTable {
public:
    SpanTable(hdf5::File& file, const std::vector<Span>& spans, std::int64_t first)
        : file_(file), spans_(spans), first_(first), count_(static_cast<std::int64_t>(spans.size())) {}

    /// Where they belong: places in the dimensions of their names.
    struct Places {
        std::int32_t run, source, pass;
    };

    void write(const Places& places) {
        using Number = std::int32_t;
        using Small = std::int8_t;
        const auto all = [](auto value) { return [value](const Span&) { return value; }; };
        column<Number>("run", "1", "place of the run in /run", all(places.run));
        column<Number>("source", "1", "place of the source in /source", all(places.source));
        column<Number>("pass", "1", "place of the pass in /pass", all(places.pass));
        column<Number>("rank", "1", "ring rank that ran the span", &Span::rank);
        column<Number>("op", "1", "index of the operation in the rank's schedule", &Span::op);
        column<Number>("step", "1", "step of the algorithm", &Span::step);
        column<Small>("kind", "1", "kind of operation", &Span::kind, names_up_to(layouts::OpKind::compress));
        column<Small>("lane", "1",
                      "queue of the rank that the operation ran on: 0 computes, 1 + 2c sends on channel c, 2 + 2c "
                      "receives",
                      &Span::lane);
        column<Small>("pool", "1", "what it is about, unless it is an attend", &Span::pool,
                      names_up_to(layouts::Pool::dlatent));
        column<Number>("peer", "1", "ring rank at the other end of a transfer, -1 for compute", &Span::peer);
        column<Number>("block", "1",
                       "tokens that the operation is about: the shard of that ring rank, or from the number of ranks "
                       "on a block that the schedule has put together",
                       &Span::block);
        write_times();
        column<std::int64_t>("cells", "1",
                             "visible (query, key) pairs of one query head and batch element; an attend of some heads "
                             "has a share of them, so that those of a pass sum to what the mask shows",
                             &Span::pair_count);
        column<std::int64_t>("bytes", "B", "size of the message or operand", &Span::bytes);
    }

private:
    void write_times() {
        const auto seconds = [](auto time) {
            return [time](const Span& span) { return layouts::to_seconds(span.*time); };
        };
        column<double>("posted", "s",
                       "when the operation's own side was ready, on the common clock of all ranks, 0 when the pass "
                       "starts",
                       seconds(&Span::posted));
        column<double>("begin", "s",
                       "when both sides of a message were ready, so that bytes could move; of others the same as "
                       "posted",
                       seconds(&Span::begin));
        column<double>("end", "s", "end, on the same clock", seconds(&Span::end));
        column<double>("busy", "s", "time that the operation's own processor worked on it", seconds(&Span::busy));
    }

    /// `field` of every span; `meanings` of the numbers 0, 1, ... if they stand for names.
    template <class T, class Field>
    void column(const std::string& name, const char* unit, const char* description, Field field,
                const std::vector<std::string>& meanings = {}) {
        constexpr std::int64_t rows = 1 << 14;  // of a chunk
        std::vector<T> values;
        values.reserve(spans_.size());
        for (const auto& one : spans_) values.push_back(static_cast<T>(std::invoke(field, one)));
        const auto path = "spans/" + name;
        if (!file_.contains(path)) {
            auto made = file_.make_growing(path, values, std::array{rows});
            describe(made, unit, description, fmt::format("{}", fmt::join(meanings, " ")));
            made.attach_scale(file_.dataset("spans/span"), 0);
        }
        auto dataset = file_.dataset(path);
        dataset.grow(std::array{first_ + count_});
        dataset.write_block(std::array{first_}, std::array{count_}, values);
    }

    hdf5::File& file_;
    const std::vector<Span>& spans_;
    const std::int64_t first_, count_;
};

}  // namespace

void describe(hdf5::Dataset& dataset, const std::string& unit, const std::string& description,
              const std::string& meanings) {
    dataset.set("units", unit);
    dataset.set("description", description);
    if (meanings.empty()) return;
    std::vector<std::int8_t> places(static_cast<std::size_t>(std::ranges::count(meanings, ' ')) + 1);
    std::iota(places.begin(), places.end(), std::int8_t{0});
    dataset.set("flag_values", places);
    dataset.set("flag_meanings", meanings);
}

/// Gives the dimension a scale 0, 1, 2 ... up to at least this length, unless it has coordinates of its own.
void Record::count_up(const std::string& dimension, std::int64_t length) {
    auto scale = file_->contains(dimension) ? file_->dataset(dimension)
                                            : make_scale(dimension, std::vector<std::int32_t>{}, "1",
                                                         last_part(dimension) + " number, from 0");
    const auto before = scale.shape().front();
    if (before >= length) return;
    require(scale.element() == hdf5::Element::integer, "dimension '{}' is longer than its coordinates", dimension);
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(length - before));
    std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(before));
    scale.grow(std::array{length});
    scale.write_block(std::array{before}, std::array{length - before}, numbers);
}

hdf5::Dataset Record::make_scale(const std::string& dimension, const hdf5::Values& like, const std::string& unit,
                                 const std::string& description) {
    constexpr std::int64_t rows = 64;  // of a chunk
    auto scale = file_->make_growing(dimension, like, std::array{rows});
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
    const auto place = std::ranges::find(labels, label) - labels.begin();
    if (place == std::ssize(labels)) {
        scale.grow(std::array{place + 1});
        scale.write_block(std::array{place}, std::array{std::int64_t{1}}, std::vector<std::string>{label});
    }
    return place;
}

/// A new dataset of all runs.
hdf5::Dataset Record::make_stacked(const RunWriter::Item& like, const std::vector<std::int64_t>& of_one_run) {
    auto made = file_->make_growing(like.path, like.values, of_one_run);
    describe(made, like.unit, like.description, fmt::format("{}", fmt::join(like.meanings, " ")));
    made.attach_scale(file_->dataset("run"), 0);
    for (std::size_t i = 0; i < like.dimensions.size(); ++i)
        made.attach_scale(file_->dataset(like.dimensions[i].name), i + 1);
    stacked_.push_back(like.path);
    return made;
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
    const bool is_new = !file_->contains(item.path);
    auto dataset = is_new ? make_stacked(item, count) : file_->dataset(item.path);
    require(is_new || (dataset.scales() == names && dataset.element() == element_of(item.values)),
            "dataset '{}' has another type or other dimensions ({}) than in earlier runs ({})", item.path,
            fmt::join(names, ", "), fmt::join(dataset.scales(), ", "));
    if (!is_new && !item.meanings.empty())
        require(dataset.text("flag_meanings") == fmt::format("{}", fmt::join(item.meanings, " ")),
                "enumeration '{}' has other meanings than in earlier runs", item.path);
    auto shape = dataset.shape();
    bool missing = labelled || (is_new && run > 0) || !item.meanings.empty();
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const auto end = offset[i] + count[i];
        missing = missing || (!is_new && i > 0 && shape[i] != end);
        shape[i] = std::max(shape[i], end);
    }
    dataset.grow(shape);
    dataset.write_block(offset, count, item.values);
    if (missing) dataset.tell_missing();
}

void Record::append(const RunWriter::Spans& item, std::int64_t run) {
    const auto& spans = item.timeline.spans;
    const auto count = static_cast<std::int64_t>(spans.size());
    const SpanTable::Places places{static_cast<std::int32_t>(run),
                                   static_cast<std::int32_t>(place_of("source", item.source)),
                                   static_cast<std::int32_t>(place_of("pass", item.pass))};
    const auto first = file_->contains("spans/span") ? file_->dataset("spans/span").shape().front() : 0;
    const std::vector<Dimension> timeline{Dimension::at("source", item.source), Dimension::at("pass", item.pass)};
    append({"spans/first", std::vector<std::int64_t>{first}, timeline, "1", "first span of the timeline"}, run);
    append({"spans/count", std::vector<std::int64_t>{count}, timeline, "1", "spans of the timeline"}, run);
    count_up("spans/span", first + count);
    SpanTable(*file_, spans, first).write(places);
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

}  // namespace ringlab::experiments
