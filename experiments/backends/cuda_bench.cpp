#include "experiments/backends/cuda.hpp"
#include "gpu/baselines/ceilings.hpp"
#include "gpu/baselines/cudnn.hpp"
#include "gpu/baselines/device_attention.hpp"
#include "gpu/device/occupied_memory.hpp"
#include "gpu/device/steady.hpp"
#include "gpu/execution/executor.hpp"

#include <algorithm>

namespace ringlab::experiments {
namespace {

class CudaBench : public Bench {
public:
    CudaBench(const ExecutionConfig& config, const TimingConfig& timing, const std::vector<int>& ranks)
        : timing_(timing),
          repeats_(config.repeats),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)),
          devices_(gpu::devices()) {
        require(!devices_.empty(), "it times GPUs, and there is no NVIDIA GPU here, or no driver for it");
        const int most = *std::max_element(ranks.begin(), ranks.end());
        if (config.mpi) mpi_team_ = gpu::make_mpi_team();
        require(config.mpi || static_cast<int>(devices_.size()) >= most,
                "--ranks {}: every rank needs a GPU of its own, there {} {}", most, devices_.size() == 1 ? "is" : "are",
                devices_.size());
        require(!mpi_team_ || (ranks.size() == 1 && mpi_team_->size() == most),
                "--mpi: {} ranks need as many processes, there are {}; give one --ranks", most,
                mpi_team_ ? mpi_team_->size() : 1);
    }

    bool is_root() const override { return !mpi_team_ || mpi_team_->is_root(); }

    bool agree(bool root_says) override { return mpi_team_ ? mpi_team_->agree(root_says) : root_says; }

    void add_provenance(Provenance& provenance) const override {
        add_cuda_provenance(provenance);
        if (std::ranges::count(timing_.transports, to_string(gpu::TransportKind::mixed)) > 0)
            add_pretended_hosts(provenance);
        provenance.set("cudnn", cudnn_.available() ? cudnn_.version() : cudnn_.why_not());
    }

    RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string& transport,
                     const std::string& kernels) override {
        auto options = ring_options(group, transport);
        options.kernels = gpu::kernel_family(kernels);
        options.timelines = gpu::Timelines::extra;
        options.warm_up = 3;
        options.warm_up_seconds = timing_.warm_up_seconds;
        options.repeats = repeats_;
        options.repeat_seconds = timing_.repeat_seconds;
        const auto own_team = mpi_team_ ? nullptr : gpu::make_thread_team(gpu::team_size(options));
        auto samples =
            samples_of(gpu::run(mpi_team_ ? *mpi_team_ : *own_team, *plan.forward, plan.backward.get(), {}, options));
        samples.kernels = kernels_used(plan, kernels);
        return samples;
    }

    MemoryTrial trial(const Plan& plan, std::int64_t occupied) override {
        const int ranks = plan.layout().ranks();
        const layouts::RingGroup group{.ring = ranks};
        auto options = ring_options(group, "copy");
        options.timelines = gpu::Timelines::none;
        return trial_unless_full([&] {
            MemoryTrial trial;
            const gpu::OccupiedMemory others(ranks, occupied);
            const auto team = gpu::make_thread_team(gpu::team_size(options));
            const auto run = gpu::run(*team, *plan.forward, plan.backward.get(), {}, options).front();
            const auto slowest = [](const gpu::PassRun& pass) {
                if (pass.rank_seconds.empty()) return 0.0;
                return *std::max_element(pass.rank_seconds.front().begin(), pass.rank_seconds.front().end());
            };
            trial.least_free = others.least_free();
            trial.forward_seconds = slowest(run.forward);
            trial.backward_seconds = slowest(run.backward);
            return trial;
        });
    }

    DeviceSamples device(const Plan& plan, const std::string& kernels) override {
        DeviceSamples samples;
        const gpu::DeviceScope scope(0);
        samples.kernels = kernels_used(plan, kernels);
        const auto everything = plan.layout().shard(0);
        gpu::DeviceAttention own(plan.problem, plan.mask(), everything, everything, gpu::kernel_family(kernels));
        std::vector<gpu::TimedCall> calls;
        for (const auto* name : {"forward", "forward_carried", "backward", "backward_kernel", "backward_deterministic"})
            calls.push_back(own.call(name));
        try {
            const auto theirs = cudnn_.calls(plan.problem, plan.mask());
            calls.insert(calls.begin() + 1, theirs.begin(), theirs.end());
        } catch (const Error& error) {
            samples.absent.emplace_back("cudnn", error.what());
        }
        time(calls, samples);
        return samples;
    }

    CeilingSamples ceilings(int devices) override {
        CeilingSamples samples;
        samples.flop = gpu::MatrixProduct::flop;
        {
            const gpu::DeviceScope scope(0);
            const gpu::MatrixProduct product;
            if (product.available())
                time({product.call()}, samples.products);
            else
                samples.products.absent.emplace_back("matrix_product", product.why_not());
        }
        if (mpi_team_) return samples;
        constexpr std::int64_t mebibyte = 1 << 20;
        for (auto& link : gpu::time_links(devices, {8 * mebibyte, 32 * mebibyte, 128 * mebibyte}, 10))
            samples.links.push_back({link.transport, link.bytes, std::move(link.seconds)});
        return samples;
    }

