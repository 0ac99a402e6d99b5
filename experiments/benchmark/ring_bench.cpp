#include "experiments/benchmark/bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ringlab::experiments {

layouts::Registry<RingBenchKind>& ring_benches() {
    static layouts::Registry<RingBenchKind> registry("backend");
    return registry;
}

void settle_transports(Config& config) {
    const auto& known = ring_benches().find(config.backend).factory.transports;
    if (!config.given.contains("transports")) config.transports = {known.front()};
    for (const auto& transport : config.transports)
        require(std::find(known.begin(), known.end(), transport) != known.end(),
                "--transports {}: rings of --backend {} have {}", transport, config.backend, fmt::join(known, ", "));
}

std::unique_ptr<RingBench> make_ring_bench(const Config& config) {
    return ring_benches().find(config.backend).factory.make(config);
}

Fit fit_unless_full(const std::function<Fit()>& run) {
    try {
        return run();
    } catch (const NoMemory& error) {
        Fit fit;
        fit.why_not = error.what();
        return fit;
    }
}

}  // namespace ringlab::experiments
