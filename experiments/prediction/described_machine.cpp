#include "experiments/prediction/described_machine.hpp"

#include "processes/session.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {

sim::Machine described_machine(const std::string& file, const Config& config) {
    auto machine = sim::load_machine(file);
    if (config.mpi && processes::Session::current().rank() != 0) return machine;
    for (const auto& note : machine.notes) fmt::print(stderr, "[note] {}: {}\n", file, note);
    return machine;
}

}  // namespace ringlab::experiments
