#include "experiments/calibration/fit/machine_file.hpp"

#include "layouts/basics/require.hpp"
#include "sim/machine/machine.hpp"

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
        sim::parse_machine(text, output.string());
    } catch (const Error& error) {
        fail(
            "no machine file can be fitted to the measurements ({}); try again when no other work runs on "
            "this computer",
            error.what());
    }
    return files.write(output, std::as_bytes(std::span(text)));
}

std::string not_determined_by(const std::string& measurements) { return not_determined + measurements; }

void announce_machine_file(const std::filesystem::path& output, const std::string& text) {
    fmt::print("Machine file: {}\n", output.string());
    std::vector<std::string> figures;
    for (const auto& figure : sim::parse_machine(text, output.string()).figures)
        if (figure.source.starts_with(not_determined))
            figures.push_back(fmt::format("{} = {}", figure.name, figure.value));
    if (!figures.empty()) fmt::print("Not determined by what was timed: {}\n", fmt::join(figures, ", "));
}

}  // namespace ringlab::experiments
