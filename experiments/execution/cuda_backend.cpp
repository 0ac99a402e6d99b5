#include "experiments/execution/cuda.hpp"
#include "experiments/execution/hosts.hpp"
#include "experiments/inputs/parallel.hpp"
#include "experiments/options/config.hpp"
#include "gpu/baselines/ceilings.hpp"
#include "gpu/baselines/device_attention.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/execution/executor.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/transports/transport.hpp"
#include "processes/peers.hpp"
#include "reference/tensors/rounding.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

gpu::HostTensor<std::uint16_t> patterns(const reference::Tensor& tensor, layouts::DType dtype) {
    gpu::HostTensor<std::uint16_t> bits;
    for (std::size_t i = 0; i < 4; ++i) bits.shape[i] = static_cast<std::int64_t>(tensor.shape()[i]);
    bits.values.resize(tensor.size());
    for_parts(tensor.size(), [&](std::size_t begin, std::size_t end) {
        reference::to_bits(std::span<const double>(tensor.data() + begin, end - begin), dtype,
                           std::span(bits.values).subspan(begin, end - begin));
    });
    return bits;
}

/// To a tensor of the reference, whose lse has no dim.
template <std::size_t N>
xt::xtensor<double, N> widened(const gpu::HostTensor<float>& tensor) {
    std::array<std::size_t, N> shape;
    for (std::size_t i = 0; i < N; ++i) shape[i] = static_cast<std::size_t>(tensor.shape[i]);
    auto wide = xt::xtensor<double, N>::from_shape(shape);
    std::copy(tensor.values.begin(), tensor.values.end(), wide.data());
    return wide;
}

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

static_assert(2.0 * gpu::matrix_product_size * gpu::matrix_product_size * gpu::matrix_product_size ==
              matrix_product_flop);

/// Ranks on the GPUs of this process, or of the processes of mpirun.
class CudaBackend : public Backend {
public:
    CudaBackend(const ExecutionConfig& config, const BackendUse& use, const CudaOptions& asked)
        : mpi_(config.mpi),
          device_per_rank_(use.device_per_rank),
          timeout_(static_cast<std::int64_t>(config.timeout_seconds * 1e3)),
          asked_(asked),
          devices_(gpu::devices()) {
        require(layouts::bytes_of(dtype_from(use.arithmetic)) == 2,
                "--arithmetic {}: --backend cuda computes in bf16 or fp16; say --arithmetic bf16", use.arithmetic);
        // Of several hosts require_places() names the one that has none.
        require(mpi_ || !devices_.empty(),
                "--backend cuda: there is no NVIDIA GPU here, or no driver for it; --backend cpu needs none");
        const int most = std::ranges::max(use.ranks);
        require(!device_per_rank_ || mpi_ || static_cast<int>(devices_.size()) >= most,
                "--ranks {}: every rank needs a GPU of its own, there {} {}", most, devices_.size() == 1 ? "is" : "are",
                devices_.size());
        if (!mpi_) {
            if (!device_per_rank_) transport_for(ring_group(config, use.ranks.front()), "");  // refuse now, not midway
            return;
        }
        const int world = device_per_rank_ ? most : ring_group(config, use.ranks.front()).world();
        team_ = gpu::make_mpi_team();
        if (!device_per_rank_) require_places(transport_for(ring_group(config, use.ranks.front()), ""));
        require((!device_per_rank_ || use.ranks.size() == 1) && team_->size() == world,
                "--mpi: {} ranks need as many processes, there are {}", world, team_->size());
    }

    bool is_root() const override { return !team_ || team_->is_root(); }

    bool agree(bool root_says) override {
        if (!team_) return root_says;
        return team_->all_gather(team_->first_local(), {std::byte{root_says}}, processes::patiently).front().front() !=
               std::byte{0};
    }

