// How fast is it? Rings over GPUs and kernels alone, beside the same work on one GPU, cuDNN's attention, a matrix
// product and the links, all in one run: sizes x layouts x masks x schedules x transports, forward and backward.

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/config/source.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/main/run_study.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "throughput",
    "Times attention on GPUs: TFLOP/s per GPU over visible pairs, of the slowest rank, once clocks and power are "
    "steady.\n"
    "Rings stand beside a sequence on one GPU that gives it as much work, all GPUs busy at the same time; with\n"
    "--ranks 1 kernels alone stand beside cuDNN's, in turns; both beside a matrix product. With --protocol sustained\n"
    "burst kernels alone are also timed in single passes apart from each other, as cuDNN's published tables are.\n"
    "Median and spread in the table; every sample, clocks and power in the HDF5 record. Nothing is judged here:\n"
    "gradient_equivalence does that.",
    "throughput --ranks 4 --tokens-per-rank 2048 8192 32768 --layouts zigzag striped --transports copy nccl",
    {.throughput = true}};

Config defaults() {
    Config config;
    config.heads = "32:8";
    config.head_dim = 128;
    config.tokens_per_rank = {2048, 8192, 32768};
    config.layouts = {"zigzag"};
    config.masks = {"causal"};
    config.algorithms = {"ring"};
    config.ranks = {1};
    config.transports = {"copy"};
    config.families = {"auto"};
    config.beside = {"work", "ceilings"};
    config.backend = "cuda";
    config.arithmetic = "bf16";
    config.repeats = 5;
    config.timeout_seconds = 60;
    config.output = "throughput.h5";
    return config;
}

Plan plan_of(const ThroughputCase& which, const Config& config) {
    const auto shaped = with_shape(which.shape, config);
    return make_plan(which.which, problem_from(shaped), shaped, {});
}

void time_case(const ThroughputCase& which, const Config& config, Bench& bench, RunWriter& run) {
    using Kind = ThroughputCase::Kind;
    if (which.kind == Kind::ceilings) {
        if (bench.is_root()) describe_ceilings(run, bench.ceilings(which.gpus));
        return;
    }
    const auto plan = plan_of(which, config);
    if (which.kind == Kind::device) {
        if (bench.is_root()) describe_device(run, which, plan, bench.device(plan, which.kernels));
        return;
    }
    const auto samples = bench.ring(plan, which.group(), which.transport, which.kernels);
    if (bench.is_root()) describe_ring(run, which, plan, samples);
}

int study(const Config& config, int argc, char** argv) {
    // 1. Lay out every case; find the GPUs; open the record.
    const auto cases = throughput_cases(config);
    for (const auto& which : cases)
        if (which.kind != ThroughputCase::Kind::ceilings) plan_of(which, config);  // refuse now, not midway
    const auto bench = make_bench(config);
    std::optional<Record> record;
    if (bench->is_root()) {
        auto provenance = collect_provenance(argc, argv);
        bench->add_provenance(provenance);
        record.emplace(config.output, record_opening(config),
                       RecordHeader{experiment.name, experiment.purpose, config.text}, std::move(provenance));
    }

    // 2. Time each case that the record lacks.
    {
        Progress progress(cases.size(), !record);
        for (const auto& which : cases) {
            progress.start(which.name());
            if (!is_recorded(config, *bench, record && record->has(which.name()))) {
                RunWriter run;
                time_case(which, config, *bench, run);
                if (record) record->commit(which.name(), run);
            }
            progress.finish();
        }
    }

    // 3. The tables.
    if (!record) return 0;
    record->finish();
    fmt::print(
        "{}\nTFLOP/s per GPU of the slowest rank, over visible pairs. Spread: quartiles over the median. One GPU: "
        "a sequence\nwith as much work on every GPU at the same time. Extra: beyond Q, K, V, dO and gradients in "
        "the shape's arithmetic.\nRecord: {}\n",
        throughput_tables(*record, cases), record->name());
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_study(experiment, defaults, study, argc, argv);
}
