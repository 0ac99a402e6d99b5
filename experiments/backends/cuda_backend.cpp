#include "experiments/backends/cuda.hpp"

#include "experiments/execution/describe_clocks.hpp"
#include "experiments/execution/hosts.hpp"
#include "experiments/inputs/parallel.hpp"
#include "experiments/options/source.hpp"
#include "experiments/record/provenance.hpp"
#include "gpu/baselines/ceilings.hpp"
#include "gpu/execution/executor.hpp"
#include "reference/tensors/rounding.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

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

/// Ranks on the GPUs of this process, or of the processes of mpirun.
class CudaBackend : public Backend {
public:
    CudaBackend(const ExecutionConfig& config, const std::string& arithmetic, const CudaOptions& asked, int ranks)
        : keeps_results_(config.keeps_results) {
        const auto dtype = dtype_from(arithmetic);
        require(layouts::bytes_of(dtype) == 2,
                "--arithmetic {}: --backend cuda computes in bf16 or fp16; say --arithmetic bf16", arithmetic);
        devices_ = gpu::devices();
        // Of several hosts require_places() names the one that has none.
        require(config.mpi || !devices_.empty(),
                "--backend cuda: there is no NVIDIA GPU here, or no driver for it; --backend cpu needs none");
        options_.group = ring_group(config, ranks);
        options_.transport = choose_transport(asked.transport, config.mpi);
        options_.kernels = gpu::kernel_family(asked.kernels);
        options_.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_seconds * 1e3));
        team_ = config.mpi ? gpu::make_mpi_team() : gpu::make_thread_team(gpu::team_size(options_));
        if (config.mpi) require_places();
        require(!config.mpi || team_->size() == options_.group.world(), "{} ranks need as many processes, there are {}",
                options_.group.world(), team_->size());
    }

    bool is_root() const override { return team_->is_root(); }

    bool agree(bool root_says) override { return team_->agree(root_says); }

    bool draws_inputs() const override { return true; }

    std::optional<double> memory_read_rate() override {
        if (devices_.empty()) return std::nullopt;  // this process has no rank
        const gpu::DeviceScope scope(0);
        return gpu::read_bytes_per_second();
    }

    void add_provenance(Provenance& provenance) const override {
        add_cuda_provenance(provenance);
        if (options_.transport == gpu::TransportKind::mixed) add_pretended_hosts(provenance);
    }

    std::vector<std::vector<Measurement>> run(const Plan& plan, const Policy& policy,
                                              std::span<const reference::Inputs> inputs, int repeats) override {
        auto options = options_;
        options.round_running_output = policy.running_output_rounded;
        options.repeats = repeats;
        // The first passes after a pause meet cold caches, clocks and connections.
        options.warm_up = repeats > 1 ? warm_up_passes : 0;
        const auto dtype = plan.problem.dtype;
        std::vector<gpu::HostInputs> bits;
        for (const auto& replica : inputs)
            bits.push_back({patterns(replica.q, dtype), patterns(replica.k, dtype), patterns(replica.v, dtype),
                            patterns(replica.dout, dtype)});
        runs_ = gpu::run(*team_, *plan.forward, plan.backward.get(), bits, options);
        std::vector<std::vector<Measurement>> all(static_cast<std::size_t>(repeats));
        for (int repeat = 0; repeat < repeats; ++repeat)
            for (auto& ring : runs_)
                all[static_cast<std::size_t>(repeat)].push_back(
                    measurement(ring, repeat, repeat + 1 == repeats && keeps_results_, dtype));
        for (auto& ring : runs_) ring.outputs = {};
        note_kernels(plan);
        return all;
    }

    void describe(RunWriter& run) const override {
        run.attribute("backend", std::string("cuda"), "1", "what executed it");
        run.attribute("transport", std::string(to_string(options_.transport)), "1", "how messages travelled");
        for (const auto& [pass, family] : kernels_) run.attribute("kernels_" + pass, family);
        run.attribute("processes", team_->size() == team_->local_size() ? 1 : team_->size());
        run.attribute("measured", std::string(what_is_measured()));
        if (runs_.empty()) return;
        std::vector<std::string> names;
        for (const auto& ring : runs_) names.insert(names.end(), ring.devices.begin(), ring.devices.end());
        run.attribute("devices", names, "1", "GPUs, by replica and rank");
        std::vector<std::int64_t> memory;
        for (const auto& use : runs_.front().memory) memory.push_back(use.total());
        const auto ranks = static_cast<std::int64_t>(memory.size());
        run.dataset("measured/device_memory", std::move(memory), {{"rank", ranks}}, "B",
                    "most device memory of a rank: inputs, results and scratch");
        std::vector<gpu::ClockSample> samples;
        for (const auto& ring : runs_) samples.insert(samples.end(), ring.clocks.begin(), ring.clocks.end());
        describe_clocks(run, std::move(samples));
    }

