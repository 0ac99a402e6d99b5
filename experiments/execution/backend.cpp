#include "experiments/execution/backend.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/execution/hosts.hpp"
#include "experiments/execution/machine_fault.hpp"
#include "experiments/record/provenance.hpp"
#include "processes/session.hpp"

#include <thread>

namespace ringlab::experiments {

layouts::Registry<BackendFactory>& backends() {
    static layouts::Registry<BackendFactory> registry("backend");
    return registry;
}

std::shared_ptr<const BackendKind> backend_kind(const ExecutionConfig& config) {
    const auto known = config.backends.find(config.backend);
    if (known != config.backends.end()) return known->second;
    return backends().find(config.backend).factory();
}

std::unique_ptr<Backend> make_backend(const ExecutionConfig& config, const std::string& arithmetic, int ranks) {
    const auto kind = backend_kind(config);
    const auto fault = parse_machine_fault(config.fault, ring_group(config, ranks).world());
    if (!fault) return kind->make(config, arithmetic, ranks);
    if (!fault->is_of_process()) {
        require(kind->on_processors(), "--fault {}: only --backend cpu can make it; stop and kill work everywhere",
                config.fault);
        return kind->make(config, arithmetic, ranks);
    }
    require(config.mpi, "--fault {}: only a process of its own can be stopped or killed; say --mpi, under mpirun",
            config.fault);
    return struck(kind->make(config, arithmetic, ranks), *fault);
}

void point_at_record(const ExecutionConfig& config) {
    if (config.mpi)
        processes::Session::current().advise("; what has finished is in the record, and --resume does the rest");
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
