#include "experiments/prediction/described_machine.hpp"

#include "processes/session.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {

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

}  // namespace ringlab::experiments
