#include "experiments/validation/scored_records.hpp"

#include "experiments/files/files_read.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/require.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <optional>
#include <set>

namespace ringlab::experiments {
namespace {

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

}  // namespace ringlab::experiments
