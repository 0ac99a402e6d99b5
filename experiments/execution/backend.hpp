#pragma once

#include "experiments/execution/ring_run.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/options/options.hpp"
#include "experiments/record/provenance.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/ring_group.hpp"
#include "sim/machine/machine.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::experiments {

using layouts::Timelines;

/// How the passes of a plan are executed, and what is kept of them.
struct RunOptions {
    std::span<const reference::Inputs> inputs = {};  ///< one per replica; none: drawn by `seed`, to be timed alone
    std::uint64_t seed = 1;
    bool keep_results = true;             ///< bring them to the host, as accumulated, to be judged or saved
    bool round_results = false;           ///< leave them in the problem's dtype, as a model wants them
    bool running_output_rounded = false;  ///< see Policy
    bool deterministic = false;           ///< dq in a fixed order
    /// By name; empty: as the user chose. "loopback" has all ranks take turns on the first GPU.
    std::string transport = {}, kernels = {};
    Timelines timelines = Timelines::all;
    int warm_up = 0;             ///< least number of passes before those that are kept
    double warm_up_seconds = 0;  ///< and least time
    int repeats = 1;             ///< least number of passes that are kept
    double repeat_seconds = 0;   ///< and least time
};

/// As results are made that are judged, `repeats` times.
RunOptions judged_options(const ExecutionConfig& config, const Policy& policy,
                          std::span<const reference::Inputs> inputs, int repeats);

/// As `throughput` times rings: until clocks and power are steady.
RunOptions timed_options(const ExecutionConfig& config, const TimingConfig& timing, std::uint64_t seed);

using gpu::CallTiming;

/// Calls on one device: our own kernels by the names of gpu::DeviceAttention, "matrix_product".
struct CallsWanted {
    const Plan* plan = nullptr;  ///< of all but matrix products
    int rank = 0, block = 0;     ///< whose rows attend to whose keys
    std::vector<std::string> names = {};
    std::string kernels = {};  ///< family; empty: as the user chose
    int device = 0;
};

/// FLOP of a "matrix_product": two square matrices.
inline constexpr double matrix_product_flop = 2.0 * 8192 * 8192 * 8192;

/// What executes schedules and times devices: the one place where an experiment meets a device.
class Backend {
public:
    virtual ~Backend() = default;

    /// Whether this process has the results, writes the record and talks to the user.
    virtual bool is_root() const { return true; }

    /// Returns on every process what the root process gave as `root_says`. All processes call it.
    virtual bool agree(bool root_says) { return root_says; }

    /// Writes what it knows of the devices.
    virtual void add_provenance(Provenance&) const {}

    /// Executes both passes of a plan: a result for each replica of the group; none on processes that are not root.
    std::vector<RingRun> run(const Plan& plan, const layouts::RingGroup& group, const RunOptions& options);

    // Of accelerators; other backends throw Error, or know nothing.

    /// Bytes per second at which a device reads its memory, measured anew.
    virtual std::optional<double> memory_read_rate() { return std::nullopt; }

    /// One pass of each kind beside `occupied` bytes of each device, not warmed up.
    virtual MemoryTrial try_memory(const Plan& plan, std::int64_t occupied);

    virtual DeviceTimes time_calls(const CallsWanted& wanted, const CallTiming& timing);

    /// Links between the first `devices` devices.
    virtual std::vector<LinkTimes> time_links(int devices, const std::vector<std::int64_t>& message_bytes);

    /// Messages between all devices beside a call of a plan of one rank: "message", "alone" (the call without messages)
    /// and "beside". Empty if there is one device, or no such transport.
    virtual std::vector<CallTimes> time_busy_links(const CallsWanted& wanted, const std::string& transport,
                                                   std::int64_t message_bytes);

    /// A machine of these devices with the work tiles of the problem's kernels and of all others, without times.
    virtual sim::Machine bare_machine(const layouts::Problem& problem);

    /// Names of the devices of this process.
    virtual std::vector<std::string> devices() const { return {}; }
    /// Transports between them that this program has.
    virtual std::vector<std::string> transports() const { return {}; }
    /// Name of the kernel family that computes the problem.
    virtual std::string kernels(const layouts::Problem& problem) const;

private:
    virtual std::vector<RingRun> execute(const Plan& plan, const layouts::RingGroup& group,
                                         const RunOptions& options) = 0;
    friend std::unique_ptr<Backend> make_backend(const ExecutionConfig&, const struct BackendUse&);
    std::function<void()> before_run_;  // makes the fault of --fault
};

/// What a backend is opened for.
struct BackendUse {
    std::vector<int> ranks = {1};  ///< sizes of the rings
    std::string arithmetic = "bf16";
    bool device_per_rank = false;  ///< times are reported, so ranks must not share devices
};

/// A backend that a user can choose by name, and its own options.
class BackendKind {
public:
    virtual ~BackendKind() = default;

    /// Adds the options that only this backend has. Their targets are members of this object.
    virtual void add_options(Options&) {}

    /// Sets up the environment of this process, before anything that belongs to MPI or a device is used.
    virtual void prepare() const {}

    /// Whether its ranks compute on the processors of this machine.
    virtual bool on_processors() const { return false; }

    /// Transports that rings on these devices can use, the usual one first.
    virtual std::vector<std::string> transports() const = 0;

    /// Throws Error if it was not built, finds no devices, or cannot do what is asked for.
    virtual std::unique_ptr<Backend> open(const ExecutionConfig& config, const BackendUse& use) const = 0;
};

using BackendFactory = std::function<std::shared_ptr<BackendKind>()>;
layouts::Registry<BackendFactory>& backends();

/// A namespace-scope object of this type makes a backend known by name.
struct BackendRegistration {
    BackendRegistration(const std::string& name, std::string help, BackendFactory factory) {
        backends().add({name, std::move(help), std::move(factory)});
    }
};

/// The one that the configuration names. Throws Error that lists the known ones.
std::shared_ptr<const BackendKind> backend_kind(const ExecutionConfig& config);

/// The backend that the configuration names, with the fault that --fault asks for. Throws Error as BackendKind::open()
/// does, and if the fault cannot be made there.
std::unique_ptr<Backend> make_backend(const ExecutionConfig& config, const BackendUse& use);

/// Returns on every process whether the record holds a run, which only the root process knows (`root_says`). After
/// this call the error line of a process that ends because another one is gone also says that finished runs are in the
/// record. All processes call it.
bool is_recorded(const ExecutionConfig& config, Backend& backend, bool root_says);

/// Calls `body`, inside an MPI session if the configuration asks for MPI. An error of one process then ends all
/// processes. So does a process whose `configuration` (a text) differs from that of the others.
int run_in_session(const ExecutionConfig& config, const std::string& configuration, int argc, char** argv,
                   const std::function<int()>& body);

}  // namespace ringlab::experiments
