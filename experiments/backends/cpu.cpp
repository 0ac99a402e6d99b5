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

/// Ranks on this machine's processors, as threads or as MPI processes.
class CpuBackend : public Backend {
public:
    CpuBackend(const ExecutionConfig& config, int ranks)
        : transport_(config.mpi ? "mpi" : "threads"),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)) {
        const auto group = ring_group(config, ranks);
        if (config.mpi)
            world_ = reference::make_mpi_world(group);
        else
            world_ = std::make_unique<reference::ThreadWorld>(group);
        if (const auto fault = parse_machine_fault(config.fault, group.world()); fault && !fault->is_of_process())
            slow_rank_ = fault->rank;
    }

    bool is_root() const override { return world_->is_root(); }

    bool agree(bool root_says) override { return world_->agree(root_says); }

    std::vector<std::vector<Measurement>> run(const Plan& plan, const Policy& policy,
                                              std::span<const reference::Inputs> inputs, int repeats) override {
        std::vector<std::vector<Measurement>> all;
        for (int repeat = 0; repeat < repeats; ++repeat) {
            if (repeat > 0)
                for (auto& earlier : all.back()) earlier.outputs = {}, earlier.o_unrounded = {};
            all.push_back(run_once(plan, policy, inputs));
        }
        return all;
    }

    void describe(RunWriter& run) const override {
        run.attribute("backend", std::string("cpu"), "1", "what executed it");
        run.attribute("transport", transport_, "1", "how messages travelled");
        run.attribute("measured",
                      std::string("results, and each rank's processor time in its operations; ranks may "
                                  "share processors, and the time of a pass is then not that of P devices"));
    }

private:
    std::vector<Measurement> run_once(const Plan& plan, const Policy& policy,
                                      std::span<const reference::Inputs> inputs) {
        reference::CpuOptions options;
        options.round_running_output = policy.running_output_rounded;
        options.timeout = timeout_;
        options.slow_rank = slow_rank_;
        std::vector<Measurement> measurements;
        for (auto& ring : reference::run(*world_, *plan.forward, plan.backward.get(), inputs, options)) {
            Measurement one{std::move(ring.outputs),
                            std::move(ring.o_unrounded),
                            std::move(ring.forward),
                            std::move(ring.backward),
                            {},
                            {},
                            {},
                            {},
                            std::move(ring.rotation_seconds),
                            ring.clock_uncertainty};
            for (std::size_t rank = 0; rank < ring.scratch_bytes.size(); ++rank)
                one.memory_bytes.push_back(ring.scratch_bytes[rank] + ring.workspace_bytes[rank]);
            one.own_bytes = std::move(ring.own_bytes);
            one.forward_seconds = ends(one.forward);
            one.backward_seconds = ends(one.backward);
            measurements.push_back(std::move(one));
        }
        return measurements;
    }

    std::string transport_;
    std::chrono::milliseconds timeout_;
    std::unique_ptr<reference::World> world_;
    int slow_rank_ = -1;
};

/// Rings over this machine's processors, a thread for each rank.
class CpuBench : public Bench {
public:
    CpuBench(const ExecutionConfig& config, const TimingConfig& timing, const std::vector<int>& ranks,
             std::uint64_t seed)
        : timing_(timing),
          repeats_(config.repeats),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)),
          seed_(seed) {
        const int most = *std::max_element(ranks.begin(), ranks.end());
        const int processors = static_cast<int>(std::thread::hardware_concurrency());
        require(most <= processors,
                "--ranks {}: the time of a pass is that of {} devices only where every rank has a processor of its "
                "own, and there {} {}; give fewer ranks, or use compare_layouts, which compares processor time",
                most, most, processors == 1 ? "is" : "are", processors);
        require(!config.mpi, "--mpi: rings on processors are timed with a thread for each rank; leave it out");
    }

    bool is_root() const override { return true; }
    bool agree(bool root_says) override { return root_says; }
    void add_provenance(Provenance& provenance) const override { provenance.set("backend", "cpu"); }

    /// As many passes as were asked for, and until --seconds have passed, after those of the warm-up.
    RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string&,
                     const std::string&) override {
        const auto inputs = generate_inputs("normal", plan.problem, seed_).inputs;
        reference::ThreadWorld world(group);
        RingSamples samples;
        samples.kernels = {"processor", "processor"};
        samples.devices.assign(static_cast<std::size_t>(group.world()), "processor");
        const auto once = [&] {
            reference::CpuOptions options;
            options.timeout = timeout_;
            return reference::run(world, *plan.forward, plan.backward.get(), inputs, options);
        };
        for (const auto begin = reference::Clock::now(); since(begin) < timing_.warm_up_seconds;) once();
        std::vector<layouts::Timeline> forward, backward;
        const auto begin = reference::Clock::now();
        for (int repeat = 0; repeat < repeats_ || since(begin) < timing_.repeat_seconds; ++repeat) {
            auto run = once();
            forward.push_back(std::move(run.forward));
            backward.push_back(std::move(run.backward));
            samples.clock_uncertainty = run.clock_uncertainty;
            samples.memory.clear();
            for (std::size_t rank = 0; rank < run.scratch_bytes.size(); ++rank)  // results as a GPU keeps them
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

    /// Samples of these passes, with the timeline of a median pass. Each pass starts when its inputs are distributed,
    /// not when the pass before ends, so there is no period. Nothing issues passes, so there is no issue time.
    static PassSamples samples_of(std::vector<layouts::Timeline> timelines) {
        PassSamples samples;
        for (const auto& timeline : timelines) {
            samples.seconds.push_back(ends(timeline));
            samples.issue.emplace_back(samples.seconds.back().size(), 0.0);
        }
        const auto middle = timelines.begin() + static_cast<std::ptrdiff_t>(timelines.size() / 2);
        std::nth_element(timelines.begin(), middle, timelines.end(),
                         [](const auto& a, const auto& b) { return a.makespan() < b.makespan(); });
        samples.timeline = std::move(*middle);
        return samples;
    }

    TimingConfig timing_;
    int repeats_;
    std::chrono::milliseconds timeout_;
    std::uint64_t seed_;
};

class CpuKind : public BackendKind {
public:
    bool on_processors() const override { return true; }

    std::unique_ptr<Backend> make(const ExecutionConfig& config, const std::string&, int ranks) const override {
        return std::make_unique<CpuBackend>(config, ranks);
    }

    std::unique_ptr<Bench> bench(const ExecutionConfig& config, const TimingConfig& timing,
                                 const std::vector<int>& ranks, std::uint64_t seed) const override {
        return std::make_unique<CpuBench>(config, timing, ranks, seed);
    }

    std::vector<std::string> transports() const override { return {"threads"}; }
};

const BackendRegistration registered_cpu("cpu", "processors of this machine: a thread for each rank",
                                         [] { return std::make_shared<CpuKind>(); });

}  // namespace
}  // namespace ringlab::experiments
