// Errors that are planted in one part of the cost model: rings are "measured" by the simulator on a machine that
// differs from the machine file in that part, and go through a record. `validate --explain` must name the part of the
// pass in which they show.

#include "experiments/validation/explain.hpp"

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/source.hpp"
#include "sim/play/simulate.hpp"
#include "tests/experiments/record_support.hpp"
#include "tests/thinning.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::Machine;

/// From 512 tokens per rank, where the host decides, to 16 Ki, where power does.
std::vector<ThroughputCase> planted_rings(const std::string& transport) {
    std::vector<ThroughputCase> rings;
    for (const std::int64_t tokens : {512, 2048, 16384})
        for (const auto* schedule : {"ring", "joined-ring"}) {
            ThroughputCase ring{.shape = "32:8/128/bf16", .transport = transport, .kernels = "auto", .gpus = 2};
            ring.setup.mask = "causal";
            ring.setup.layout = "zigzag";  // ranks do as much, so none waits for what another one does
            ring.setup.schedule = schedule;
            ring.setup.ranks = 2;
            ring.setup.tokens = 2 * tokens;
            rings.push_back(ring);
        }
    return rings;
}

PassRun simulated(const Plan& plan, Pass pass, const Machine& machine) {
    sim::SimOptions options;
    options.trace = true;
    options.fold = false;
    auto played = sim::simulate(*plan.schedule(pass), machine, options);
    PassRun samples;
    auto& seconds = samples.seconds.emplace_back();
    for (const auto& rank : played.ranks) seconds.push_back(layouts::to_seconds(rank.end));
    samples.issue = samples.seconds;
    samples.timelines = {std::move(played.timeline)};
    return samples;
}

enum class Spans { of_both_passes, of_forward, none };

/// A record of `validate` with rings that ran on `machine`.
void write_record(const std::filesystem::path& path, const std::vector<ThroughputCase>& rings, const Machine& machine,
                  Spans spans) {
    Record record(path, RecordMode::overwrite, {"validate", "simulated rings", ""}, test::fixed_provenance());
    for (const auto& ring : rings) {
        const auto plan = make_plan(ring);
        RingRun samples;
        samples.kernels = "auto";
        samples.forward = simulated(plan, Pass::forward, machine);
        samples.backward = simulated(plan, Pass::backward, machine);
        if (spans != Spans::of_both_passes) samples.backward.timelines = {{2, {}}};
        if (spans == Spans::none) samples.forward.timelines = {{2, {}}};
        samples.memory.resize(2);
        samples.devices = {"simulated", "simulated"};
        RunWriter run;
        describe_ring(run, ring, plan, samples);
        record.commit(ring.name(), run);
    }
    record.finish();
}

/// Scales prices of attends in both passes.
void scale_attends(Machine& machine, double factor) {
    for (auto* cost : {&machine.forward, &machine.backward})
        for (auto* price : {&cost->launch_seconds, &cost->work_tile_seconds, &cost->full_tile_seconds,
                            &cost->partial_tile_seconds, &cost->resume_seconds, &cost->tail_seconds_per_byte})
            *price *= factor;
}

struct Plant {
    const char* name;
    std::string transport, machine;
    std::set<std::string> owners;
    void (*change)(Machine&);
    friend std::ostream& operator<<(std::ostream& out, const Plant& plant) {
        return out << plant.name << " over " << plant.transport;
    }
};

const std::string copy_file = "2xh200_calibrated", nccl_file = "2xh200_calibrated_nccl";
const std::set<std::string> messages{"exposed transfer", "waiting for peers"};