private:
    gpu::GpuOptions ring_options(const layouts::RingGroup& group, const std::string& transport) const {
        gpu::GpuOptions options;
        // Ranks that do the same work side by side exchange nothing, and name no transport. They may be on several
        // hosts.
        options.transport = group.world() == 1  ? gpu::TransportKind::loopback
                            : transport.empty() ? gpu::TransportKind::mixed
                                                : gpu::transport_kind(transport);
        options.group = group;
        if (!mpi_team_)
            for (int device = 0; device < group.world(); ++device) options.devices.push_back(device);
        options.round_results = true;
        options.keep_results = false;
        options.deterministic = timing_.deterministic;
        options.timeout = timeout_;
        return options;
    }

    static KernelsUsed kernels_used(const Plan& plan, const std::string& asked) {
        const auto family = gpu::resolve(gpu::kernel_family(asked), plan.problem).name();
        return {family, family};
    }

    void time(const std::vector<gpu::TimedCall>& calls, DeviceSamples& samples) const {
        if (std::ranges::count(timing_.protocols, "burst") > 0)  // before the device is warm
            for (auto& call : gpu::time_bursts(calls, {}, nvml_, samples.clocks))
                samples.bursts.push_back({call.name, std::move(call.seconds)});
        if (std::ranges::count(timing_.protocols, "sustained") == 0) return;
        constexpr int rounds = 5;
        const gpu::TimingOptions options{rounds, timing_.repeat_seconds / rounds, timing_.warm_up_seconds};
        auto timed = gpu::time_calls(calls, options, nvml_, samples.clocks);
        for (auto& call : timed) samples.calls.push_back({call.name, std::move(call.seconds)});
    }

    /// Rings beside each other become one, with their ranks in a row.
    static RingSamples samples_of(std::vector<gpu::GpuRun> runs) {
        RingSamples samples;
        const auto join = [&](PassSamples& pass, gpu::PassRun& run) {
            pass.seconds.resize(run.rank_seconds.size());
            pass.issue.resize(run.issue_seconds.size());
            for (std::size_t repeat = 0; repeat < pass.seconds.size(); ++repeat) {
                const auto& seconds = run.rank_seconds[repeat];
                const auto& issue = run.issue_seconds[repeat];
                pass.seconds[repeat].insert(pass.seconds[repeat].end(), seconds.begin(), seconds.end());
                pass.issue[repeat].insert(pass.issue[repeat].end(), issue.begin(), issue.end());
            }
            if (pass.period == 0) pass.period = run.period_seconds;
            if (pass.timeline.spans.empty()) pass.timeline = std::move(run.timelines.front());
        };
        for (auto& run : runs) {
            join(samples.forward, run.forward);
            join(samples.backward, run.backward);
            for (const auto& use : run.memory) samples.memory.push_back({use.inputs, use.results, use.slots, use.work});
            samples.devices.insert(samples.devices.end(), run.devices.begin(), run.devices.end());
            samples.clocks.insert(samples.clocks.end(), run.clocks.begin(), run.clocks.end());
            samples.clock_uncertainty = std::max(samples.clock_uncertainty, run.clock_uncertainty);
        }
        return samples;
    }

    TimingConfig timing_;
    int repeats_;
    std::chrono::milliseconds timeout_;
    std::vector<gpu::DeviceInfo> devices_;
    gpu::Nvml nvml_;
    gpu::Cudnn cudnn_{timing_.cudnn};
    std::unique_ptr<gpu::Team> mpi_team_;
};

}  // namespace

std::unique_ptr<Bench> make_cuda_bench(const ExecutionConfig& config, const TimingConfig& timing,
                                       const std::vector<int>& ranks) {
    return std::make_unique<CudaBench>(config, timing, ranks);
}

}  // namespace ringlab::experiments
