#include "experiments/execution/backend.hpp"
#include "experiments/execution/machine_fault.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "reference/ranks/faulty_world.hpp"
#include "reference/ranks/transports/checksums.hpp"
#include "reference/ranks/transports/transport_mpi.hpp"
#include "reference/ranks/transports/transport_threads.hpp"

namespace ringlab::experiments {
namespace {

/// Ranks on this machine's processors, as threads or as MPI processes.
class CpuBackend : public Backend {
public:
    CpuBackend(const Config& config, bool checksums, int ranks)
        : transport_(config.mpi ? "mpi" : "threads"),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)) {
        const auto group = ring_group(config, ranks);
        if (config.mpi)
            world_ = reference::make_mpi_world(group);
        else
            world_ = std::make_unique<reference::ThreadWorld>(group);
        if (const auto fault = parse_machine_fault(config.fault, group.world()); fault && !fault->is_of_process()) {
            using Kind = reference::WorldFault::Kind;
            const auto kind = fault->kind == MachineFault::Kind::slow ? Kind::slow : Kind::flips_a_bit;
            world_ = with_fault(std::move(world_), {.kind = kind, .rank = fault->rank});
        }
        if (checksums) world_ = with_checksums(std::move(world_));
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

class CpuKind : public BackendKind {
public:
    std::vector<Option> options() override {
        return {{.name = "checksums",
                 .value = "",
                 .help = "a checksum behind every message: one that is not what was sent ends the run and is named",
                 .target = &checksums_}};
    }

    bool on_processors() const override { return true; }

    std::unique_ptr<Backend> make(const Config& config, int ranks) const override {
        return std::make_unique<CpuBackend>(config, checksums_, ranks);
    }

private:
    bool checksums_ = false;
};

const BackendRegistration registered_cpu("cpu", "processors of this machine: a thread for each rank",
                                         [] { return std::make_shared<CpuKind>(); });

}  // namespace
}  // namespace ringlab::experiments
