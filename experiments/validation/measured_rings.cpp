#include "experiments/validation/measured_rings.hpp"

#include "experiments/console/progress.hpp"
#include "experiments/files/files_read.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/source.hpp"
#include "experiments/record/record.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

/// The place of a name in a dimension of names.
std::size_t place_of(const hdf5::File& file, const std::string& dimension, const std::string& name) {
    const auto names = file.dataset(dimension).texts();
    const auto found = std::find(names.begin(), names.end(), name);
    require(found != names.end(), "the record has no {} '{}'", dimension, name);
    return index(found - names.begin());
}

const std::string folder = "results",
                  own_record = "scores";  // own_record is an output and holds no measurement

/// Names of records, and why they are not scored; "RECORD SCHEDULE" for its rings of a schedule, "RECORD SCHEDULE below
/// TOKENS" for those with fewer tokens per rank.
std::map<std::string, std::string> not_scored() {
    const auto file = find_resource("not_scored", folder, ".toml");
    std::map<std::string, std::string> reasons;
    try {
        const auto list = toml::parse_file(file);
        const auto* records = list["not_scored"].as_table();
        require(records != nullptr, "{}: it has no table [not_scored]", file);
        for (const auto& [name, reason] : *records) {
            const auto text = reason.value<std::string>();
            require(text && !text->empty(), "{}: {} has no reason, a text", file, std::string(name.str()));
            reasons.emplace(name.str(), *text);
        }
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
    return reasons;
}

struct Rings {
    std::set<std::string> transports, schedules;
    std::size_t hot = 0;  ///< of hot_runs()
};

/// What the rings of a record have; nothing where it holds none.
Rings rings_of(const std::string& path) {
    note_read(path);
    const auto file = hdf5::File::open(path);
    const auto experiment = file.has("experiment") ? file.text("experiment") : "";
    if (experiment != "validate" && experiment != "throughput") return {};
    for (const auto* column : {"runs/kind", "runs/transport"})
        if (!file.contains(column)) return {};
    const auto kinds = file.dataset("runs/kind").texts(), transports = file.dataset("runs/transport").texts(),
               schedules = file.dataset("runs/schedule").texts();
    const auto hot = hot_runs(file);
    Rings found;
    for (std::size_t run = 0; run < kinds.size(); ++run) {
        if (kinds[run] != "ring") continue;
        found.transports.insert(transports[run]);
        found.schedules.insert(schedules[run]);
        found.hot += hot[run];
    }
    return found;
}

/// Moves what `reasons` has for a schedule of the record into the record.
void take_changes(std::map<std::string, std::string>& reasons, ScoredRecord& record, const std::string& schedule) {
    const auto of_schedule = record.name + " " + schedule, below = of_schedule + " below ";
    if (const auto whole = reasons.extract(of_schedule)) record.left_out.changed[schedule] = {whole.mapped()};
    const auto next = reasons.lower_bound(below);
    if (next == reasons.end() || !next->first.starts_with(below)) return;
    const auto tokens = next->first.substr(below.size());
    record.left_out.changed[schedule] = {next->second, layouts::parse_count(tokens, next->first, 1)};
    reasons.erase(next);
}

std::string machine_of(const std::string& record, const std::string& transport) {
    require(transport != "mixed",
            "results/{}.h5 holds rings over {}, which no machine file describes: list the record in "
            "results/not_scored.toml",
            record, transport);
    const auto begin = record.find('_') + 1, end = record.find('_', begin);
    const auto name = record.substr(begin, end == std::string::npos ? end : end - begin) + "_calibrated" +
                      (transport == "nccl" ? "_nccl" : "");
    const auto known = resources("machines", ".toml");
    require(std::find(known.begin(), known.end(), name) != known.end(),
            "results/{}.h5 holds rings over {}, but there is no machine file {}.toml to score them on: calibrate one, "
            "or list the record in results/not_scored.toml with the reason",
            record, transport, name);
    return name;
}

/// Reads the rings of a record.
class RecordReader {
public:
    explicit RecordReader(const std::string& path) : path_(path), file_(open_record(path)) {
        const auto experiment = file_.has("experiment") ? file_.text("experiment") : "";
        require(experiment == "validate" || experiment == "throughput",
                "--measured {}: it is no record of validate or throughput", path);
        require(file_.contains("runs/name") && !texts("name").empty(), "--measured {}: the record has no finished run",
                path);
        require(file_.contains("spans/pool"),
                "--measured {}: it was recorded before spans said what they move, and cannot be predicted again", path);
        hot_ = hot_runs(file_);
    }

    std::vector<MeasuredRing> rings(const LeftOut& left_out) const {
        const auto masks = texts("mask"), layouts = texts("layout"), schedules = texts("schedule"),
                   shapes = texts("shape"), transports = texts("transport"), kernels = texts("kernels"),
                   kinds = texts("kind");
        std::vector<MeasuredRing> rings;
        for (std::size_t run = 0; run < kinds.size(); ++run) {
            const auto ranks = whole("runs/ranks", run), tokens = whole("runs/tokens", run);
            const auto changed = left_out.changed.find(schedules[run]);
            const bool has_changed = changed != left_out.changed.end() && changed->second.concerns(tokens, ranks);
            if (kinds[run] != "ring" || has_changed || (left_out.hot && hot_[run])) continue;
            auto& ring = rings.emplace_back();
            ring.timed = {.shape = shapes[run],
                          .transport = transports[run],
                          .kernels = kernels[run],
                          .gpus = static_cast<int>(whole("runs/gpus", run))};
            ring.timed.setup.mask = masks[run];
            ring.timed.setup.layout = layouts[run];
            ring.timed.setup.schedule = schedules[run];
            ring.timed.setup.ranks = static_cast<int>(ranks);
            ring.timed.setup.tokens = tokens;
            for (const auto pass : both_passes)
                (pass == Pass::forward ? ring.run.forward : ring.run.backward) = pass_of(pass, run, ring.timed);
            ring.is_hot = hot_[run];
            for (const auto& column : file_.group("runs").members())
                if (column.starts_with("error_forward_") || column.starts_with("error_backward_"))
                    ring.kept_errors[column.substr(column.find('_') + 1)] = number("runs/" + column, run);
        }
        return rings;
    }

private:
    PassRun pass_of(Pass pass, std::size_t run, const ThroughputCase& timed) const {
        const std::string name = to_string(pass);
        return {{timeline_of(pass, run, timed.setup.ranks)},
                samples(name, run, timed.gpus),
                {},
                {},
                // Older records of throughput do not say what pauses there were between passes: none, then.
                file_.contains("runs/period_" + name) ? number("runs/period_" + name, run) : 0};
    }

    /// Row `run` of a dataset (run, repeat, rank), without missing values at its end.
    std::vector<std::vector<double>> samples(const std::string& pass, std::size_t run, int ranks) const {
        const auto path = fmt::format("measured/{}/seconds", pass);
        const auto shape = file_.dataset(path).shape();
        const auto count = index(whole(fmt::format("lengths/measured/{}/repeat", pass), run));
        const auto repeats = index(shape[1]), columns = index(shape[2]);
        require(count > 0 && count <= repeats && index(ranks) <= columns, "'{}': {} of run {} is damaged", path_, path,
                run);
        std::vector<std::vector<double>> rows;
        for (std::size_t repeat = 0; repeat < count; ++repeat) {
            const auto* row = numbers(path).data() + (run * repeats + repeat) * columns;
            rows.emplace_back(row, row + ranks);
        }
        return rows;
    }

    layouts::Timeline timeline_of(Pass pass, std::size_t run, int ranks) const {
        layouts::Timeline timeline{ranks, {}};
        const auto shape = file_.dataset("spans/count").shape();
        const auto place = (run * index(shape[1]) + place_of(file_, "source", "measured")) * index(shape[2]) +
                           place_of(file_, "pass", to_string(pass));
        const auto column = [&](const char* name) -> const auto& { return numbers(fmt::format("spans/{}", name)); };
        const auto first = index(std::llround(std::max(column("first")[place], 0.0)));
        const auto count = index(std::llround(std::max(column("count")[place], 0.0)));
        for (auto row = first; row < first + count; ++row) {
            const auto time = [&](const char* name) { return layouts::to_picoseconds(column(name)[row]); };
            const auto number = [&](const char* name) { return std::llround(column(name)[row]); };
            layouts::Span span;
            span.rank = static_cast<int>(number("rank"));
            span.op = static_cast<layouts::OpIndex>(number("op"));
            span.step = static_cast<int>(number("step"));
            span.kind = static_cast<layouts::OpKind>(number("kind"));
            span.lane = static_cast<layouts::Lane>(number("lane"));
            span.pool = static_cast<layouts::Pool>(number("pool"));
            span.peer = static_cast<int>(number("peer"));
            span.block = static_cast<int>(number("block"));
            span.pair_count = number("pairs");
            span.bytes = number("bytes");
            span.posted = time("posted");
            span.begin = time("begin");
            span.end = time("end");
            span.busy = time("busy");
            timeline.spans.push_back(span);
        }
        return timeline;
    }

    std::vector<std::string> texts(const std::string& column) const { return file_.dataset("runs/" + column).texts(); }
    double number(const std::string& path, std::size_t at) const { return numbers(path)[at]; }
    std::int64_t whole(const std::string& path, std::size_t at) const { return std::llround(numbers(path)[at]); }

    /// A whole dataset, read once.
    const std::vector<double>& numbers(const std::string& path) const {
        const auto [entry, is_new] = numbers_.try_emplace(path);
        if (is_new) entry->second = file_.dataset(path).doubles();
        return entry->second;
    }

    std::string path_;
    hdf5::File file_;
    std::vector<bool> hot_;  // by run
    mutable std::map<std::string, std::vector<double>> numbers_;
};

}  // namespace