private:
    static constexpr int warm_up_passes = 2;

    /// Throws Error unless the transport reaches all ranks and each has a GPU. Called by all processes.
    void require_places() const {
        auto& session = processes::Session::current();
        const auto& hosts = session.hosts();
        ProcessCard own{version_text(), {}};
        for (const auto& device : devices_) own.gpus.push_back(device.bus_id);
        require(options_.transport != gpu::TransportKind::copy || hosts.size() == 1,
                "--transport copy: copy engines reach the GPUs of one host, ranks are on {}; say --transport mixed",
                hosts_text(hosts));
        require_gpus(exchange(session, own), hosts, options_.transport != gpu::TransportKind::copy);
    }

    gpu::TransportKind choose_transport(const std::string& asked, bool mpi) const {
        using gpu::TransportKind;
        const int world = options_.group.world(), present = static_cast<int>(devices_.size());
        // A single rank has nobody to send to.
        if (!mpi && world == 1) return TransportKind::loopback;
        if (asked == "auto" && mpi)
            return processes::Session::current().hosts().size() > 1 ? TransportKind::mixed : TransportKind::copy;
        if (asked == "auto") return present >= world ? TransportKind::copy : TransportKind::loopback;
        require(asked != "loopback" || !mpi,
                "--transport loopback is for one process; under mpirun say --transport copy, mixed or nccl");
        if (asked == "loopback") return TransportKind::loopback;
        require(mpi || present >= world,
                "--transport {}: {} ranks need a GPU each, there {} {}; --transport loopback shares GPUs", asked, world,
                present == 1 ? "is" : "are", present);
        return gpu::transport_kind(asked);
    }

    bool takes_turns() const {
        return options_.transport == gpu::TransportKind::loopback &&
               static_cast<int>(devices_.size()) < options_.group.world();
    }

    const char* what_is_measured() const {
        return takes_turns()
                   ? "results, and each rank's device time in its operations; ranks take turns on the GPUs, so "
                     "the time of a pass and what overlaps are not those of a GPU per rank"
                   : "results, and the passes as they are: a GPU per rank, transfers and waiting included";
    }

    Measurement measurement(gpu::GpuRun& ring, int repeat, bool with_results, layouts::DType dtype) const {
        const auto at = static_cast<std::size_t>(repeat);
        Measurement one;
        if (with_results) {
            one.o_unrounded = widened<4>(ring.outputs.o);
            one.outputs = {reference::rounded(one.o_unrounded, dtype),
                           widened<3>(ring.outputs.lse),
                           widened<4>(ring.outputs.dq),
                           widened<4>(ring.outputs.dk),
                           widened<4>(ring.outputs.dv),
                           ring.outputs.dsinks};
        }
        one.forward = std::move(ring.forward.timelines[at]);
        one.forward_seconds = ring.forward.rank_seconds[at];
        if (!ring.backward.timelines.empty()) {
            one.backward = std::move(ring.backward.timelines[at]);
            one.backward_seconds = ring.backward.rank_seconds[at];
            if (!ring.forward.rotation_seconds.empty())
                one.rotation_seconds = {ring.forward.rotation_seconds[at], ring.backward.rotation_seconds[at]};
        }
        for (const auto& use : ring.memory) {
            one.memory_bytes.push_back(use.slots + use.work);
            one.own_bytes.push_back(use.inputs + use.results);
        }
        one.clock_uncertainty = ring.clock_uncertainty;
        return one;
    }

    /// What does each pass, for describe().
    void note_kernels(const Plan& plan) {
        using layouts::Pass;
        const auto family = gpu::resolve(options_.kernels, plan.problem).name();
        kernels_ = {{to_string(Pass::forward), family}};
        if (plan.backward) kernels_[to_string(Pass::backward)] = family;
    }

    bool keeps_results_;
    std::vector<gpu::DeviceInfo> devices_;
    gpu::GpuOptions options_;
    std::unique_ptr<gpu::Team> team_;
    std::vector<gpu::GpuRun> runs_;               // of the last run, for describe()
    std::map<std::string, std::string> kernels_;  // likewise, by pass
};

}  // namespace

void add_cuda_provenance(Provenance& provenance) {
    std::vector<std::string> names;
    for (const auto& device : gpu::devices()) names.push_back(device.name);
    provenance.set("devices", names);
    provenance.set("gpu_driver", gpu::Nvml().driver_version());
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess) provenance.set("cuda_driver", cuda_version(driver));
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) provenance.set("cuda_runtime", cuda_version(runtime));
    provenance.set("nccl", gpu::nccl_version());
}

void add_pretended_hosts(Provenance& provenance) {
    if (const int ranks = gpu::pretended_ranks_per_host(); ranks > 0)
        provenance.set("pretended_ranks_per_host", std::to_string(ranks));
}

std::unique_ptr<Backend> make_cuda_backend(const ExecutionConfig& config, const std::string& arithmetic,
                                           const CudaOptions& asked, int ranks) {
    return std::make_unique<CudaBackend>(config, arithmetic, asked, ranks);
}

}  // namespace ringlab::experiments
