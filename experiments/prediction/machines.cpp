#include "experiments/prediction/machines.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"
#include "processes/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

namespace ringlab::experiments {
namespace {

constexpr std::int64_t most_gpus = std::int64_t{1} << 20;  // of a file that sets no limit

std::int64_t figures_that_are(const sim::Machine& machine, const char* how) {
    return std::ranges::count_if(machine.figures,
                                 [&](const sim::Figure& figure) { return figure.source.starts_with(how); });
}

/// The machine files of Ringlab with at least so many GPUs of at least so much memory, the smallest first: "h200_rails
/// (2048 GPUs), ...". Empty if there are none.
std::string machines_with(std::int64_t gpus, double memory_bytes) {
    std::vector<std::pair<std::int64_t, std::string>> found;
    for (const auto& name : resources("machines", ".toml")) {
        const auto machine = sim::load_machine(find_resource(name, "machines", ".toml"));
        if (machine.gpus() >= gpus && machine.device_memory_bytes >= memory_bytes)
            found.emplace_back(machine.gpus(), name);
    }
    std::ranges::sort(found);
    std::string text;
    for (const auto& [has, name] : found)
        text += fmt::format("{}{} ({} GPUs)", text.empty() ? "" : ", ", name,
                            has < most_gpus ? std::to_string(has) : "any number of");
    return text;
}

}  // namespace

std::vector<DescribedMachine> described_machines(const Config& config) {
    const bool says_notes = !config.execution.mpi || processes::Session::current().rank() == 0;
    std::vector<DescribedMachine> all;
    for (const auto& given : config.prediction.machines) {
        const auto file = find_resource(given, "machines", ".toml");
        const auto name = std::filesystem::path(file).stem().string();
        require(std::ranges::find(all, name, &DescribedMachine::name) == all.end(),
                "two machine files are named '{}'; the record needs different names", name);
        const auto& machine = all.emplace_back(DescribedMachine{name, file, given, sim::load_machine(file)}).machine;
        for (const auto& note : machine.notes)
            if (says_notes) fmt::print(stderr, "[note] {}: {}\n", file, note);
        for (const auto ranks : config.sweep.ranks)  // refuse now, not midway
            require_machine_gpus(machine, ranks, fmt::format("--ranks {}", ranks));
    }
    return all;
}

void add_provenance(Provenance& provenance, const DescribedMachine& described) {
    const auto entry = "machine_" + described.name;
    provenance.set_file(entry, described.file);
    provenance.set(entry + "_text", described.machine.text);
    if (const auto derived = sim::derived_text(described.machine); !derived.empty())
        provenance.set(entry + "_derived", derived);
}

std::string machine_line(const std::string& name) {
    const auto machine = sim::load_machine(find_resource(name, "machines", ".toml"));
    const auto error = uncertainty_of(machine, name);
    const auto derived = sim::derived_figures(machine);
    return fmt::format(
        "{}, up to {} ranks: {}. {} of its {} figures are measured or fitted, {} assumed{}; {}", machine.name,
        machine.gpus(), machine.description,
        figures_that_are(machine, "measured") + figures_that_are(machine, "fitted"), machine.figures.size(),
        figures_that_are(machine, "assumed"), derived > 0 ? fmt::format(", {} derived", derived) : "",
        error.known() && error.is_own ? fmt::format("on {} measured rings {:.1f} % off on average, {:.1f} at most",
                                                    error.rings.size(), 100 * error.mean(), 100 * error.largest())
                                      : error.source);
}

void require_machine_gpus(const sim::Machine& machine, std::int64_t needed, const std::string& asked) {
    if (needed <= machine.gpus()) return;
    fail("{}: machine '{}' has {} GPUs; {}", asked, machine.name, machine.gpus(), machines_with_room(needed));
}

std::string machines_with_room(std::int64_t gpus, double memory_bytes) {
    const auto others = machines_with(gpus, memory_bytes);
    return others.empty() ? "no machine file of Ringlab has room" : "these have room: " + others;
}

}  // namespace ringlab::experiments
