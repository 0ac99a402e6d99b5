#include "experiments/study/backend.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/study/backend_cuda.hpp"
#include "layouts/names.hpp"
#include "processes/session.hpp"
#include "reference/cpu/cpu_backend.hpp"
#include "reference/cpu/transport_mpi.hpp"
#include "reference/cpu/transport_threads.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <thread>

namespace ringlab::experiments {
namespace {

/// Ranks on this machine's processors, as threads or as MPI processes.
class CpuBackend : public Backend {
public:
    CpuBackend(const Config& config, int ranks)
        : transport_(config.transport == "mpi" ? "mpi" : "threads"),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)) {
        const auto group = ring_group(config, ranks);
        if (config.transport == "mpi")
            world_ = reference::make_mpi_world(group);
        else
            world_ = std::make_unique<reference::ThreadWorld>(group);
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
        std::vector<Measurement> measurements;
        for (auto& ring : reference::run(*world_, *plan.forward, plan.backward.get(), inputs, options)) {
            Measurement one{std::move(ring.outputs),
                            std::move(ring.o_unrounded),
                            std::move(ring.forward),
                            std::move(ring.backward),
                            {},
                            {},
                            {},
                            ring.clock_uncertainty};
            for (std::size_t rank = 0; rank < ring.scratch_bytes.size(); ++rank)
                one.memory_bytes.push_back(ring.scratch_bytes[rank] + ring.workspace_bytes[rank]);
            one.forward_seconds = ends(one.forward);
            one.backward_seconds = ends(one.backward);
            measurements.push_back(std::move(one));
        }
        return measurements;
    }

    static std::vector<double> ends(const layouts::Timeline& timeline) {
        std::vector<double> seconds(static_cast<std::size_t>(timeline.ranks));
        for (const auto& span : timeline.spans) {
            auto& end = seconds[static_cast<std::size_t>(span.rank)];
            end = std::max(end, layouts::to_seconds(span.end));
        }
        return seconds;
    }

    std::string transport_;
    std::chrono::milliseconds timeout_;
    std::unique_ptr<reference::World> world_;
};

}  // namespace

layouts::Registry<BackendFactory>& backends() {
    static auto registry = [] {
        layouts::Registry<BackendFactory> known("backend");
        known.add("cpu", {"cpu", "ranks on this machine's processors: threads, or MPI processes",
                          [](const Config& config, int ranks) { return std::make_unique<CpuBackend>(config, ranks); }});
        known.add("cuda", {"cuda", "ranks on NVIDIA GPUs, or taking turns on them", make_cuda_backend});
        return known;
    }();
    return registry;
}

std::unique_ptr<Backend> make_backend(const Config& config, int ranks) {
    return layouts::find_typed(backends(), "backend", config.backend).factory(config, ranks);
}

int run_in_session(const Config& config, int argc, char** argv, const std::function<int()>& body) {
    // Loading a kernel at its first launch can wait for all work of its device, which may be waiting for another GPU.
    if (config.backend == "cuda") setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (config.transport != "mpi" && !config.mpi) return body();
    const auto patience = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_seconds * 1e3));
    processes::Session session(argc, argv, patience,
                               "; what has finished is in the record, and --resume does the rest");
    end_on_hangup();  // MPI may have loaded UCX, which takes the signal
    try {
        return body();
    } catch (const std::exception& error) {
        // As a rule all processes fail alike: root says why, and ends the others before they say it again.
        if (session.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        session.end(shortened(error.what()));
    }
}

}  // namespace ringlab::experiments
