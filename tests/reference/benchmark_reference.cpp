// Compares the rate of the blocked reference with that of dgemm, and shows how its memory grows with tokens.

#include "layouts/basics/require.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/tensors/blas.hpp"

#include <cblas.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>

namespace {

using namespace ringlab;

struct Seconds {
    double wall, processors;  // of all threads together
};

Seconds seconds_of(const auto& work) {
    const auto begin = std::chrono::steady_clock::now();
    const auto processors_begin = std::clock();
    work();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            static_cast<double>(std::clock() - processors_begin) / CLOCKS_PER_SEC};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

layouts::Problem make_problem(std::int64_t tokens, std::int64_t kv_heads) {
    return {.tokens = tokens, .query_heads = 4, .kv_heads = kv_heads, .head_dim = 128, .value_dim = 128};
}

reference::Inputs make_inputs(const layouts::Problem& p) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    const auto tensor = [&](std::int64_t heads, std::int64_t dim) {
        reference::Tensor t({std::size_t{1}, static_cast<std::size_t>(p.tokens), static_cast<std::size_t>(heads),
                             static_cast<std::size_t>(dim)});
        for (auto& x : t) x = normal(random);
        return t;
    };
    return {tensor(p.query_heads, p.head_dim), tensor(p.kv_heads, p.head_dim), tensor(p.kv_heads, p.value_dim),
            tensor(p.query_heads, p.value_dim)};
}

/// FLOP/s of dgemm on all CPU cores: one large product per core at the same time, or one product that BLAS distributes
/// over the cores, whichever is faster.
class Dgemm {
public:
    Dgemm() : a_(size * size, 1.5), b_(size * size, 0.5), c_(processors, std::vector<double>(size * size)) {}

    struct Rate {
        double wall;           // FLOP/s of the machine
        double per_processor;  // FLOP per second of CPU time
    };

    Rate rate() {
        const auto one = seconds_of([&] { multiply(c_[0]); });
        const auto several = seconds_of([&] {
            const reference::SingleThreadedBlas guard;
            std::vector<std::jthread> threads;
            for (auto& c : c_) threads.emplace_back([&] { multiply(c); });
        });
        const double several_flop = flop * static_cast<double>(processors);
        return {std::max(flop / one.wall, several_flop / several.wall), several_flop / several.processors};
    }

private:
    static constexpr int size = 2048;
    static constexpr double flop = 2.0 * size * size * size;
    const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());

    void multiply(std::vector<double>& c) const {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1, a_.data(), size, b_.data(), size, 0,
                    c.data(), size);
    }

    std::vector<double> a_, b_;
    std::vector<std::vector<double>> c_;
};

double peak_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024;  // Linux reports KiB
}

// Sizes ascend, so that the peak memory of the process is that of the last size.
void print_memory() {
    fmt::print("peak memory, forward + backward, 4:4 heads, D 128, causal\n");
    fmt::print("{:>8} {:>12} {:>16} {:>10}\n", "tokens", "peak MiB", "KiB per token", "seconds");
    for (const std::int64_t tokens : {2048, 4096, 8192, 16384}) {
        const auto problem = make_problem(tokens, 4);
        const auto mask = layouts::make_mask("causal", tokens);
        const auto inputs = make_inputs(problem);
        const double seconds = seconds_of([&] { reference::blocked_attention(problem, mask, inputs); }).wall;
        fmt::print("{:>8} {:>12.1f} {:>16.2f} {:>10.2f}\n", tokens, peak_mib(),
                   peak_mib() * 1024 / static_cast<double>(tokens), seconds);
        std::fflush(stdout);
    }
}

// Repetitions alternate with those of dgemm, so that changes of the machine's speed affect both.
void print_rate(std::int64_t kv_heads) {
    constexpr int repeats = 7;
    constexpr std::int64_t tokens = 4096;
    const auto problem = make_problem(tokens, kv_heads);
    const auto mask = layouts::make_mask("causal", tokens);
    const auto inputs = make_inputs(problem);
    const double pairs = 0.5 * tokens * tokens * static_cast<double>(problem.query_heads);
    Dgemm dgemm;
    const double forward_flop = pairs * problem.forward_flop_per_pair();
    const double backward_flop = pairs * problem.backward_flop_per_pair();
    std::vector<double> dgemm_rates, forward_rates, backward_rates, rates, ratios, processor_ratios;
    for (int n = 0; n < repeats; ++n) {
        reference::Outputs out;
        const auto peak = dgemm.rate();
        const auto forward = seconds_of([&] { reference::blocked_forward(problem, mask, inputs, out); });
        const auto backward = seconds_of([&] { reference::blocked_backward(problem, mask, inputs, out); });
        dgemm_rates.push_back(peak.wall);
        forward_rates.push_back(forward_flop / forward.wall);
        backward_rates.push_back(backward_flop / backward.wall);
        rates.push_back((forward_flop + backward_flop) / (forward.wall + backward.wall));
        ratios.push_back(rates.back() / peak.wall);
        processor_ratios.push_back((forward_flop + backward_flop) / (forward.processors + backward.processors) /
                                   peak.per_processor);
    }
    const auto giga = [](const std::vector<double>& values) { return median(values) / 1e9; };
    fmt::print("4:{} heads, {} tokens, D 128, causal (tokens^2/2 pairs), medians of {}:\n", kv_heads, tokens, repeats);
    fmt::print("  dgemm {:.1f} GFLOP/s; forward {:.1f}, backward {:.1f}, both {:.1f} GFLOP/s\n", giga(dgemm_rates),
               giga(forward_rates), giga(backward_rates), giga(rates));
    const auto print_ratio = [](const char* by, const std::vector<double>& values) {
        fmt::print("  forward + backward / dgemm, by {}: {:.3f} (from {:.3f} to {:.3f})\n", by, median(values),
                   *std::min_element(values.begin(), values.end()), *std::max_element(values.begin(), values.end()));
    };
    print_ratio("wall time", ratios);
    print_ratio("CPU time, the fairer one on a busy machine", processor_ratios);
    std::fflush(stdout);
}

}  // namespace

int main() {
    try {
        print_memory();
        print_rate(2);
        print_rate(4);
    } catch (const std::exception& error) {
        fmt::print(stderr, "benchmark_reference: {}\n", error.what());
        return 1;
    }
    return 0;
}
