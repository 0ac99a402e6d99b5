// Speed and memory of the simulator, on one core. Run: benchmark_sim [PART...], parts as printed by --help; all by
// default (about two minutes).
#include "layouts/basics/require.hpp"
#include "scenario.hpp"
#include "short_ring.hpp"
#include "sim/engine/engine.hpp"
#include "sim/recurrence/max_plus.hpp"

#include <unistd.h>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>

using namespace ringlab;
using namespace ringlab::sim;

namespace {

/// Processor seconds, so that other work on the machine does not count.
double seconds(const std::function<void()>& work) {
    const auto begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Bytes of memory the process has in use.
double resident_bytes() {
    std::ifstream file("/proc/self/statm");
    double pages = 0, resident = 0;
    file >> pages >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double peak_bytes() {
    std::ifstream file("/proc/self/status");
    std::string word;
    double kibibytes = 0;
    while (file >> word)
        if (word == "VmHWM:") file >> kibibytes;
    return kibibytes * 1024;
}

/// Compute and a transfer on every rank, again and again, each of another length: every event changes what memory
/// leaves to two ranks' compute.
double engine_events_per_second(int ranks, std::uint64_t events) {
    Engine engine;
    engine.reserve(2 * static_cast<std::size_t>(ranks), 3 * static_cast<std::size_t>(ranks));
    struct Gpu {
        ResourceId egress, ingress, memory;
    };
    std::vector<Gpu> gpus;
    for (int rank = 0; rank < ranks; ++rank) {
        const auto egress = engine.add_resource(389e9), ingress = engine.add_resource(389e9);
        gpus.push_back({egress, ingress, engine.add_resource(4200e9)});
    }
    std::uint64_t state = 1;
    const auto duration = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<Picoseconds>(100000000 + (state >> 38));
    };
    const auto compute = [&](std::uint32_t rank) {
        const Demand demand{gpus[rank].memory, 3740e9};
        engine.start({.duration = duration(),
                      .demands = {&demand, 1},
                      .priority = Priority::compute,
                      .slows_transfers = true,
                      .tag = 2 * rank});
    };
    const auto transfer = [&](std::uint32_t rank) {
        const auto& to = gpus[(rank + 1) % gpus.size()];
        const Demand demands[] = {
            {gpus[rank].egress, 389e9}, {to.ingress, 389e9}, {gpus[rank].memory, 389e9}, {to.memory, 389e9}};
        engine.start({.duration = duration(), .demands = demands, .weight = 1e9 / 389e9, .tag = 2 * rank + 1});
    };
    for (std::uint32_t rank = 0; rank < gpus.size(); ++rank) {
        compute(rank);
        transfer(rank);
    }
    const auto time = seconds([&] {
        while (engine.events() < events) {
            std::uint32_t tag = 0;
            engine.next(tag);
            tag % 2 == 0 ? compute(tag / 2) : transfer(tag / 2);
        }
    });
    return static_cast<double>(events) / time;
}

void engine() {
    for (const int ranks : {8, 64, 512, 4096, 16384})
        fmt::print("  {:5} ranks: {:5.1f} M events/s\n", ranks, engine_events_per_second(ranks, 20000000) / 1e6);
}

void simulate_and_print(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                        std::int64_t rank_steps) {
    const auto before = resident_bytes();
    Prediction prediction;
    const auto time = seconds([&] { prediction = simulate(schedule, machine, options); });
    const auto ranks = static_cast<double>(schedule.ranks());
    fmt::print(
        "  {:5} ranks, {:3.0f} M rank-steps, sharing {:3}: {:6.2f} s, {:5.2f} M rank-steps/s, {:5.2f} M events/s, "
        "at most {:4.0f} B/rank, makespan {:.3f} ms\n",
        schedule.ranks(), static_cast<double>(rank_steps) / 1e6, options.sharing ? "on" : "off", time,
        static_cast<double>(rank_steps) / time / 1e6, static_cast<double>(prediction.events) / time / 1e6,
        (peak_bytes() - before) / ranks, static_cast<double>(prediction.makespan) / 1e9);
}

void ring() {
    auto machine = test::shipped_machine("h200_cluster");
    auto options = test::rate_options();
    for (const bool sharing : {true, false}) {
        options.sharing = sharing;
        const auto schedule =
            test::Scenario{.ranks = 1024, .tokens_per_rank = 2048, .query_heads = 32, .kv_heads = 8}.schedule();
        simulate_and_print(*schedule, machine, options, 1024 * 1024);
    }
}

void large_ring() {
    auto machine = test::shipped_machine("h200_cluster");
    auto options = test::rate_options();
    for (const bool sharing : {true, false}) {
        options.sharing = sharing;
        const auto whole =
            test::Scenario{.ranks = 16384, .tokens_per_rank = 2048, .mask = "full", .query_heads = 32, .kv_heads = 8}
                .schedule();
        // 16 Mi rank-steps are enough to see the speed, and all the memory that 16384 ranks take.
        const test::ShortRing schedule(*whole, 1024);
        simulate_and_print(schedule, machine, options, 16384LL * 1024);
    }
}

void tiles() {
    for (const int ranks : {8, 64})
        // A sample: from shards of one run to those of many, by which the time to make tiles goes.
        for (const auto* layout : {"contiguous", "zigzag", "striped", "striped:16"}) {
            const auto machine = test::shipped_machine("h200_cluster");
            const auto schedule =
                test::Scenario{
                    .ranks = ranks, .tokens_per_rank = 32768, .layout = layout, .query_heads = 32, .kv_heads = 8}
                    .schedule();
            const auto time = seconds([&] { simulate(*schedule, machine, {}); });
            fmt::print("  {:2} ranks x 32k tokens, {:10}: {:.3f} s\n", ranks, layout, time);
        }
}

void recurrence() {
    Machine machine;
    machine.forward.flops = 600e12;
    machine.inside_host.link_bytes_per_second = 375e9;
    auto options = test::rate_options();
    options.sharing = false;
    options.jitter.start_skew_seconds = 1e-3;
    for (const int ranks : {1024, 16384}) {
        const auto schedule =
            test::Scenario{.ranks = ranks, .tokens_per_rank = 2048, .query_heads = 32, .kv_heads = 8}.schedule();
        Picoseconds end = 0;
        const auto time = seconds([&] {
            for (const auto rank_end : max_plus_symmetric(*schedule, machine, options)) end = std::max(end, rank_end);
        });
        const auto rank_steps = double(ranks) * double(ranks);
        fmt::print("  {0} x {0}: {1:.2f} s, {2:.0f} M rank-steps/s, makespan {3:.3f} ms\n", ranks, time,
                   rank_steps / time / 1e6, static_cast<double>(end) / 1e9);
        if (ranks == 1024)
            fmt::print("  the event queue: {:.3f} ms\n",
                       static_cast<double>(simulate(*schedule, machine, options).makespan) / 1e9);
    }
}

/// What the simulator says of the ring whose peers are measured: 8 GPUs, 8k tokens each, 32:8 heads, causal.
void prediction() {
    using layouts::Accumulation;
    for (const auto* name : {"h200_nvswitch_copy_engine", "h200_nvswitch_nccl"})
        for (const std::int64_t tokens : {2048, 8192, 32768})
            for (const auto* layout : {"contiguous", "zigzag", "striped"})
                for (const auto accumulation : {Accumulation::carry, Accumulation::partials}) {
                    test::Scenario scenario{.ranks = 8,
                                            .tokens_per_rank = tokens,
                                            .layout = layout,
                                            .accumulation = accumulation,
                                            .query_heads = 32,
                                            .kv_heads = 8};
                    const auto forward = simulate(*scenario.schedule(), test::shipped_machine(name), {});
                    scenario.pass = layouts::Pass::backward;
                    const auto backward = simulate(*scenario.schedule(), test::shipped_machine(name), {});
                    const auto all = 8.0 * double(tokens);
                    const auto flop = 4 * all * all * 128 * 32 / 2 / 8;
                    const auto ms = [](Picoseconds time) { return static_cast<double>(time) / 1e9; };
                    Picoseconds exposed = 0;
                    for (const auto& rank : forward.ranks) exposed = std::max(exposed, rank.exposed);
                    fmt::print(
                        "  {:26} {:5} {:10} {:8}: forward {:7.3f} ms ({:3.0f} TFLOP/s per GPU; naive {:.3f} to {:.3f}; "
                        "exposed {:.3f}), forward+backward {:7.3f} ms ({:3.0f})\n",
                        name, tokens, layout, accumulation == Accumulation::carry ? "carry" : "partials",
                        ms(forward.makespan), flop / ms(forward.makespan) / 1e9, ms(forward.naive_overlapped),
                        ms(forward.naive_serial), ms(exposed), ms(forward.makespan + backward.makespan),
                        3.5 * flop / ms(forward.makespan + backward.makespan) / 1e9);
                }
}

const std::map<std::string, std::pair<const char*, void (*)()>> parts{
    {"engine", {"the event engine alone, with sharing", engine}},
    {"ring", {"a ring of 1024 x 1024 steps", ring}},
    {"large-ring", {"a ring of 16384 x 1024 steps, and its memory", large_ring}},
    {"recurrence", {"the max-plus recurrence, 16384 x 16384", recurrence}},
    {"tiles", {"the tile model at 32k tokens per GPU", tiles}},
    {"prediction", {"rings of 8 H200", prediction}},
};

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
            for (const auto& [name, part] : parts) fmt::print("{:12} {}\n", name, part.first);
            return 0;
        }
        for (const auto& [name, part] : parts)
            if (argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* word) { return name == word; })) {
                fmt::print("{}: {}\n", name, part.first);
                part.second();
                std::cout.flush();
            }
    } catch (const Error& error) {
        std::cerr << "benchmark_sim: " << error.what() << '\n';
        return 1;
    }
}