    void add_provenance(Provenance& provenance) const override {
        provenance.set("devices", devices());
        provenance.set("gpu_driver", nvml_.driver_version());
        int driver = 0, runtime = 0;
        if (cudaDriverGetVersion(&driver) == cudaSuccess) provenance.set("cuda_driver", cuda_version(driver));
        if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) provenance.set("cuda_runtime", cuda_version(runtime));
        provenance.set("nccl", gpu::nccl_version());
        // How many ranks count as a host, if that is pretended: it matters over the transport `mixed`.
        if (const int ranks = gpu::pretended_ranks_per_host(); ranks > 0)
            provenance.set("pretended_ranks_per_host", std::to_string(ranks));
    }

    std::optional<double> memory_read_rate() override {
        if (devices_.empty()) return std::nullopt;  // this process has no rank
        const gpu::DeviceScope scope(0);
        return gpu::read_bytes_per_second();
    }

    MemoryTrial try_memory(const Plan& plan, std::int64_t occupied) override {
        const int ranks = plan.layout().ranks();
        const auto slowest_of = [](const PassRun& pass) {
            return pass.seconds.empty() ? 0.0 : slowest(pass.seconds)[0];
        };
        return trial_unless_full([&] {
            std::vector<gpu::DeviceBuffer> others;
            for (int device = 0; device < ranks; ++device) {
                const gpu::DeviceScope scope(device);
                others.emplace_back(static_cast<std::size_t>(occupied));
            }
            const auto rings = execute(
                plan, {.ring = ranks},
                {.keep_results = false, .round_results = true, .transport = "copy", .timelines = Timelines::none});
            return MemoryTrial{.least_free = rings.front().least_free,
                               .forward_seconds = slowest_of(rings.front().forward),
                               .backward_seconds = slowest_of(rings.front().backward)};
        });
    }

    DeviceTimes time_calls(const CallsWanted& wanted, const CallTiming& timing) override {
        const gpu::DeviceScope scope(wanted.device);
        DeviceTimes times;
        std::unique_ptr<gpu::DeviceAttention> own;
        std::vector<gpu::TimedCall> calls;
        if (wanted.plan) {
            times.kernels = family(wanted.plan->problem, wanted.kernels).name();
            own = attention(wanted);
        }
        for (const auto& name : wanted.names) {
            if (name != "matrix_product") {
                calls.push_back(own->call(name));
                continue;
            }
            try {
                calls.push_back(gpu::matrix_product());
            } catch (const Error& error) {
                times.absent.emplace_back(name, error.what());
            }
        }
        if (calls.empty()) return times;
        if (timing.bursts) times.bursts = gpu::time_bursts(calls, nvml_, times.clocks);  // before the device is warm
        if (timing.sustained) times.calls = gpu::time_calls(calls, timing, nvml_, times.clocks);
        return times;
    }

    std::vector<LinkTimes> time_links(int devices, const std::vector<std::int64_t>& message_bytes) override {
        if (team_) return {};
        return gpu::time_links(devices, message_bytes, 10);
    }

    std::vector<CallTimes> time_busy_links(const CallsWanted& wanted, const std::string& transport,
                                           std::int64_t message_bytes) override {
        const int gpus = static_cast<int>(devices_.size());
        if (gpus < 2) return {};
        std::vector<std::unique_ptr<gpu::DeviceAttention>> attentions;
        std::vector<gpu::TimedCall> calls;
        for (int device = 0; device < gpus; ++device) {
            const gpu::DeviceScope scope(device);
            calls.push_back(attentions.emplace_back(attention(wanted))->call(wanted.names.front()));
        }
        auto found = gpu::time_busy_links(calls, message_bytes, transport);
        for (int device = 0; device < gpus; ++device) {
            const gpu::DeviceScope scope(device);
            attentions[static_cast<std::size_t>(device)].reset();
        }
        return found;
    }

    sim::Machine bare_machine(const layouts::Problem& problem) override {
        const gpu::DeviceScope scope(0);
        sim::Machine machine;
        machine.gpus_per_host = machine.nics_per_host = static_cast<int>(devices_.size());
        machine.sms = devices_.front().multiprocessors;
        int cache = 0;
        RINGLAB_CUDA(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0));
        machine.cache_bytes = cache;
        machine.forward = bare_cost(layouts::Pass::forward, problem.head_dim, problem.value_dim);
        machine.backward = bare_cost(layouts::Pass::backward, problem.head_dim, problem.value_dim);
        machine.split_kv.rows = family(problem, "").split_kv_rows();
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

    std::vector<std::string> devices() const override {
        std::vector<std::string> names;
        for (const auto& device : devices_) names.push_back(device.name);
        return names;
    }

    std::vector<std::string> transports() const override {
        if (devices_.size() < 2) return {};
        std::vector<std::string> names{"copy"};
        if (gpu::nccl_version() != "none") names.push_back("nccl");
        return names;
    }

    std::string kernels(const layouts::Problem& problem) const override {
        const gpu::DeviceScope scope(0);
        return family(problem, "").name();
    }

