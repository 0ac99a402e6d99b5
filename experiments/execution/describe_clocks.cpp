#include "experiments/execution/describe_clocks.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {
namespace {

const std::vector<std::string> moments{"before", "during", "after"};  // in the order of Moment

}  // namespace

void describe_clocks(RunWriter& run, std::vector<gpu::ClockSample> samples) {
    if (samples.empty()) return;
    const auto earlier = [](const auto& a, const auto& b) { return a.seconds < b.seconds; };
    std::stable_sort(samples.begin(), samples.end(), earlier);
    const auto count = static_cast<std::int64_t>(samples.size());
    const auto column = [&](const char* name, auto value, const char* unit, const char* description) {
        std::vector<decltype(value(samples.front()))> values;
        for (const auto& sample : samples) values.push_back(value(sample));
        run.dataset(std::string("measured/clocks/") + name, std::move(values), {{"measured/clocks/sample", count}},
                    unit, description);
    };
    using Sample = gpu::ClockSample;
    const double begin = samples.front().seconds;
    column(
        "device", [](const Sample& s) { return std::int64_t{s.device}; }, "1", "GPU, as its process counts them");
    std::vector<std::string> taken;
    for (const auto& sample : samples) taken.push_back(moments.at(static_cast<std::size_t>(sample.moment)));
    run.enumeration("measured/clocks/moment", taken, moments, {{"measured/clocks/sample", count}}, "1",
                    "before the passes, during one, or after them");
    column(
        "time", [&](const Sample& s) { return static_cast<float>(s.seconds - begin); }, "s", "since the first sample");
    column(
        "sm_clock", [](const Sample& s) { return static_cast<float>(1e6 * s.sm_mhz); }, "Hz", "of the multiprocessors");
    column(
        "memory_clock", [](const Sample& s) { return static_cast<float>(1e6 * s.memory_mhz); }, "Hz", "of the memory");
    column(
        "power", [](const Sample& s) { return static_cast<float>(s.watts); }, "W", "drawn by the GPU, as NVML says");
    column(
        "temperature", [](const Sample& s) { return std::int64_t{s.celsius}; }, "degC", "of the GPU");
    column(
        "throttle_reasons", [](const Sample& s) { return static_cast<std::int64_t>(s.throttle_reasons); }, "1",
        "NVML's nvmlClocksEventReasons bits");
}

}  // namespace ringlab::experiments
