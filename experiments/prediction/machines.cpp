#include "experiments/prediction/machines.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"
#include "processes/session.hpp"

#include <fmt/format.h>

#include <algorithm>
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

sim::Machine described_machine(const std::string& file, const ExecutionConfig& config) {
    auto machine = sim::load_machine(file);
    if (config.mpi && processes::Session::current().rank() != 0) return machine;
    for (const auto& note : machine.notes) fmt::print(stderr, "[note] {}: {}\n", file, note);
    return machine;
}

void add_provenance(Provenance& provenance, const std::string& name, const std::string& file,
                    const sim::Machine& machine) {
    provenance.set_file("machine_" + name, file);
    provenance.set("machine_" + name + "_text", machine.text);
    if (const auto derived = sim::derived_text(machine); !derived.empty())
        provenance.set("machine_" + name + "_derived", derived);
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