private:
    std::vector<RingRun> execute(const Plan& plan, const layouts::RingGroup& group, const RunOptions& asked) override {
        gpu::GpuOptions options;
        options.group = group;
        options.transport = transport_for(group, asked.transport);
        if (asked.transport == to_string(gpu::TransportKind::loopback)) options.devices = {0};
        options.kernels = gpu::kernel_family(asked.kernels.empty() ? asked_.kernels : asked.kernels);
        options.timeout = timeout_;
        options.round_running_output = asked.running_output_rounded;
        options.round_results = asked.round_results;
        options.keep_results = asked.keep_results;
        options.deterministic = asked.deterministic;
        options.timelines = asked.timelines;
        options.warm_up = asked.warm_up;
        options.warm_up_seconds = asked.warm_up_seconds;
        options.repeats = asked.repeats;
        options.repeat_seconds = asked.repeat_seconds;
        const auto dtype = plan.problem.dtype;
        std::vector<gpu::HostInputs> bits;
        for (const auto& replica : asked.inputs)
            bits.push_back({patterns(replica.q, dtype), patterns(replica.k, dtype), patterns(replica.v, dtype),
                            patterns(replica.dout, dtype)});
        const auto own_team = team_ ? nullptr : gpu::make_thread_team(gpu::team_size(options));
        std::vector<RingRun> rings;
        for (auto& ring : gpu::run(team_ ? *team_ : *own_team, *plan.forward, plan.backward.get(), bits, options)) {
            auto& one = rings.emplace_back(ring_of(ring, asked.keep_results, dtype));
            one.transport = to_string(options.transport);
            one.kernels = gpu::resolve(options.kernels, plan.problem).name();
            one.takes_turns =
                options.transport == gpu::TransportKind::loopback && static_cast<int>(devices_.size()) < group.world();
        }
        return rings;
    }

    static RingRun ring_of(gpu::GpuRun& ring, bool with_results, layouts::DType dtype) {
        RingRun one;
        if (with_results) {
            one.o_unrounded = widened<4>(ring.outputs.o);
            one.outputs = {reference::rounded(one.o_unrounded, dtype),
                           widened<3>(ring.outputs.lse),
                           widened<4>(ring.outputs.dq),
                           widened<4>(ring.outputs.dk),
                           widened<4>(ring.outputs.dv),
                           ring.outputs.dsinks};
        }
        one.forward = std::move(ring.forward);
        one.backward = std::move(ring.backward);
        one.least_free = ring.least_free;
        for (const auto& use : ring.memory) one.memory.push_back({use.inputs, use.results, use.slots, use.work});
        one.devices = std::move(ring.devices);
        one.clocks = std::move(ring.clocks);
        one.clock_uncertainty = ring.clock_uncertainty;
        return one;
    }

    /// Throws Error unless the transport reaches all ranks and each has a GPU. Called by all processes.
    void require_places(gpu::TransportKind transport) const {
        auto& session = processes::Session::current();
        const auto& hosts = session.hosts();
        ProcessCard own{version_text(), {}};
        for (const auto& device : devices_) own.gpus.push_back(device.bus_id);
        require(transport != gpu::TransportKind::copy || hosts.size() == 1,
                "--transport copy: copy engines reach the GPUs of one host, ranks are on {}; say --transport mixed",
                hosts_text(hosts));
        require_gpus(exchange(session, own), hosts, transport != gpu::TransportKind::copy);
    }

    /// The transport that is asked for by name; without a name the one of --transport.
    gpu::TransportKind transport_for(const layouts::RingGroup& group, const std::string& name) const {
        using gpu::TransportKind;
        const int world = group.world(), present = static_cast<int>(devices_.size());
        // A single rank has nobody to send to.
        if (world == 1 && (!mpi_ || device_per_rank_)) return TransportKind::loopback;
        if (!name.empty()) return gpu::transport_kind(name);
        // Ranks that do the same work side by side exchange nothing, and name no transport. They may be on several
        // hosts.
        if (device_per_rank_) return TransportKind::mixed;
        const auto& asked = asked_.transport;
        if (asked == "auto" && mpi_)
            return processes::Session::current().hosts().size() > 1 ? TransportKind::mixed : TransportKind::copy;
        if (asked == "auto") return present >= world ? TransportKind::copy : TransportKind::loopback;
        require(asked != "loopback" || !mpi_,
                "--transport loopback is for one process; under mpirun say --transport copy, mixed or nccl");
        if (asked == "loopback") return TransportKind::loopback;
        require(mpi_ || present >= world,
                "--transport {}: {} ranks need a GPU each, there {} {}; --transport loopback shares GPUs", asked, world,
                present == 1 ? "is" : "are", present);
        return gpu::transport_kind(asked);
    }

    const gpu::KernelFamily& family(const layouts::Problem& problem, const std::string& name) const {
        return gpu::resolve(gpu::kernel_family(name.empty() ? asked_.kernels : name), problem);
    }

    std::unique_ptr<gpu::DeviceAttention> attention(const CallsWanted& wanted) const {
        const auto& plan = *wanted.plan;
        return std::make_unique<gpu::DeviceAttention>(
            plan.problem, plan.mask(), plan.layout().shard(wanted.rank), plan.layout().shard(wanted.block),
            gpu::kernel_family(wanted.kernels.empty() ? asked_.kernels : wanted.kernels));
    }

    /// With no times.
    sim::AttentionCost bare_cost(layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim) const {
        const auto& kernels = gpu::resolve(gpu::kernel_family(asked_.kernels), head_dim, value_dim);
        const auto items = kernels.work_tiles(pass, head_dim, value_dim);
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

    const bool mpi_, device_per_rank_;
    const std::chrono::milliseconds timeout_;
    const CudaOptions asked_;
    const std::vector<gpu::DeviceInfo> devices_;
    gpu::Nvml nvml_;
    std::unique_ptr<gpu::Team> team_;  // of processes
};

}  // namespace

std::unique_ptr<Backend> open_cuda(const ExecutionConfig& config, const BackendUse& use, const CudaOptions& asked) {
    return std::make_unique<CudaBackend>(config, use, asked);
}

}  // namespace ringlab::experiments
