#include "experiments/calibration/fit/machine_file.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <span>
#include <vector>

namespace ringlab::experiments {
namespace {

const std::string not_determined = "not determined by ";

}  // namespace

std::filesystem::path write_machine_file(const FileGuard& files, const std::filesystem::path& output,
                                         const std::string& text) {
    try {
        require_memory_ratios(sim::parse_machine(text, output.string()));
    } catch (const Error& error) {
        fail(
            "no machine file can be fitted to the measurements ({}); try again when no other work runs on "
            "this computer",
            error.what());
    }
    return files.write(output, std::as_bytes(std::span(text)));
}

std::string not_determined_by(const std::string& measurements) { return not_determined + measurements; }

void require_memory_ratios(const sim::Machine& machine) {
    for (const auto& figure : machine.figures) {
        const bool is_fitted = figure.source.starts_with("fitted") || figure.source.starts_with("measured");
        require(!is_fitted || !figure.name.ends_with("memory_ratio") || figure.value > 0,
                "{} is 0, {}; it must be more", figure.name, figure.source);
    }
}

void announce_machine_file(const std::filesystem::path& output, const std::string& text) {
    fmt::print("Machine file: {}\n", output.string());
    std::vector<std::string> undetermined, too_high;
    for (const auto& figure : sim::parse_machine(text, output.string()).figures) {
        const auto said = fmt::format("{} = {}", figure.name, figure.value);
        if (figure.source.starts_with(not_determined)) undetermined.push_back(said);
        if (figure.source.find(above_data_sheet) != std::string::npos) too_high.push_back(said);
    }
    if (!undetermined.empty()) fmt::print("Not determined by what was timed: {}\n", fmt::join(undetermined, ", "));
    if (!too_high.empty()) fmt::print("Above the data sheet's rate: {}\n", fmt::join(too_high, ", "));
}

}  // namespace ringlab::experiments