std::vector<bool> hot_runs(const hdf5::File& record) {
    const auto runs = index(record.dataset("runs/name").shape().front());
    std::vector<bool> hot(runs);
    if (!record.contains("measured/clocks/throttle_reasons")) return hot;
    constexpr std::int64_t software_thermal = 0x20,
                           hardware_thermal = 0x40;  // nvmlClocksEventReasons
    const auto reasons = record.dataset("measured/clocks/throttle_reasons").integers();
    for (std::size_t i = 0; i < reasons.size(); ++i)
        if (reasons[i] > 0 && (reasons[i] & (software_thermal | hardware_thermal)) != 0)
            hot[i / (reasons.size() / runs)] = true;
    return hot;
}

std::vector<MeasuredRing> measured_rings(const std::string& file, const LeftOut& left_out) {
    return RecordReader(file).rings(left_out);
}

sim::SimOptions MeasuredPass::options() const {
    sim::SimOptions options;
    repeat(options, repetition);
    return options;
}

MeasuredPass measured_pass(const RingRun& ring, Pass pass) {
    const auto& measured = ring.of(pass);
    const auto [seconds, spread] = typical(slowest(measured.seconds));
    const auto before = pass == Pass::backward ? typical(slowest(ring.forward.seconds)).median : 0;
    return {seconds, spread, {measured.period, seconds, before}};
}