// The machine file is wrong: what really is, is the changed machine.
const Plant plants[] = {
    {"attends 10 % too short", "copy", copy_file, {"compute"}, [](Machine& m) { scale_attends(m, 1 / 0.9); }},
    {"attends 10 % too short", "nccl", nccl_file, {"compute"}, [](Machine& m) { scale_attends(m, 1 / 0.9); }},
    {"link rate 20 % too high", "copy", copy_file, messages,
     [](Machine& m) { m.inside_host.link_bytes_per_second /= 1.2; }},
    {"link rate 20 % too high", "nccl", nccl_file, messages,
     [](Machine& m) {
         m.inside_host.link_bytes_per_second /= 1.2;
         m.inside_host.channel_bytes_per_second /= 1.2;
     }},
    {"latency half of what it is", "copy", copy_file, messages, [](Machine& m) { m.inside_host.latency_seconds *= 2; }},
    {"the host twice as slow",
     "copy",
     copy_file,
     {"launches", "exposed transfer"},  // of messages that are issued late
     [](Machine& m) { m.transfer_issue_seconds *= 2; }},
    {"begin three times as long",
     "copy",
     copy_file,
     {"launches"},
     [](Machine& m) {
         for (auto* cost : {&m.forward, &m.backward}) cost->begin_seconds *= 3, cost->begin_memory_ratio *= 3;
     }},
    {"sums take twice as long",
     "copy",
     copy_file,
     {"compute"},
     [](Machine& m) {
         m.accumulate_launch_seconds *= 2, m.merge_memory_ratio *= 2, m.add_memory_ratio *= 2;
         m.copy_memory_ratio *= 2;
     }},
    {"power 20 % too high",
     "copy",
     copy_file,
     {"compute"},
     [](Machine& m) {
         for (auto* cost : {&m.forward, &m.backward}) cost->power_flops /= 1.2;
     }},
};

Machine machine_of(const std::string& name) { return sim::load_machine(find_resource(name, "machines", ".toml")); }

std::vector<ExplainedPass> explained(const std::filesystem::path& path, const Plant& plant) {
    return explained_passes({{"planted", path.string(), "", {{plant.transport, plant.machine}}}}, nullptr);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(explain_predictions)

BOOST_DATA_TEST_CASE(a_planted_error_is_owned_by_its_part_of_the_pass, boost::unit_test::data::make(plants), plant) {
    if (!ringlab::tests::runs_in_this_build(8)) return;
    const test::Folder folder;
    auto machine = machine_of(plant.machine);
    plant.change(machine);
    write_record(folder / "planted.h5", planted_rings(plant.transport), machine, Spans::of_both_passes);
    std::size_t changed = 0;
    for (const auto& pass : explained(folder / "planted.h5", plant)) {
        double sum = 0;
        std::string all;
        for (const auto& [name, seconds] : pass.differences) {
            sum += seconds;
            all += fmt::format(" {} {:.1f}", name, 1e6 * seconds);
        }
        BOOST_TEST(std::abs(sum - (pass.predicted - pass.measured)) < 1e-11);  // picoseconds
        if (std::abs(sum) < 0.02 * pass.predicted) continue;
        ++changed;
        BOOST_TEST(plant.owners.contains(pass.owner()),
                   fmt::format("{} {}: {:.1f} us of {:.1f}:{}", pass.ring.name(), to_string(pass.pass), 1e6 * sum,
                               1e6 * pass.predicted, all));
    }
    BOOST_TEST_MESSAGE(fmt::format("{} over {}: {} passes change by 2 %", plant.name, plant.transport, changed));
    BOOST_TEST(changed > 0u);
}

BOOST_AUTO_TEST_CASE(a_pass_that_runs_as_predicted_has_no_differences) {
    const test::Folder folder;
    write_record(folder / "planted.h5", planted_rings("copy"), machine_of(copy_file), Spans::of_both_passes);
    for (const auto& pass : explained(folder / "planted.h5", plants[0]))
        for (const auto& [name, seconds] : pass.differences)
            BOOST_TEST(std::abs(seconds) < 1e-5 * pass.measured, pass.ring.name() << name);
}

BOOST_AUTO_TEST_CASE(a_pass_without_spans_is_left_out_and_a_record_without_any_is_refused) {
    const test::Folder folder;
    auto rings = planted_rings("copy");
    rings.resize(1);
    write_record(folder / "half.h5", rings, machine_of(copy_file), Spans::of_forward);
    const auto half = explained(folder / "half.h5", plants[0]);
    BOOST_REQUIRE(half.size() == 1u);
    BOOST_TEST((half[0].pass == Pass::forward));
    write_record(folder / "none.h5", rings, machine_of(copy_file), Spans::none);
    const auto error = test::error_of([&] { explained(folder / "none.h5", plants[0]); });
    BOOST_TEST(test::contains(error, "measured spans"), error);
    BOOST_TEST(test::one_line(error));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
