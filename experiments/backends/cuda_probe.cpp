#include "experiments/backends/cuda.hpp"
#include "gpu/baselines/ceilings.hpp"
#include "gpu/baselines/device_attention.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/device/steady.hpp"
#include "gpu/execution/executor.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/transports/transport.hpp"

#include <fmt/format.h>

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
        machine.sms = devices_.front().multiprocessors;
        int cache = 0;
        RINGLAB_CUDA(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0));
        machine.cache_bytes = cache;
        machine.forward = bare_cost(layouts::Pass::forward, problem.head_dim, problem.value_dim);
        machine.backward = bare_cost(layouts::Pass::backward, problem.head_dim, problem.value_dim);
        machine.split_kv.rows = gpu::resolve(kernels_, problem.head_dim, problem.value_dim).split_kv_rows();
        const auto own = gpu::dim_class(problem.head_dim, problem.value_dim);
        for (const auto& [head, value] : gpu::dims_of_classes())
            for (const auto scores : {sim::Scores::plain, sim::Scores::capped}) {
                const bool is_capped = scores == sim::Scores::capped;
                if (gpu::dim_class(head, value) == own && !is_capped) continue;
                machine.kernels.push_back({fmt::format("d{}{}{}", head, value == head ? "" : fmt::format("_{}", value),
                                                       is_capped ? "_capped" : ""),
                                           scores, bare_cost(layouts::Pass::forward, head, value),
                                           bare_cost(layouts::Pass::backward, head, value)});
            }
        if (machine.split_kv.rows > 0) machine.split_kv.groups = machine.backward.groups;  // clusters of as many blocks
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

    TimedSustained sustained(const Plan& plan, const std::string& call, int device) override {
        const gpu::DeviceScope scope(device);
        auto attention = make(plan, 0, 0);
        const std::vector<gpu::TimedCall> calls{attention->call(call)};
        std::vector<gpu::ClockSample> clocks;
        TimedSustained found{timed(gpu::time_calls(calls, {4, 0.15, 0.4, 0}, nvml_, clocks).front())};
        for (const auto& clock : clocks) found.clock_hertz += clock.sm_mhz * 1e6 / static_cast<double>(clocks.size());
        return found;
    }

    std::vector<TimedPass> passes(const Plan& plan, const std::string& transport) override {
        auto options = options_of(plan, gpu::transport_kind(transport));
        // Passes whose operations are timed take longer: the whole is timed without.
        options.timelines = gpu::Timelines::none;
        const auto whole = run(plan, options);
        options.timelines = gpu::Timelines::all;
        const auto parts = run(plan, options);
        return {timed_pass(whole.forward, parts.forward), timed_pass(whole.backward, parts.backward)};
    }

    std::vector<Timed> rotations(const Plan& plan) override {
        auto options = options_of(plan, gpu::TransportKind::loopback);
        options.timelines = gpu::Timelines::none;
        const auto found = run(plan, options);
        return {timed(slowest(found.forward.rotation_seconds)), timed(slowest(found.backward.rotation_seconds))};
    }

    std::vector<TimedBusyLink> busy_links(const Plan& plan, const std::string& call, const std::string& transport,
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
            const int most_blocks = transport == "nccl" ? all_blocks : 0;
            auto samples = gpu::time_busy_links(calls, bytes, 3, transport, most_blocks);
            if (samples.messages.empty()) continue;
            all.push_back({bytes, timed(std::move(samples.messages)), timed(std::move(samples.calls_alone)),
                           timed(std::move(samples.calls_beside))});
        }
        for (int device = 0; device < gpus(); ++device) {
            const gpu::DeviceScope scope(device);
            attentions[static_cast<std::size_t>(device)].reset();
        }
        return all;
    }

    std::optional<Timed> matrix_product() override {
        const gpu::DeviceScope scope(0);
        const gpu::MatrixProduct product;
        if (!product.available()) return {};
        const std::vector<gpu::TimedCall> calls{product.call()};
        std::vector<gpu::ClockSample> clocks;
        auto found = timed(gpu::time_calls(calls, {4, 0.1, 0.2, 0}, nvml_, clocks).front());
        found.median = gpu::MatrixProduct::flop / found.median;
        return found;
    }

    std::vector<std::string> transports() const override {
        if (gpus() < 2) return {};
        std::vector<std::string> names{"copy"};
        if (gpu::nccl_version() != "none") names.push_back("nccl");
        return names;
    }

    void add_provenance(Provenance& provenance) const override { add_cuda_provenance(provenance); }

    int gpus() const override { return static_cast<int>(devices_.size()); }
    std::string device() const override { return devices_.front().name; }

    std::string kernels(const layouts::Problem& problem) const override {
        const gpu::DeviceScope scope(0);
        return gpu::resolve(kernels_, problem.head_dim, problem.value_dim).name();
    }

