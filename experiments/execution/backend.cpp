#include "experiments/execution/backend.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/execution/hosts.hpp"
#include "experiments/execution/machine_fault.hpp"
#include "processes/session.hpp"

#include <thread>

namespace ringlab::experiments {
namespace {

[[noreturn]] void fail_without_accelerator() { fail("this backend times only rings; --backend cuda times devices"); }

}  // namespace

RunOptions judged_options(const ExecutionConfig& config, const Policy& policy,
                          std::span<const reference::Inputs> inputs, int repeats) {
    // The first passes of a device after a pause meet cold caches, clocks and connections.
    return {.inputs = inputs,
            .keep_results = config.keeps_results,
            .running_output_rounded = policy.running_output_rounded,
            .warm_up = repeats > 1 && !backend_kind(config)->on_processors() ? 2 : 0,
            .repeats = repeats};
}

RunOptions timed_options(const ExecutionConfig& config, const TimingConfig& timing, std::uint64_t seed) {
    return {.seed = seed,
            .keep_results = false,
            .round_results = true,
            .deterministic = timing.deterministic,
            .timelines = Timelines::extra,
            .warm_up = 3,
            .warm_up_seconds = timing.warm_up_seconds,
            .repeats = config.repeats,
            .repeat_seconds = timing.repeat_seconds};
}

std::vector<RingRun> Backend::run(const Plan& plan, const layouts::RingGroup& group, const RunOptions& options) {
    if (before_run_) before_run_();
    return execute(plan, group, options);
}

MemoryTrial Backend::try_memory(const Plan&, std::int64_t) { fail_without_accelerator(); }
DeviceTimes Backend::time_calls(const CallsWanted&, const CallTiming&) { fail_without_accelerator(); }
std::vector<LinkTimes> Backend::time_links(int, const std::vector<std::int64_t>&) { fail_without_accelerator(); }
std::vector<CallTimes> Backend::time_busy_links(const CallsWanted&, const std::string&, std::int64_t) {
    fail_without_accelerator();
}
sim::Machine Backend::bare_machine(const layouts::Problem&) { fail_without_accelerator(); }
std::string Backend::kernels(const layouts::Problem&) const { fail_without_accelerator(); }

layouts::Registry<BackendFactory>& backends() {
    static layouts::Registry<BackendFactory> registry("backend");
    return registry;
}

std::shared_ptr<const BackendKind> backend_kind(const ExecutionConfig& config) {
    const auto known = config.backends.find(config.backend);
    if (known != config.backends.end()) return known->second;
    return backends().find(config.backend).factory();
}

std::unique_ptr<Backend> make_backend(const ExecutionConfig& config, const BackendUse& use) {
    const auto kind = backend_kind(config);
    const auto fault = parse_machine_fault(config.fault, ring_group(config, use.ranks.front()).world());
    require(!fault || fault->is_of_process() || kind->on_processors(),
            "--fault {}: only --backend cpu can make it; stop and kill work everywhere", config.fault);
    require(!fault || !fault->is_of_process() || config.mpi,
            "--fault {}: only a process of its own can be stopped or killed; say --mpi, under mpirun", config.fault);
    auto backend = kind->open(config, use);
    if (fault && fault->is_of_process()) backend->before_run_ = [fault] { strike_soon(*fault); };
    return backend;
}

bool is_recorded(const ExecutionConfig& config, Backend& backend, bool root_says) {
    const bool recorded = backend.agree(root_says);
    if (config.mpi)
        processes::Session::current().advise("; what has finished is in the record, and --resume does the rest");
    return recorded;
}

int run_in_session(const ExecutionConfig& config, const std::string& configuration, int argc, char** argv,
                   const std::function<int()>& body) {
    backend_kind(config)->prepare();
    if (!config.mpi) return body();
    const auto patience = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_seconds * 1e3));
    processes::Session session(argc, argv, patience);
    end_on_hangup();  // MPI may have loaded UCX, which takes the signal
    try {
        require_alike(exchange(session, {version_text(), configuration}), session.hosts());
        return body();
    } catch (const std::exception& error) {
        // As a rule all processes fail alike: root says why, and ends the others before they say it again.
        if (session.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        session.end(shortened(error.what()));
    }
}

}  // namespace ringlab::experiments
