#include "experiments/faults/launched.hpp"

#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

namespace ringlab::experiments {
namespace {

using LaunchClock = std::chrono::steady_clock;

double seconds_since(LaunchClock::time_point begin) {
    return std::chrono::duration<double>(LaunchClock::now() - begin).count();
}

[[noreturn]] void become(const std::vector<std::string>& words, int errors) {
    setpgid(0, 0);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);                   // Open MPI 4
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);  // Open MPI 5
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    const int nothing = open("/dev/null", O_RDWR);
    if (dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0)
        _exit(127);
    std::vector<char*> arguments;
    for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
}

/// What comes through a pipe, line by line.
class Lines {
public:
    Lines(int from, std::string mark) : from_(from), mark_(std::move(mark)) {}

    /// Waits for more at most for a while; whether there may be more.
    bool read_some() {
        pollfd wanted{from_, POLLIN, 0};
        if (poll(&wanted, 1, 20) <= 0) return true;
        char bytes[4096];
        const auto count = read(from_, bytes, sizeof(bytes));
        if (count <= 0) return count < 0 && errno == EINTR;
        rest_.append(bytes, static_cast<std::size_t>(count));
        for (auto end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
            lines.push_back(rest_.substr(0, end));
            rest_.erase(0, end + 1);
            if (!marked && lines.back().starts_with(mark_)) marked = LaunchClock::now();
        }
        return true;
    }

    std::vector<std::string> lines;
    std::optional<LaunchClock::time_point> marked;

private:
    const int from_;
    const std::string mark_;
    std::string rest_;
};

}  // namespace

Launched launch(const std::vector<std::string>& words, const std::string& mark, double limit_seconds) {
    int ends[2];
    require(pipe2(ends, O_CLOEXEC) == 0, "no pipe to '{}': {}", words.front(), std::strerror(errno));
    const auto begin = LaunchClock::now();
    const pid_t child = fork();
    require(child >= 0, "'{}' cannot be started: {}", words.front(), std::strerror(errno));
    if (child == 0) become(words, ends[1]);
    close(ends[1]);

    Launched launched;
    Lines lines(ends[0], mark);
    int status = 0;
    bool more = true;
    // Its own end counts: what it has left behind may hold the pipe open.
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (more)
            more = lines.read_some();
        else
            usleep(1000);
        if (seconds_since(begin) > limit_seconds && !std::exchange(launched.timed_out, true)) kill(-child, SIGKILL);
    }
    launched.seconds = seconds_since(begin);
    launched.seconds_since_mark = lines.marked ? seconds_since(*lines.marked) : launched.seconds;
    for (std::size_t known = lines.lines.size() + 1; more && known != lines.lines.size();) {
        known = lines.lines.size();
        more = lines.read_some();
    }
    close(ends[0]);
    launched.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    require(launched.status != 127, "'{}' cannot be started", words.front());
    launched.lines = std::move(lines.lines);
    return launched;
}

std::string neighbouring_program(const std::string& name) {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace ringlab::experiments
