#include "experiments/record/record.hpp"
#include "experiments/record/record_paths.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace ringlab::experiments {
namespace {

using layouts::Span;
using layouts::to_seconds;

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

/// Where the spans of a timeline belong: places in the dimensions of their names.
struct Places {
    std::int32_t run, source, pass;
};

/// Adds rows for the spans of one timeline to the flat table of all spans.
class SpanTable {
public:
    SpanTable(hdf5::File& file, const std::vector<Span>& spans, std::int64_t first)
        : file_(file), spans_(spans), first_(first), count_(static_cast<std::int64_t>(spans.size())) {}

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
        const auto seconds = [](auto time) { return [time](const Span& span) { return to_seconds(span.*time); }; };
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
    template <class Element, class Field>
    void column(const std::string& name, const char* unit, const char* description, Field field,
                const std::vector<std::string>& meanings = {}) {
        std::vector<Element> values;
        values.reserve(spans_.size());
        for (const auto& one : spans_) values.push_back(static_cast<Element>(std::invoke(field, one)));
        const auto path = "spans/" + name;
        if (!file_.contains(path)) make_column(path, values, unit, description, meanings);
        auto dataset = file_.dataset(path);
        dataset.grow(std::array{first_ + count_});
        dataset.write_block(std::array{first_}, std::array{count_}, values);
    }

    void make_column(const std::string& path, const hdf5::Values& like, const char* unit, const char* description,
                     const std::vector<std::string>& meanings) {
        constexpr std::int64_t rows = 1 << 14;  // of a chunk
        auto made = file_.make_growing(path, like, std::array{std::int64_t{0}}, std::array{rows});
        describe(made, unit, description);
        made.attach_scale(file_.dataset("spans/span"), 0);
        if (!meanings.empty()) tell_meanings(made, meanings);
    }

    hdf5::File& file_;
    const std::vector<Span>& spans_;
    const std::int64_t first_, count_;
};

}  // namespace

void Record::append(const RunWriter::Spans& item, std::int64_t run) {
    const auto& spans = item.timeline.spans;
    const auto count = static_cast<std::int64_t>(spans.size());
    const Places places{static_cast<std::int32_t>(run), static_cast<std::int32_t>(place_of("source", item.source)),
                        static_cast<std::int32_t>(place_of("pass", item.pass))};
    const auto first = file_->contains("spans/span") ? file_->dataset("spans/span").shape().front() : 0;
    const std::vector<Dimension> timeline{Dimension::at("source", item.source), Dimension::at("pass", item.pass)};
    append({"spans/first", std::vector<std::int64_t>{first}, timeline, "1", "first span of the timeline"}, run);
    append({"spans/count", std::vector<std::int64_t>{count}, timeline, "1", "spans of the timeline"}, run);
    count_up("spans/span", first + count);
    SpanTable(*file_, spans, first).write(places);
}

}  // namespace ringlab::experiments