private:
    static constexpr int all_blocks = 32;  // for a kernel of NCCL: as many as it takes of its own accord, or more

    /// With no times.
    sim::AttentionCost bare_cost(layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim) const {
        const auto items = gpu::resolve(kernels_, head_dim, value_dim).work_tiles(pass, head_dim, value_dim);
        sim::AttentionCost cost;
        cost.head_dim = head_dim;
        cost.value_dim = value_dim;
        cost.work_tile = items.are_key_tiles ? sim::WorkTile::key_tile : sim::WorkTile::query_tile;
        cost.tile_rows = items.tile.rows;
        cost.tile_keys = items.tile.keys;
        for (const int blocks : items.shared_by)
            if (const int clusters = gpu::clusters_at_a_time(blocks)) cost.groups.push_back({blocks, clusters});
        return cost;
    }

    gpu::GpuOptions options_of(const Plan& plan, gpu::TransportKind transport) const {
        gpu::GpuOptions options;
        options.transport = transport;
        options.group = layouts::RingGroup(plan.layout().ranks(), 1);
        const int devices = transport == gpu::TransportKind::loopback ? 1 : options.group.world();
        for (int device = 0; device < devices; ++device) options.devices.push_back(device);
        options.round_results = true;
        options.keep_results = false;
        options.kernels = kernels_;
        options.timeout = std::chrono::seconds(30);
        options.warm_up = 4;
        options.repeats = 12;
        return options;
    }

    static gpu::GpuRun run(const Plan& plan, const gpu::GpuOptions& options) {
        const auto team = gpu::make_thread_team(gpu::team_size(options));
        return std::move(gpu::run(*team, *plan.forward, plan.backward.get(), {}, options).front());
    }

    static std::vector<double> slowest(const std::vector<std::vector<double>>& by_repeat) {
        std::vector<double> all;
        for (const auto& ranks : by_repeat) all.push_back(*std::max_element(ranks.begin(), ranks.end()));
        return all;
    }

    /// Its time from `whole`, its operations' from `parts`.
    static TimedPass timed_pass(const gpu::PassRun& whole, const gpu::PassRun& parts) {
        TimedPass pass{timed(slowest(whole.rank_seconds)), whole.period_seconds, {}};
        for (std::size_t i = 0; i < parts.timelines.front().spans.size(); ++i) {
            std::vector<double> posted, begins, seconds;
            for (const auto& timeline : parts.timelines) {
                const auto& span = timeline.spans[i];
                posted.push_back(layouts::to_seconds(span.posted));
                begins.push_back(layouts::to_seconds(span.begin));
                seconds.push_back(layouts::to_seconds(span.end - span.begin));
            }
            const auto& span = parts.timelines.front().spans[i];
            pass.operations.push_back({span.rank, span.op, gpu::median(std::move(posted)),
                                       gpu::median(std::move(begins)), timed(std::move(seconds))});
        }
        return pass;
    }

    std::unique_ptr<gpu::DeviceAttention> make(const Plan& plan, int rank, int block) const {
        return std::make_unique<gpu::DeviceAttention>(plan.problem, plan.mask(), plan.layout().shard(rank),
                                                      plan.layout().shard(block), kernels_);
    }

    const gpu::KernelFamily* kernels_;
    std::vector<gpu::DeviceInfo> devices_;
    gpu::Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuProbe> make_cuda_probe(const std::string& kernels) { return std::make_unique<CudaProbe>(kernels); }

}  // namespace ringlab::experiments
