#pragma once

#include "layouts/basics/require.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/play/simulate.hpp"

#include <memory>
#include <random>
#include <string>

namespace ringlab::sim::test {

/// A schedule of any problem; its mask and layout are of all its tokens.
inline std::unique_ptr<layouts::Schedule> schedule_of(const layouts::Problem& problem, const std::string& mask,
                                                      const std::string& layout, int ranks,
                                                      const layouts::ScheduleOptions& options = {}) {
    const auto shown = layouts::make_mask(mask, problem.tokens);
    return layouts::make_schedule(problem, shown, layouts::make_layout(layout, shown, ranks), options);
}

/// What a schedule is made of, with defaults small enough for exhaustive tests.
struct Scenario {
    int ranks = 4;
    std::int64_t tokens_per_rank = 32;
    std::string layout = "zigzag";
    std::string mask = "causal";
    std::string schedule_name = "ring";
    layouts::Pass pass = layouts::Pass::forward;
    layouts::Accumulation accumulation = layouts::Accumulation::carry;
    std::int64_t query_heads = 4;
    std::int64_t kv_heads = 2;
    std::int64_t head_dim = 128;

    std::unique_ptr<layouts::Schedule> schedule() const {
        layouts::Problem problem;
        problem.tokens = ranks * tokens_per_rank;
        problem.query_heads = query_heads;
        problem.kv_heads = kv_heads;
        problem.head_dim = problem.value_dim = head_dim;
        layouts::ScheduleOptions options;
        options.schedule = schedule_name;
        options.pass = pass;
        options.accumulation = accumulation;
        return schedule_of(problem, mask, layout, ranks, options);
    }

    std::string describe() const {
        return fmt::format("{} ranks x {} tokens, {}, {}, {}, {}", ranks, tokens_per_rank, layout, mask, schedule_name,
                           layouts::to_string(pass));
    }
};

/// Bytes of the K/V block of a rank.
inline std::int64_t block_bytes(const layouts::Schedule& schedule, int rank) {
    const layouts::HeadRange heads{0, static_cast<int>(schedule.problem().kv_heads)};
    return schedule.bytes(layouts::Pool::kv, 0, schedule.part(rank, heads));
}

/// Compute in proportion to visible pairs, `picoseconds_per_pair` for all heads of the scenario together; transfers
/// free.
inline Machine pair_machine(const Scenario& scenario, double picoseconds_per_pair = 1) {
    Machine machine;
    const auto schedule = scenario.schedule();
    layouts::Op op;
    op.pair_count = 1;
    op.rows().heads = {0, static_cast<int>(scenario.query_heads)};
    machine.forward.flops = machine.backward.flops = schedule->flop(op) / (picoseconds_per_pair * 1e-12);
    return machine;
}

inline SimOptions rate_options() {
    SimOptions options;
    options.compute = ComputeModel::rate;
    return options;
}

/// One of experiments/machines.
inline Machine shipped_machine(const std::string& name) {
    return load_machine(std::string(RINGLAB_SOURCE_DIR) + "/experiments/machines/" + name + ".toml");
}

/// A machine where everything costs something and everything is shared.
inline Machine busy_machine() {
    Machine machine;
    machine.hosts = 4;
    machine.gpus_per_host = 4;
    machine.nics_per_host = 2;
    machine.sms = 16;
    machine.memory_bytes_per_second = 3e12;
    machine.attention_memory_bytes_per_second = 2.9e12;
    machine.transfer_issue_seconds = 0.7e-6;
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->launch_seconds = 2e-6;
        cost->work_tile_seconds = 0.3e-6;
        cost->full_tile_seconds = 1.1e-6;
        cost->partial_tile_seconds = 1.7e-6;
        cost->tile_rows = 16;
        cost->tile_keys = 16;
        cost->flops = 2e12;
        cost->begin_seconds = 1.1e-6;
        cost->begin_memory_ratio = 4;
        cost->resume_seconds = 0.15e-6;
    }
    machine.backward.work_tile = WorkTile::key_tile;
    machine.backward.groups = {{2, 8}, {4, 3}};
    machine.accumulate_launch_seconds = 1e-6;
    machine.merge_memory_ratio = 5;
    machine.add_memory_ratio = 3;
    machine.copy_memory_ratio = 3;
    machine.inside_host.latency_seconds = 1e-6;
    machine.inside_host.link_bytes_per_second = 4e10;
    machine.inside_host.channel_bytes_per_second = 1.5e10;
    machine.inside_host.channels = {{32768, 1}, {1e18, 3}};
    machine.inside_host.busy_speed_ratio = 0.7;
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    machine.inside_host.sms_per_channel = 0.5;
    machine.inside_host.send_memory_ratio = machine.inside_host.receive_memory_ratio = 1.25;
    machine.between_hosts = machine.inside_host;
    machine.between_hosts.latency_seconds = 3e-6;
    machine.between_hosts.link_bytes_per_second = 1e10;
    return machine;
}

template <class T>
const T& pick(std::mt19937& bits, const std::vector<T>& values) {
    return values[bits() % values.size()];
}

/// A layout, mask and schedule of those that suit any of these numbers of ranks and tokens, which others do not.
inline Scenario random_scenario(std::mt19937& bits) {
    Scenario scenario;
    scenario.ranks = pick<int>(bits, {1, 2, 3, 4, 5, 8, 16});
    scenario.tokens_per_rank = pick<std::int64_t>(bits, {8, 24, 48, 64});
    scenario.layout = pick<std::string>(bits, {"contiguous", "zigzag", "striped", "striped:4"});
    scenario.mask = pick<std::string>(
        bits, {"full", "causal", "window:40,0", "causal+documents:5x20000", "prefix:7", "window:30,0+sink:4"});
    if (scenario.mask == "causal+documents:5x20000") {
        const auto tokens = scenario.ranks * scenario.tokens_per_rank;
        scenario.mask = fmt::format("causal+documents:{},{}", tokens / 3 + 1, tokens - tokens / 3 - 1);
    }
    scenario.schedule_name = pick<std::string>(bits, {"ring", "all-gather:2", "all-gather", "pull"});
    scenario.pass = bits() % 2 ? layouts::Pass::forward : layouts::Pass::backward;
    scenario.accumulation = bits() % 2 ? layouts::Accumulation::carry : layouts::Accumulation::partials;
    return scenario;
}

}  // namespace ringlab::sim::test
