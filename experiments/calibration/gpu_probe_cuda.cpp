#include "experiments/calibration/gpu_probe.hpp"
#include "gpu/baselines/ceilings.hpp"
#include "gpu/baselines/device_attention.hpp"
#include "gpu/executor.hpp"
#include "gpu/kernels/clusters.hpp"
#include "gpu/steady.hpp"

#include <algorithm>

namespace ringlab::experiments {
namespace {

Timed timed(std::vector<double> seconds) {
    require(!seconds.empty(), "nothing was timed");
    std::sort(seconds.begin(), seconds.end());
    const auto count = seconds.size();
    const auto median = gpu::median(seconds);
    return {median, (seconds[count * 3 / 4] - seconds[count / 4]) / median};
}

Timed timed(const gpu::CallSamples& samples) {
    std::vector<double> all;
    for (const auto& round : samples.seconds) all.insert(all.end(), round.begin(), round.end());
    return timed(std::move(all));
}

class CudaProbe : public GpuProbe {
public:
    explicit CudaProbe(const std::string& kernels) : kernels_(gpu::kernel_family(kernels)), devices_(gpu::devices()) {
        require(!devices_.empty(), "--backend cuda: there is no NVIDIA GPU here, or no driver for it");
    }

    sim::Machine machine(const layouts::Problem& problem) const override {
        const gpu::DeviceScope scope(0);
        sim::Machine machine;
        machine.gpus_per_host = machine.nics_per_host = gpus();
        machine.multiprocessors = devices_.front().multiprocessors;
        for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
            auto& cost = pass == layouts::Pass::forward ? machine.forward : machine.backward;
            const auto family = gpu::resolve(kernels_, problem.head_dim, problem.value_dim);
            const auto items = gpu::kernel_items(family, pass, problem.head_dim, problem.value_dim);
            cost.head_dim = problem.head_dim;
            cost.value_dim = problem.value_dim;
            cost.item = items.are_key_tiles ? sim::Item::key_tile : sim::Item::query_tile;
            cost.tile_rows = items.tile.rows;
            cost.tile_keys = items.tile.keys;
            for (const int blocks : items.shared_by)
                if (const int clusters = gpu::clusters_at_a_time(blocks)) cost.groups.push_back({blocks, clusters});
        }
        return machine;
    }

    std::vector<Timed> attends(const Plan& plan, int rank, int block, const std::vector<std::string>& calls) override {
        const gpu::DeviceScope scope(0);
        // Milliseconds of work and a rest of four times as many: far from where power limits clocks.
        const gpu::TimingOptions options{5, 0.0015, 0, 4};
        auto attention = make(plan, rank, block);
        std::vector<gpu::TimedCall> timed_calls;
        for (const auto& call : calls) timed_calls.push_back(attention->call(call));
        std::vector<gpu::ClockSample> clocks;
        std::vector<Timed> all;
        for (const auto& samples : gpu::time_calls(timed_calls, options, nvml_, clocks)) all.push_back(timed(samples));
        return all;
    }

    Timed sustained(const Plan& plan, const std::string& call) override {
        const gpu::DeviceScope scope(0);
        auto attention = make(plan, 0, 0);
        const std::vector<gpu::TimedCall> calls{attention->call(call)};
        std::vector<gpu::ClockSample> clocks;
        return timed(gpu::time_calls(calls, {4, 0.15, 0.4, 0}, nvml_, clocks).front());
    }

    Timed issue(const Plan& plan) override {
        gpu::GpuOptions options;
        options.group = layouts::RingGroup(plan.layout().ranks(), 1);
        options.devices = {0};
        options.keep_results = false;
        options.timelines = gpu::Timelines::none;
        options.warm_up = 5;
        options.repeats = 30;
        options.kernels = kernels_;
        const auto team = gpu::make_thread_team(1);
        const auto run = gpu::run(*team, *plan.forward, nullptr, {}, options);
        double operations = 0;
        for (int rank = 0; rank < plan.layout().ranks(); ++rank) {
            auto ops = plan.forward->ops(rank);
            while (ops.next()) ++operations;
        }
        std::vector<double> seconds;
        for (const auto& ranks : run.front().forward.issue_seconds)
            seconds.push_back(*std::max_element(ranks.begin(), ranks.end()) / operations);
        return timed(std::move(seconds));
    }

    std::vector<TimedBusyLink> busy_links(const Plan& plan, const std::string& call,
                                          const std::vector<std::int64_t>& message_bytes) override {
        std::vector<TimedBusyLink> all;
        if (gpus() < 2) return all;
        std::vector<std::unique_ptr<gpu::DeviceAttention>> attentions;
        std::vector<gpu::TimedCall> calls;
        for (int device = 0; device < gpus(); ++device) {
            const gpu::DeviceScope scope(device);
            calls.push_back(attentions.emplace_back(make(plan, 0, 0))->call(call));
        }
        for (const auto bytes : message_bytes) {
            auto samples = gpu::time_busy_links(calls, bytes, 3);
            all.push_back({bytes, timed(std::move(samples.messages)), timed(std::move(samples.calls_alone)),
                           timed(std::move(samples.calls_beside))});
        }
        for (int device = 0; device < gpus(); ++device) {
            const gpu::DeviceScope scope(device);
            attentions[static_cast<std::size_t>(device)].reset();
        }
        return all;
    }

    int gpus() const override { return static_cast<int>(devices_.size()); }
    std::string device() const override { return devices_.front().name; }

    std::string kernels(const layouts::Problem& problem) const override {
        const gpu::DeviceScope scope(0);
        return to_string(gpu::resolve(kernels_, problem.head_dim, problem.value_dim));
    }

private:
    std::unique_ptr<gpu::DeviceAttention> make(const Plan& plan, int rank, int block) const {
        return std::make_unique<gpu::DeviceAttention>(plan.problem, plan.mask(), plan.layout().shard(rank),
                                                      plan.layout().shard(block), kernels_);
    }

    gpu::KernelFamily kernels_;
    std::vector<gpu::DeviceInfo> devices_;
    gpu::Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuProbe> make_gpu_probe(const std::string& kernels) { return std::make_unique<CudaProbe>(kernels); }

}  // namespace ringlab::experiments
