#include "experiments/validation/measured_rings.hpp"

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

const std::string folder = "results", own_record = "scores";  // own_record is an output and holds no measurement

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
               schedules = file.dataset("runs/algorithm").texts();
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
    require(
        std::find(known.begin(), known.end(), name) != known.end(),
        "results/{}.h5 holds rings over {}, but there is no machine file {}.toml to score them on: calibrate one, or "
        "list the record in results/not_scored.toml with the reason",
        record, transport, name);
    return name;
}

}  // namespace

std::vector<bool> hot_runs(const hdf5::File& record) {
    const auto runs = index(record.dataset("runs/name").shape().front());
    std::vector<bool> hot(runs);
    if (!record.contains("measured/clocks/throttle_reasons")) return hot;
    constexpr std::int64_t software_thermal = 0x20, hardware_thermal = 0x40;  // nvmlClocksEventReasons
    const auto reasons = record.dataset("measured/clocks/throttle_reasons").integers();
    for (std::size_t i = 0; i < reasons.size(); ++i)
        if (reasons[i] > 0 && (reasons[i] & (software_thermal | hardware_thermal)) != 0)
            hot[i / (reasons.size() / runs)] = true;
    return hot;
}

RecordedRings::RecordedRings(const std::string& file, const LeftOut& left_out) : path_(file), file_(open_record(file)) {
    require(
        file_.has("experiment") && (file_.text("experiment") == "validate" || file_.text("experiment") == "throughput"),
        "--measured {}: it is no record of validate or throughput", file);
    require(file_.contains("runs/name") && !file_.dataset("runs/name").texts().empty(),
            "--measured {}: the record has no finished run", file);
    require(file_.contains("spans/pool"),
            "--measured {}: it was recorded before spans said what they move, and cannot be predicted again", file);
    const auto text = [&](const char* column) { return file_.dataset(std::string("runs/") + column).texts(); };
    const auto masks = text("mask"), layouts = text("layout"), algorithms = text("algorithm"), shapes = text("shape"),
               transports = text("transport"), kernels = text("kernels"), kinds = text("kind");
    const auto whole = [&](const char* column) { return file_.dataset(std::string("runs/") + column).integers(); };
    const auto ranks = whole("ranks"), tokens = whole("tokens"), gpus = whole("gpus");
    hot_ = hot_runs(file_);
    for (std::size_t run = 0; run < masks.size(); ++run) {
        if (kinds[run] != "ring" || (left_out.hot && hot_[run])) continue;
        if (const auto it = left_out.changed.find(algorithms[run]);
            it != left_out.changed.end() && it->second.concerns(tokens[run], ranks[run]))
            continue;
        rows_.push_back(run);
        ThroughputCase one{.shape = shapes[run], .transport = transports[run], .kernels = kernels[run]};
        one.which.mask = masks[run];
        one.which.layout = layouts[run];
        one.which.schedule = algorithms[run];
        one.which.ranks = static_cast<int>(ranks[run]);
        one.which.tokens = tokens[run];
        one.gpus = static_cast<int>(gpus[run]);
        cases_.push_back(std::move(one));
    }
}

void RecordedRings::add_provenance(Provenance& provenance) const {
    provenance.set_file("measured", path_);
    // Where and when it was measured, in the words of the record; which may have been predicted again before.
    const auto theirs = file_.group("provenance/0");
    for (const std::string name : {"commit", "date", "command_line"})
        for (const auto& said : {"measured_" + name, name})
            if (theirs.has(said)) {
                provenance.set("measured_" + name, theirs.text(said));
                break;
            }
}

RingRun RecordedRings::ring(std::size_t one) const {
    const auto run = rows_[one];
    const int gpus = cases_[one].gpus, ranks = cases_[one].which.ranks;
    RingRun ring;
    ring.kernels = file_.dataset("runs/kernels_forward").texts()[run];
    ring.forward = pass_of(Pass::forward, run, gpus, ranks);
    ring.backward = pass_of(Pass::backward, run, gpus, ranks);
    ring.devices.assign(index(gpus), "recorded");
    ring.clock_uncertainty = numbers("runs/clock_uncertainty")[run];
    const auto rows = index(file_.dataset("measured/memory/slots").shape()[1]);
    for (std::size_t rank = 0; rank < index(gpus); ++rank) {
        const auto bytes = [&](const char* name) {
            return std::llround(numbers(fmt::format("measured/memory/{}", name))[run * rows + rank]);
        };
        ring.memory.push_back({bytes("inputs"), bytes("results"), bytes("slots"), bytes("work")});
    }
    return ring;
}

