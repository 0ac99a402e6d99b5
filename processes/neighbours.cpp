#include "processes/neighbours.hpp"

#include "layouts/require.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace ringlab::processes {
namespace {

/// By which launchers tell a process its rank.
constexpr std::array rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

struct Status {
    char state = '?';  // of the main thread: 'R' running, 'S' sleeping, 'T' stopped, 't' by a debugger, 'Z' dead ...
    std::int64_t parent = 0;
};

Status status_of(std::int64_t process) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string stat;
    std::getline(file, stat);
    Status status;
    const auto end = stat.rfind(')');  // of the program's name, which may hold anything
    if (end != std::string::npos) std::istringstream(stat.substr(end + 1)) >> status.state >> status.parent;
    return status;
}

}  // namespace

std::string name_by_launcher() {
    for (const char* name : rank_variables)
        if (const char* rank = std::getenv(name)) return fmt::format("rank {}", rank);
    return fmt::format("process {}", getpid());
}

std::vector<Neighbour> siblings() {
    std::vector<Neighbour> found;
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
        const auto process = std::atoll(at->path().filename().c_str());
        if (process <= 0 || process == getpid() || status_of(process).parent != getppid()) continue;
        std::ifstream environment(at->path() / "environ");
        for (std::string variable; std::getline(environment, variable, '\0');)
            if (variable.starts_with(std::string(rank_variables[0]) + "=") ||
                variable.starts_with(std::string(rank_variables[1]) + "="))
                found.push_back({std::atoi(variable.substr(variable.find('=') + 1).c_str()), process});
    }
    return found;
}

bool exists(std::int64_t process) { return kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH; }

bool has_ended(std::int64_t process) { return !exists(process) || status_of(process).state == 'Z'; }

std::string suspects_among(const std::vector<Neighbour>& processes) {
    std::map<std::int64_t, std::string> found;
    for (const auto& [other, process] : processes) {
        const char state = exists(process) ? status_of(process).state : 'Z';
        const char* why = state == 'T'   ? "is stopped (SIGSTOP)"
                          : state == 't' ? "is stopped by a debugger"
                          : state == 'Z' ? "has died"
                                         : nullptr;
        if (why) found[process] = fmt::format("rank {} (process {}) {}", other, process, why);
    }
    std::string text;
    for (const auto& [process, what] : found) text += (text.empty() ? "" : ", ") + what;
    return text;
}

}  // namespace ringlab::processes
