// What does a layout cost, and where does the time go? For instance:
//   predict_a_ring experiments/machines/h200_nvswitch_copy_engine.toml causal ring contiguous striped zigzag
// tests/package builds it outside this tree, with an installed library.

#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/play/simulate.hpp"

#include <cstdio>
#include <exception>
#include <span>
#include <string>

using namespace ringlab;

namespace {

double milliseconds(layouts::Picoseconds time) { return 1e-9 * static_cast<double>(time); }

void run(const std::string& machine_file, const std::string& mask_name, const std::string& schedule_name,
         std::span<char* const> layout_names) {
    // 1. A described machine: prices of attention kernels, of messages, and of the host.
    const auto machine = sim::load_machine(machine_file);

    // 2. A problem: attention over 64k tokens, 8k on each of eight GPUs.
    const int ranks = 8;
    layouts::Problem problem;
    problem.tokens = ranks * 8192;
    problem.query_heads = 32;
    problem.kv_heads = 8;
    const auto mask = layouts::make_mask(mask_name, problem.tokens);

    for (const auto* name : layout_names) {
        // 3. A schedule: the operations of every rank. A layout says who owns which tokens.
        const auto layout = layouts::make_layout(name, problem.tokens, ranks);
        const auto schedule = layouts::make_schedule(problem, mask, layout, {.schedule = schedule_name});

        // 4. The prediction: when every operation begins and ends.
        sim::SimOptions options;
        options.trace = true;
        const auto prediction = sim::simulate(*schedule, machine, options);
        std::printf("%-10s forward %.3f ms\n", name, milliseconds(prediction.makespan));

        // 5. Rank 0, step by step: how long it attends, and when the block for its next step has arrived.
        for (const auto& span : prediction.timeline.spans) {
            if (span.rank != 0) continue;
            if (span.kind == layouts::OpKind::attend)
                std::printf("  step %d: attends to block %d from %.3f to %.3f ms\n", span.step, span.block,
                            milliseconds(span.begin), milliseconds(span.end));
            else if (span.kind == layouts::OpKind::receive)
                std::printf("  step %d: block %d has arrived at %.3f ms\n", span.step, span.block,
                            milliseconds(span.end));
        }
    }
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc < 5) {
        std::fprintf(stderr, "predict_a_ring: give MACHINE.toml MASK SCHEDULE LAYOUT...\n");
        return 2;
    }
    run(argv[1], argv[2], argv[3], std::span<char* const>(argv, static_cast<std::size_t>(argc)).subspan(4));
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "predict_a_ring: %s\n", error.what());
    return 1;
}
