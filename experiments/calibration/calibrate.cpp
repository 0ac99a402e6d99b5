#include "experiments/calibration/calibrate.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/table.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

namespace ringlab::experiments {
namespace {

/// A line for each plan and name of attends, with their sum. `accuracy` describes the errors of those that were held
/// out.
std::string table_of(const FittedMachine& fitted, std::string& accuracy) {
    Table table({"mask", "layout", "P", "tokens per rank", "attends", "measured us", "fitted us", "error", ""});
    double sum = 0, worst = 0;
    int count = 0;
    for (const auto pass : both_passes) {
        const auto& all = fitted.attends(pass);
        for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
            const auto& first = all[begin];
            double measured = 0, predicted = 0;
            for (; end < all.size() && all[end].plan == first.plan && all[end].name == first.name; ++end) {
                const double seconds = predicted_seconds(all[end], pass, fitted.machine);
                measured += all[end].seconds;
                predicted += seconds;
                if (!all[end].held_out) continue;
                const auto error = std::abs(seconds / all[end].seconds - 1);
                worst = std::max(worst, error);
                sum += error;
                ++count;
            }
            const auto& layout = first.plan->layout();
            table.add({first.plan->mask().name(), layout.name(), fmt::format("{}", layout.ranks()),
                       fmt::format("{}", layout.shard_tokens(first.rank)), first.name,
                       fmt::format("{:.1f}", measured * 1e6), fmt::format("{:.1f}", predicted * 1e6),
                       fmt::format("{:+.1f} %", 100 * (predicted / measured - 1)), first.held_out ? "held out" : ""});
        }
    }
    accuracy = fmt::format("held-out attends are predicted within {:.1f} %, on average {:.1f} %", worst * 100,
                           count > 0 ? sum / count * 100 : 0);
    return table.text();
}

/// Describes the same machine with `gpus` GPUs on a host. The first ones are those that were timed.
void describe_more_gpus(FittedMachine& fitted, const GpuSamples& samples, int gpus) {
    auto& m = fitted.machine;
    m.name = fmt::format("{} {}", gpus, samples.device);
    m.gpus_per_host = m.nics_per_host = gpus;
    fitted.sources["topology"] = fmt::format("--gpus-per-host; {} of them were timed", samples.gpus);
    auto& powers = m.power_of_gpus;
    if (powers.empty()) return;
    const double mean = std::reduce(powers.begin(), powers.end()) / static_cast<double>(powers.size());
    powers.resize(static_cast<std::size_t>(gpus), mean);
    fitted.sources["power"] += fmt::format("; behind the {} that were timed, their mean", samples.gpus);
}

/// Prints where a machine file was written, which of its numbers the measurements do not determine, and which rates are
/// higher than a data sheet allows.
void announce(const std::filesystem::path& output, const std::string& text) {
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

}  // namespace

void require_memory_ratios(const sim::Machine& machine) {
    for (const auto& figure : machine.figures) {
        const bool is_fitted = figure.source.starts_with("fitted") || figure.source.starts_with("measured");
        require(!is_fitted || !figure.name.ends_with("memory_ratio") || figure.value > 0,
                "{} is 0, {}; it must be more", figure.name, figure.source);
    }
}

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

std::filesystem::path beside(const std::string& output, const std::string& ending) {
    const std::filesystem::path path(output);
    return path.parent_path() / (path.stem().string() + ending);
}

void write_fit(const Config& config, const std::filesystem::path& path, const FittedMachine& fitted,
               const std::string& whose, const std::string& more, bool prints_table) {
    std::string accuracy;
    const auto table = table_of(fitted, accuracy);
    const auto text =
        sim::machine_text(fitted.machine, fitted.sources,
                          fmt::format("{}:\n{}.\n{}How to read a machine file: see h200_nvswitch_copy_engine.toml.",
                                      whose, accuracy, more));
    const auto output = write_machine_file(config.output.files, path, text);
    if (prints_table) fmt::print("{}\n{}.\n", table, accuracy);
    announce(output, text);
}

void calibrate_gpu(const Config& config, Backend* gpus, const Provenance& provenance) {
    say_when_interrupted("interrupted; no machine file was written");
    const auto samples_path = beside(config.output.path, samples_ending);
    std::optional<WrittenFile> samples_file;
    GpuSamples samples;
    if (gpus) {
        samples = measure_gpus(config.problem, config.sweep, *gpus, [&](const GpuSamples& so_far) {
            samples_file = write_samples(samples_file ? *samples_file : config.output.files.file(samples_path), so_far,
                                         config.output.text, provenance);
        });
        fmt::print("Samples: {}\n", samples_file->name().string());
    } else {
        samples = read_samples(config.timing.measured);
    }
    require(config.gpus_per_host == 0 || config.gpus_per_host >= samples.gpus,
            "--gpus-per-host {}: {} GPUs were timed; give as many or more", config.gpus_per_host, samples.gpus);
    std::set<std::string> transports;
    for (const auto* sample : samples.of(SampleKind::pass))
        if (sample->transport != "loopback") transports.insert(sample->transport);
    if (transports.empty()) transports.insert("");
    for (const auto& transport : transports) {
        auto fitted = fit_gpu(samples, transport);
        const bool is_described_larger = config.gpus_per_host > samples.gpus, over_nccl = transport == "nccl";
        if (is_described_larger) describe_more_gpus(fitted, samples, config.gpus_per_host);
        write_fit(config,
                  over_nccl ? beside(config.output.path, nccl_ending) : std::filesystem::path(config.output.path),
                  fitted,
                  fmt::format("{}, as `calibrate` found {} with {} arithmetic, heads {}", fitted.machine.name,
                              is_described_larger ? fmt::format("{} of them", samples.gpus) : "them",
                              samples.arithmetic, samples.heads),
                  "", !over_nccl);
    }
}

}  // namespace ringlab::experiments
