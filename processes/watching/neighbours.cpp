#include "processes/watching/neighbours.hpp"

#include "layouts/basics/require.hpp"

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace ringlab::processes {
namespace {

/// By which launchers tell a process its rank.
constexpr std::array rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

struct Status {
    char state = '?';  // of the main thread: 'R' running, 'S' sleeping, 'T' stopped, 't' by a debugger, 'Z' dead ...
    std::int64_t parent = 0;
    int ended_by = 0;  // the signal; of a dead process whose parent has not asked for its status
};

Status status_of(std::int64_t process) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string stat;
    std::getline(file, stat);
    Status status;
    const auto end = stat.rfind(')');  // of the program's name, which may hold anything
    if (end == std::string::npos) return status;
    std::istringstream fields(stat.substr(end + 1));
    fields >> status.state >> status.parent;
    constexpr int from_parent_to_exit_code = 47;
    std::string skipped;
    for (int field = 0; field < from_parent_to_exit_code; ++field) fields >> skipped;
    int wait_status = 0;
    if (fields >> wait_status && WIFSIGNALED(wait_status)) status.ended_by = WTERMSIG(wait_status);
    return status;
}

/// The value of an environment variable; -1 if it is not set.
int number_in(const char* variable) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : -1;
}

}  // namespace

std::string name_by_launcher() {
    for (const char* name : rank_variables)
        if (const char* rank = std::getenv(name)) return fmt::format("rank {}", rank);
    return fmt::format("process {}", getpid());
}

void Siblings::look() {
    std::error_code error;
    for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
        const auto process = std::atoll(at->path().filename().c_str());
        if (process <= 0 || process == getpid() || ranks_.contains(process) || status_of(process).parent != getppid())
            continue;
        std::ifstream environment(at->path() / "environ");
        for (std::string variable; std::getline(environment, variable, '\0');)
            if (variable.starts_with(std::string(rank_variables[0]) + "=") ||
                variable.starts_with(std::string(rank_variables[1]) + "="))
                ranks_[process] = std::atoi(variable.substr(variable.find('=') + 1).c_str());
    }
}

std::string Siblings::suspects() {
    look();
    std::vector<Neighbour> suspicious;
    std::set<int> seen{number_in("OMPI_COMM_WORLD_RANK")};
    for (const auto& [process, rank] : ranks_) {
        seen.insert(rank);
        if (exists(process) && status_of(process).ended_by == SIGTERM) continue;
        suspicious.push_back({rank, process});
    }
    auto text = suspects_among(suspicious);
    const int all = number_in("OMPI_COMM_WORLD_SIZE");
    if (text.empty() && all == number_in("OMPI_COMM_WORLD_LOCAL_SIZE"))
        for (int rank = 0; rank < all; ++rank)
            if (!seen.contains(rank))
                text += fmt::format("{}rank {} has died, or was never started", text.empty() ? "" : ", ", rank);
    return text;
}

std::int64_t process_space() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    std::getline(file, text);
    struct stat of_namespace {};
    if (stat("/proc/self/ns/pid", &of_namespace) == 0) text += fmt::format(" {}", of_namespace.st_ino);
    return static_cast<std::int64_t>(std::hash<std::string>()(text));
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