std::map<std::string, sim::Machine> load_machines(const ScoredRecord& record) {
    std::map<std::string, sim::Machine> machines;
    for (const auto& [transport, name] : record.machines)
        machines.emplace(transport, sim::load_machine(find_resource(name, "machines", ".toml")));
    return machines;
}

std::vector<ScoredRecord> scored_records() {
    auto reasons = not_scored();
    std::vector<ScoredRecord> records;
    for (const auto& name : resources(folder, ".h5")) {
        if (name == own_record) continue;
        ScoredRecord record{name, find_resource(name, folder, ".h5"), "", {}};
        const auto rings = rings_of(record.path);
        if (rings.transports.empty()) continue;
        if (const auto listed = reasons.extract(name)) {
            record.why_not = listed.mapped();
        } else {
            record.left_out.hot = true;
            record.hot_rings = rings.hot;
            for (const auto& transport : rings.transports) record.machines[transport] = machine_of(name, transport);
            for (const auto& schedule : rings.schedules) take_changes(reasons, record, schedule);
        }
        records.push_back(std::move(record));
    }
    require(reasons.empty(),
            "results/not_scored.toml lists {}, but there is no such record with rings, or none of this schedule",
            reasons.empty() ? "" : reasons.begin()->first);
    return records;
}

std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring) {
    return fmt::format("{}: {}", record.name, ring.name());
}

void describe_scored_ring(RunWriter& run, const std::string& record, const ThroughputCase& ring) {
    run.attribute("measured_record", record, "1", "where the ring was measured");
    run.attribute("transport", ring.transport, "1", "what carries messages");
    run.attribute("mask", ring.setup.mask, "1", "who sees whom");
    run.attribute("layout", ring.setup.layout, "1", "which rank owns which tokens");
    run.attribute("schedule", ring.setup.schedule, "1", "schedule that brings queries and keys together");
    run.attribute("shape", ring.shape, "1", "query heads:kv heads/head dims/arithmetic");
    run.attribute("ranks", ring.setup.ranks, "1", "ring size P");
    run.attribute("tokens", ring.setup.tokens, "1", "of the whole sequence");
}

void for_each_ring(
    const std::vector<ScoredRecord>& records, bool with_hot,
    const std::function<void(const ScoredRecord&, const MeasuredRing&, const Plan&, const sim::Machine&)>& visit) {
    Progress progress(records.size(), false);
    for (const auto& record : records) {
        progress.start(record.name);
        const auto machines = load_machines(record);
        auto left_out = record.left_out;
        left_out.hot &= !with_hot;
        if (record.why_not.empty())
            for (const auto& ring : measured_rings(record.path, left_out))
                if (const auto machine = machines.find(ring.timed.transport); machine != machines.end())
                    visit(record, ring, make_plan(ring.timed), machine->second);
        progress.finish();
    }
}

}  // namespace ringlab::experiments
