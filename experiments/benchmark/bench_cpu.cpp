#include "experiments/benchmark/bench.hpp"
#include "experiments/inputs/inputs.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "reference/ranks/transports/transport_threads.hpp"

#include <algorithm>
#include <thread>

namespace ringlab::experiments {
namespace {

/// Rings over this machine's processors, a thread for each rank.
class CpuRingBench : public RingBench {
public:
    explicit CpuRingBench(const Config& config) : config_(config) {
        const int most = *std::max_element(config.ranks.begin(), config.ranks.end());
        const int processors = static_cast<int>(std::thread::hardware_concurrency());
        require(most <= processors,
                "--ranks {}: the time of a pass is that of {} devices only where every rank has a processor of its "
                "own, and there {} {}; give fewer ranks, or use compare_layouts, which compares processor time",
                most, most, processors == 1 ? "is" : "are", processors);
        require(!config.mpi, "--mpi: rings on processors are timed with threads for ranks");
    }

    bool is_root() const override { return true; }
    bool agree(bool root_says) override { return root_says; }
    void add_provenance(Provenance& provenance) const override { provenance.set("backend", "cpu"); }

    /// As many passes as were asked for, and until --seconds have passed, after those of the warm-up.
    RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string&,
                     const std::string&) override {
        const auto inputs = generate_inputs("normal", plan.problem, config_.seed).inputs;
        reference::ThreadWorld world(group);
        RingSamples samples;
        samples.kernels = {"processor", "processor"};
        samples.devices.assign(static_cast<std::size_t>(group.world()), "processor");
        const auto once = [&] {
            reference::CpuOptions options;
            options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config_.timeout_seconds * 1e3));
            return reference::run(world, *plan.forward, plan.backward.get(), inputs, options);
        };
        for (const auto begin = reference::Clock::now(); since(begin) < config_.warm_up_seconds;) once();
        std::vector<layouts::Timeline> forward, backward;
        const auto begin = reference::Clock::now();
        for (int repeat = 0; repeat < config_.repeats || since(begin) < config_.repeat_seconds; ++repeat) {
            auto run = once();
            forward.push_back(std::move(run.forward));
            backward.push_back(std::move(run.backward));
            samples.clock_uncertainty = run.clock_uncertainty;
            samples.memory.clear();
            for (std::size_t rank = 0; rank < run.scratch_bytes.size(); ++rank)
                samples.memory.push_back({0, gradient_bytes(plan, static_cast<int>(rank)), run.scratch_bytes[rank],
                                          run.workspace_bytes[rank]});
        }
        samples.forward = samples_of(std::move(forward));
        samples.backward = samples_of(std::move(backward));
        return samples;
    }

private:
    static double since(reference::Clock::time_point begin) {
        return std::chrono::duration<double>(reference::Clock::now() - begin).count();
    }

    /// Of the results that count as such, which a GPU keeps in the problem's dtype.
    static std::int64_t gradient_bytes(const Plan& plan, int rank) {
        const auto& p = plan.problem;
        const auto row = p.query_heads * p.head_dim + p.kv_heads * (p.head_dim + p.value_dim);
        return p.batch * plan.layout().shard_tokens(rank) * row * layouts::bytes_of(p.dtype);
    }

    /// With the timeline of a median pass. Passes follow the distribution of inputs, not each other: they have no
    /// period, and nothing issues them.
    static PassSamples samples_of(std::vector<layouts::Timeline> timelines) {
        PassSamples samples;
        for (const auto& timeline : timelines) {
            auto& seconds = samples.seconds.emplace_back(static_cast<std::size_t>(timeline.ranks), 0.0);
            for (const auto& span : timeline.spans) {
                auto& end = seconds[static_cast<std::size_t>(span.rank)];
                end = std::max(end, layouts::to_seconds(span.end));
            }
            samples.issue.emplace_back(seconds.size(), 0.0);
        }
        const auto middle = timelines.begin() + static_cast<std::ptrdiff_t>(timelines.size() / 2);
        std::nth_element(timelines.begin(), middle, timelines.end(),
                         [](const auto& a, const auto& b) { return a.makespan() < b.makespan(); });
        samples.timeline = std::move(*middle);
        return samples;
    }

    Config config_;
};

const RingBenchRegistration registered_cpu_rings("cpu", "processors of this machine, one for each rank",
                                                 {{"threads"}, [](const Config& config) {
                                                      return std::make_unique<CpuRingBench>(config);
                                                  }});

}  // namespace
}  // namespace ringlab::experiments
