#include "experiments/execution/backend.hpp"
#include "experiments/execution/machine_fault.hpp"
#include "experiments/inputs/inputs.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "reference/ranks/transport.hpp"

#include <algorithm>
#include <thread>

namespace ringlab::experiments {
namespace {

/// Seconds from the start of a pass to its end, by rank.
std::vector<double> ends(const layouts::Timeline& timeline) {
    std::vector<double> seconds(static_cast<std::size_t>(timeline.ranks));
    for (const auto& span : timeline.spans) {
        auto& end = seconds[static_cast<std::size_t>(span.rank)];
        end = std::max(end, layouts::to_seconds(span.end));
    }
    return seconds;
}

double since(reference::Clock::time_point begin) {
    return std::chrono::duration<double>(reference::Clock::now() - begin).count();
}

/// Bytes of the gradients of a rank's tokens in the problem's dtype: what a GPU keeps as results.
std::int64_t gradient_bytes(const Plan& plan, int rank) {
    const auto& p = plan.problem;
    const auto row = p.query_heads * p.head_dim + p.kv_heads * (p.head_dim + p.value_dim);
    return plan.backward ? p.batch * plan.layout().shard_tokens(rank) * row * layouts::bytes_of(p.dtype) : 0;
}

/// Ranks on this machine's processors, as threads or as MPI processes.
class CpuBackend : public Backend {
public:
    CpuBackend(const ExecutionConfig& config, const BackendUse& use) : config_(config) {
        const int most = std::ranges::max(use.ranks),
                  processors = static_cast<int>(std::thread::hardware_concurrency());
        require(!use.device_per_rank || most <= processors,
                "--ranks {}: the time of a pass is that of {} devices only where every rank has a processor of its "
                "own, and there {} {}; give fewer ranks, or use compare_layouts, which compares processor time",
                most, most, processors == 1 ? "is" : "are", processors);
        require(!use.device_per_rank || !config.mpi,
                "--mpi: rings on processors are timed with a thread for each rank; leave it out");
        make_world(ring_group(config, use.ranks.front()));
    }

    bool is_root() const override { return world_->is_root(); }

    bool agree(bool root_says) override { return world_->agree(root_says); }

private:
    void make_world(const layouts::RingGroup& group) {
        group_ = group;
        if (config_.mpi)
            world_ = reference::make_mpi_world(group);
        else
            world_ = std::make_unique<reference::ThreadWorld>(group);
        if (const auto fault = parse_machine_fault(config_.fault, group.world()); fault && !fault->is_of_process())
            slow_rank_ = fault->rank;
    }

    std::vector<RingRun> execute(const Plan& plan, const layouts::RingGroup& group,
                                 const RunOptions& options) override {
        if (group.ring != group_.ring || group.replicas != group_.replicas) make_world(group);
        std::vector<reference::Inputs> drawn;
        if (options.inputs.empty())
            drawn.assign(static_cast<std::size_t>(group.replicas),
                         generate_inputs("normal", plan.problem, options.seed).inputs);
        const reference::CpuOptions cpu{
            .tiles = {},
            .round_running_output = options.running_output_rounded,
            .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config_.timeout_seconds * 1e3)),
            .slow_rank = slow_rank_};
        const auto once = [&] {
            return reference::run(*world_, *plan.forward, plan.backward.get(),
                                  options.inputs.empty() ? std::span<const reference::Inputs>(drawn) : options.inputs,
                                  cpu);
        };
        const auto start = reference::Clock::now();
        for (int pass = 0; pass < options.warm_up || since(start) < options.warm_up_seconds; ++pass) once();
        std::vector<RingRun> rings;
        const auto begin = reference::Clock::now();
        for (int repeat = 0; repeat < options.repeats || since(begin) < options.repeat_seconds; ++repeat) {
            auto runs = once();
            rings.resize(runs.size());
            for (std::size_t replica = 0; replica < runs.size(); ++replica)
                take(rings[replica], std::move(runs[replica]), plan, options.keep_results);
        }
        if (options.timelines == Timelines::extra)
            for (auto& ring : rings)
                for (auto* pass : {&ring.forward, &ring.backward}) pass->timelines = {pass->timeline()};
        return rings;
    }

    /// Adds a repeat. Each pass starts when its inputs are distributed, not when the pass before ends, so there is no
    /// period. Nothing issues passes, so there is no issue time.
    void take(RingRun& ring, reference::CpuRun run, const Plan& plan, bool keep_results) const {
        ring.outputs = keep_results ? std::move(run.outputs) : reference::Outputs{};
        ring.o_unrounded = keep_results ? std::move(run.o_unrounded) : reference::Tensor{};
        const auto add = [&](PassRun& pass, layouts::Timeline timeline, std::vector<double> rotation) {
            pass.seconds.push_back(ends(timeline));
            pass.issue.emplace_back(pass.seconds.back().size(), 0.0);
            pass.timelines.push_back(std::move(timeline));
            if (!rotation.empty()) pass.rotation.push_back(std::move(rotation));
        };
        add(ring.forward, std::move(run.forward), std::move(run.rotation_seconds[0]));
        if (plan.backward) add(ring.backward, std::move(run.backward), std::move(run.rotation_seconds[1]));
        ring.memory.clear();
        for (std::size_t rank = 0; rank < run.own_bytes.size(); ++rank) {
            const auto results = std::min(run.own_bytes[rank], gradient_bytes(plan, static_cast<int>(rank)));
            ring.memory.push_back(
                {run.own_bytes[rank] - results, results, run.scratch_bytes[rank], run.workspace_bytes[rank]});
        }
        ring.devices.assign(ring.memory.size(), "processor");
        ring.clock_uncertainty = run.clock_uncertainty;
        ring.transport = config_.mpi ? "mpi" : "threads";
        ring.kernels = "processor";
    }

    const ExecutionConfig config_;
    layouts::RingGroup group_;
    std::unique_ptr<reference::World> world_;
    int slow_rank_ = -1;
};

class CpuKind : public BackendKind {
public:
    bool on_processors() const override { return true; }

    std::vector<std::string> transports() const override { return {"threads"}; }

    std::unique_ptr<Backend> open(const ExecutionConfig& config, const BackendUse& use) const override {
        return std::make_unique<CpuBackend>(config, use);
    }
};

const BackendRegistration registered_cpu("cpu", "processors of this machine: a thread for each rank",
                                         [] { return std::make_shared<CpuKind>(); });

}  // namespace
}  // namespace ringlab::experiments