double RecordedRings::kept_error(std::size_t one, Pass pass, const std::string& machine) const {
    const auto column = fmt::format("runs/error_{}_{}", to_string(pass), machine);
    return file_.contains(column) ? numbers(column)[rows_[one]] : NAN;
}

std::vector<std::vector<double>> RecordedRings::samples(const std::string& pass, std::size_t run, int ranks) const {
    const auto path = fmt::format("measured/{}/seconds", pass);
    const auto shape = file_.dataset(path).shape();
    const auto count = index(std::llround(numbers(fmt::format("lengths/measured/{}/repeat", pass))[run]));
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

PassRun RecordedRings::pass_of(Pass pass, std::size_t run, int gpus, int ranks) const {
    const std::string name = to_string(pass);
    return {{timeline_of(pass, run, ranks)},
            samples(name, run, gpus),
            {std::vector(1, numbers("runs/issue_seconds_" + name)[run])},
            {},
            // Older records of throughput do not say what pauses there were between passes: none, then.
            file_.contains("runs/period_" + name) ? numbers("runs/period_" + name)[run] : 0};
}

layouts::Timeline RecordedRings::timeline_of(Pass pass, std::size_t run, int ranks) const {
    layouts::Timeline timeline{ranks, {}};
    const auto shape = file_.dataset("spans/count").shape();
    const auto place = (run * index(shape[1]) + place_of(file_, "source", "measured")) * index(shape[2]) +
                       place_of(file_, "pass", to_string(pass));
    const auto first = numbers("spans/first")[place], count = numbers("spans/count")[place];
    const auto time = [&](const char* column, std::size_t row) {
        return layouts::to_picoseconds(numbers(fmt::format("spans/{}", column))[row]);
    };
    const auto whole = [&](const char* column, std::size_t row) {
        return std::llround(numbers(fmt::format("spans/{}", column))[row]);
    };
    for (auto row = index(std::llround(std::max(first, 0.0))), end = row + index(std::llround(std::max(count, 0.0)));
         row < end; ++row) {
        layouts::Span span;
        span.rank = static_cast<int>(whole("rank", row));
        span.op = static_cast<layouts::OpIndex>(whole("op", row));
        span.step = static_cast<int>(whole("step", row));
        span.kind = static_cast<layouts::OpKind>(whole("kind", row));
        span.lane = static_cast<layouts::Lane>(whole("lane", row));
        span.pool = static_cast<layouts::Pool>(whole("pool", row));
        span.peer = static_cast<int>(whole("peer", row));
        span.block = static_cast<int>(whole("block", row));
        span.pair_count = whole("cells", row);
        span.bytes = whole("bytes", row);
        span.posted = time("posted", row);
        span.begin = time("begin", row);
        span.end = time("end", row);
        span.busy = time("busy", row);
        timeline.spans.push_back(span);
    }
    return timeline;
}

const std::vector<double>& RecordedRings::numbers(const std::string& path) const {
    const auto [entry, is_new] = numbers_.try_emplace(path);
    if (is_new) entry->second = file_.dataset(path).doubles();
    return entry->second;
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
    run.attribute("mask", ring.which.mask, "1", "who sees whom");
    run.attribute("layout", ring.which.layout, "1", "which rank owns which tokens");
    run.attribute("algorithm", ring.which.schedule, "1", "schedule that brings queries and keys together");
    run.attribute("shape", ring.shape, "1", "query heads:kv heads/head dims/arithmetic");
    run.attribute("ranks", ring.which.ranks, "1", "ring size P");
    run.attribute("tokens", ring.which.tokens, "1", "of the whole sequence");
}

void for_each_ring(const ScoredRecord& record, const LeftOut& left_out, Progress& progress,
                   const std::function<void(MeasuredRing&)>& visit) {
    const RecordedRings rings(record.path, left_out);
    for (std::size_t i = 0; i < rings.cases().size(); ++i) {
        const auto& ring = rings.cases()[i];
        progress.start(scored_name(record, ring));
        if (record.machines.contains(ring.transport)) {
            MeasuredRing measured{rings, i, make_plan(ring), rings.ring(i)};
            visit(measured);
        }
        progress.finish();
    }
}

}  // namespace ringlab::experiments
