#include "experiments/calibration/calibrate_gpu.hpp"

#include "experiments/calibration/fit/machine_file.hpp"
#include "experiments/calibration/gpu/gpu_fit.hpp"
#include "experiments/calibration/gpu/gpu_measure.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

/// A line for each attend. `accuracy` describes the errors of those that were held out.
std::string table_of(const FittedMachine& fitted, std::string& accuracy) {
    Table table({"mask", "layout", "rank", "block", "tokens", "call", "measured us", "fitted us", "error", ""});
    double sum = 0, worst = 0;
    int count = 0;
    for (const auto pass : both_passes)
        for (const auto& attend : pass == Pass::forward ? fitted.forward : fitted.backward) {
            const double seconds = predicted_seconds(attend, pass, fitted.machine),
                         error = seconds / attend.seconds - 1;
            const auto& plan = *attend.plan;
            if (attend.held_out) {
                worst = std::max(worst, std::abs(error));
                sum += std::abs(error);
                ++count;
            }
            table.add({plan.mask().name(), plan.layout().name(), fmt::format("{}", attend.rank),
                       fmt::format("{}", attend.block), fmt::format("{}", plan.layout().shard_tokens(attend.rank)),
                       attend.name, fmt::format("{:.1f}", attend.seconds * 1e6), fmt::format("{:.1f}", seconds * 1e6),
                       fmt::format("{:+.1f} %", 100 * error), attend.held_out ? "held out" : ""});
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

}  // namespace

std::filesystem::path beside(const std::string& output, const std::string& ending) {
    const std::filesystem::path path(output);
    return path.parent_path() / (path.stem().string() + ending);
}

int calibrate_gpu(const Config& config, GpuProbe* probe, const Provenance& provenance) {
    say_when_interrupted("interrupted; no machine file was written");
    const auto samples_path = beside(config.output.path, samples_ending);
    SamplesFile samples_file{samples_path, config.output.files.found(samples_path)};
    GpuSamples samples;
    if (probe) {
        samples = measure_gpus(config.problem, config.sweep, *probe, [&](const GpuSamples& so_far) {
            samples_file = write_samples(samples_file, so_far, config.output.text, provenance);
        });
        fmt::print("Samples: {}\n", samples_file.path.string());
    } else {
        samples = read_samples(config.timing.measured);
    }
    if (config.gpus_per_host > 0 && config.gpus_per_host < samples.gpus)
        fail("--gpus-per-host {}: {} GPUs were timed; give as many or more", config.gpus_per_host, samples.gpus);
    std::set<std::string> transports;
    for (const auto* sample : samples.of("message")) transports.insert(sample->transport);
    if (transports.empty()) transports.insert("");
    for (const auto& transport : transports) {
        auto fitted = fit_gpu(samples, transport);
        const bool is_described_larger = config.gpus_per_host > samples.gpus;
        if (is_described_larger) describe_more_gpus(fitted, samples, config.gpus_per_host);
        std::string accuracy;
        const auto table = table_of(fitted, accuracy);
        const auto text = sim::machine_text(
            fitted.machine, fitted.sources,
            fmt::format("{}, as `calibrate` found {} with {} arithmetic, heads {}:\n{}.\nHow to read a machine "
                        "file: see h200_nvswitch_copy_engine.toml.",
                        fitted.machine.name, is_described_larger ? fmt::format("{} of them", samples.gpus) : "them",
                        samples.arithmetic, samples.heads, accuracy));
        const auto output = write_machine_file(
            config.output.files,
            transport == "nccl" ? beside(config.output.path, nccl_ending) : std::filesystem::path(config.output.path),
            text);
        if (transport != "nccl") fmt::print("{}\n{}.\n", table, accuracy);
        announce_machine_file(output, text);
    }
    return 0;
}

}  // namespace ringlab::experiments
