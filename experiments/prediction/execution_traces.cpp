#include "experiments/prediction/execution_traces.hpp"

#include "experiments/record/tensors_file.hpp"
#include "layouts/basics/require.hpp"
#include "sim/report/chakra_trace.hpp"

#include <fmt/format.h>

#include <system_error>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// The name of one pass of a case on a machine.
std::string pass_name(const Case& setup, const layouts::Schedule& schedule, const std::string& machine) {
    return fmt::format("{} {} {}", setup.name(), to_string(schedule.options().pass), machine);
}

}  // namespace

fs::path ExecutionTraces::path(const Case& setup, const layouts::Schedule& schedule, std::size_t machine,
                               int gpu) const {
    const auto name = file_name_of(pass_name(setup, schedule, predictor_.machines()[machine]));
    return fs::path(config_.trace.chakra) / fmt::format("{}.{}.et", name, gpu);
}

void ExecutionTraces::announce(const Case& setup, const Plan& plan) {
    if (!wanted()) return;
    const fs::path folder = config_.trace.chakra;
    require(!fs::exists(folder) || fs::is_directory(folder), "--chakra '{}' is a file; give a folder", folder.string());
    const auto if_there = config_.output.overwrite || config_.output.resume ? IfThere::replace : IfThere::refuse;
    const auto placement = gpu_placement(config_.execution, setup.ranks);
    for (const auto* schedule : plan.schedules())
        for (std::size_t machine = 0; machine < predictor_.machines().size(); ++machine)
            for (int rank = 0; rank < setup.ranks * config_.execution.replicas; ++rank)
                config_.output.files.writes("--chakra",
                                            path(setup, *schedule, machine,
                                                 placement.empty() ? rank : placement[static_cast<std::size_t>(rank)]),
                                            FileKind::execution_trace, if_there);
}

void ExecutionTraces::write(const Case& setup) {
    if (!wanted()) return;
    std::error_code error;
    fs::create_directories(config_.trace.chakra, error);
    require(fs::is_directory(config_.trace.chakra), "--chakra '{}' cannot be made ({}); give a folder",
            config_.trace.chakra, error.message());
    const auto plan = make_plan(setup, problem_from(config_.problem));
    for (const auto* schedule : plan.schedules())
        for (std::size_t machine = 0; machine < predictor_.machines().size(); ++machine) {
            auto options = predictor_.options();
            options.placement = gpu_placement(config_.execution, setup.ranks);
            const sim::ChakraTraces traces(*schedule, predictor_.descriptions()[machine].machine, options,
                                           pass_name(setup, *schedule, predictor_.machines()[machine]));
            for (int rank = 0; rank < traces.ranks(); ++rank) {
                const auto bytes = traces.of_rank(rank);
                const auto file = config_.output.files.write(path(setup, *schedule, machine, traces.gpu(rank)),
                                                             std::as_bytes(std::span(bytes)));
                if (files_++ == 0) first_ = file;
            }
        }
}

void ExecutionTraces::say() const {
    if (wanted()) fmt::print("Execution traces: {} files, the first is {}\n", files_, first_.string());
}

}  // namespace ringlab::experiments
