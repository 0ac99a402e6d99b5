#pragma once

#include "experiments/execution/bench.hpp"
#include "experiments/execution/gpu_probe.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/options/options.hpp"
#include "experiments/record/record.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/timeline/timeline.hpp"
#include "reference/tensors/tensors.hpp"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Results and times of a forward and a backward pass of one ring.
struct Measurement {
    /// o rounded to the problem's dtype; gradients as accumulated. Only the last repeat has them, and only if they
    /// are judged or saved.
    reference::Outputs outputs;
    reference::Tensor o_unrounded;  ///< o before its last rounding
    layouts::Timeline forward, backward;
    /// Seconds by rank, from the pass's start on the first rank to its end on this one.
    std::vector<double> forward_seconds, backward_seconds;
    std::vector<std::int64_t> memory_bytes;  ///< by rank: scratch beyond inputs and results
    std::vector<std::int64_t> own_bytes;     ///< by rank: inputs and results
    /// Seconds by pass and rank of rotating q and k before the forward pass, and dq and dk after the backward pass.
    /// They are no part of the passes' seconds. Empty if nothing is rotated.
    std::array<std::vector<double>, 2> rotation_seconds{};
    double clock_uncertainty = 0;  ///< seconds by which times of different ranks may disagree

    const layouts::Timeline& timeline(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }
    const std::vector<double>& seconds(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward_seconds : backward_seconds;
    }
};

/// Something that executes schedules: the one place where an experiment meets a device.
class Backend {
public:
    virtual ~Backend() = default;

    /// Whether this process has the results, writes the record and talks to the user.
    virtual bool is_root() const = 0;

    /// Returns on every process what the root process gave as `root_says`. All processes call it.
    virtual bool agree(bool root_says) = 0;

    /// Whether run() may be given no inputs. Then it draws its own, with which passes are timed but not judged.
    virtual bool draws_inputs() const { return false; }

    /// Bytes per second at which a device reads its memory, measured anew; none where that is not known.
    virtual std::optional<double> memory_read_rate() { return std::nullopt; }

    /// Executes both passes `repeats` times: [repeat][replica], from one input per replica; no replicas on processes
    /// that are not root.
    virtual std::vector<std::vector<Measurement>> run(const Plan& plan, const Policy& policy,
                                                      std::span<const reference::Inputs> inputs, int repeats) = 0;

    /// Writes what it knows of the devices (once for each invocation), and of the last run.
    virtual void add_provenance(Provenance&) const {}
    virtual void describe(RunWriter& run) const = 0;
};

/// A backend that a user can choose by name: its own options, and the objects that it makes for experiments.
class BackendKind {
public:
    virtual ~BackendKind() = default;

    /// Adds the options that only this backend has. Their targets are members of this object.
    virtual void add_options(Options&) {}

    /// Sets up the environment of this process, before anything that belongs to MPI or a device is used.
    virtual void prepare() const {}

    /// Whether its ranks compute on the processors of this machine. If so, a short trial run shows how long a sweep
    /// will take.
    virtual bool on_processors() const { return false; }

    /// What measures parts of a pass on its devices, for `calibrate`; null where whole passes of one rank are timed.
    virtual std::unique_ptr<GpuProbe> probe() const { return nullptr; }

    /// What times rings of `ranks`, for `throughput` and `validate`. `seed` is for random inputs that the host makes;
    /// devices that make their own do not use it.
    /// Throws Error as make() does, and where there are fewer devices than ranks.
    virtual std::unique_ptr<Bench> bench(const ExecutionConfig& config, const TimingConfig& timing,
                                         const std::vector<int>& ranks, std::uint64_t seed) const = 0;

    /// Transports that rings on these devices can use, the usual one first.
    virtual std::vector<std::string> transports() const = 0;

    /// For rings of `ranks`. Throws Error if it was not built, finds no devices, or cannot do what is asked for.
    virtual std::unique_ptr<Backend> make(const ExecutionConfig& config, const std::string& arithmetic,
                                          int ranks) const = 0;
};

using BackendFactory = std::function<std::shared_ptr<BackendKind>()>;
layouts::Registry<BackendFactory>& backends();

/// A namespace-scope object of this type makes a backend known by name.
struct BackendRegistration {
    BackendRegistration(const std::string& name, std::string help, BackendFactory factory) {
        backends().add(name, {name, std::move(help), std::move(factory)});
    }
};

/// The one that the configuration names. Throws Error that lists the known ones.
std::shared_ptr<const BackendKind> backend_kind(const ExecutionConfig& config);

/// The backend that the configuration names, for rings of `ranks`, with the fault that --fault asks for. Throws Error
/// as BackendKind::make() does, and if the fault cannot be made there.
std::unique_ptr<Backend> make_backend(const ExecutionConfig& config, const std::string& arithmetic, int ranks);

/// After this call the error line of a process that ends because another one is gone also says that finished runs are
/// in the record.
void point_at_record(const ExecutionConfig& config);

/// Returns on every process whether the record holds a run, which only the root process knows (`root_says`). Then
/// calls point_at_record(), because there is a record from now on. `asked` is a Backend or a Bench. All processes call
/// it.
template <class Asked>
bool is_recorded(const ExecutionConfig& config, Asked& asked, bool root_says) {
    const bool recorded = asked.agree(root_says);
    point_at_record(config);
    return recorded;
}

/// Calls `body`, inside an MPI session if the configuration asks for MPI. An error of one process then ends all
/// processes. So does a process whose `configuration` (a text) differs from that of the others.
int run_in_session(const ExecutionConfig& config, const std::string& configuration, int argc, char** argv,
                   const std::function<int()>& body);

}  // namespace ringlab::experiments
