// What does a layout cost? A ring of eight GPUs of the machine file that is named, causal, 8k tokens per GPU.

#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/play/simulate.hpp"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
    using namespace ringlab;
    const auto machine = sim::load_machine(argc > 1 ? argv[1] : "machine.toml");
    const int ranks = 8;
    layouts::Problem problem;
    problem.tokens = ranks * 8192;
    problem.query_heads = 32;
    problem.kv_heads = 8;
    const auto mask = layouts::make_mask("causal", problem.tokens);
    for (const auto* name : {"contiguous", "striped", "zigzag"}) {
        const auto layout = layouts::make_layout(name, problem.tokens, ranks);
        const auto schedule = layouts::make_schedule(problem, mask, layout, {.schedule = "ring"});
        const auto prediction = sim::simulate(*schedule, machine);
        std::printf("%-10s forward %.3f ms\n", name, 1e-9 * static_cast<double>(prediction.makespan));
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "predict_a_ring: %s\n", error.what());
    return 1;
}
