#include "experiments/files/untrusted.hpp"

#include "experiments/console/message.hpp"
#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>

namespace ringlab::experiments {
namespace {

/// Sent in place of the length of a piece: the text of an error follows.
constexpr auto failure = std::numeric_limits<std::uint64_t>::max();

/// Limits this process to so many more seconds of processor time. The kernel ends it when it uses more.
void allow_seconds(int seconds) {
    rusage used{};
    rlimit limit{};
    if (getrusage(RUSAGE_SELF, &used) != 0 || getrlimit(RLIMIT_CPU, &limit) != 0) return;
    limit.rlim_cur =
        std::min(limit.rlim_max, static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + seconds));
    setrlimit(RLIMIT_CPU, &limit);
}

/// Makes the child silent, so that nothing of it reaches the user except through the pipe: no signal handlers, no core
/// dump, no messages of the C library.
void become_a_reader(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGXCPU, SIGINT, SIGTERM, SIGHUP})
        if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);  // stays ignored: nohup
    std::signal(SIGPIPE, SIG_IGN);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
}

[[noreturn]] void be_the_child(int descriptor, int limit_seconds, const std::function<void(PipeEnd&)>& look) {
    allow_seconds(limit_seconds);
    PipeEnd to_parent(descriptor, limit_seconds);
    std::string error;
    try {
        look(to_parent);
        _exit(0);
    } catch (const std::bad_alloc&) {
        error = "it takes more memory than there is";
    } catch (const std::exception& caught) {
        error = caught.what();
    }
    try {
        to_parent.put_failure(error);
    } catch (const std::exception&) {
        // The parent has closed the pipe, so nobody reads the error.
    }
    _exit(1);
}

/// Thrown when nothing has come from the child for too long.
class Silence : public Error {
public:
    Silence() : Error("the child process is silent") {}
};

/// Thrown when the child has ended without sending a result or an error.
class Ended : public Error {
public:
    Ended() : Error("the child process has ended") {}
};

/// Seconds on the clock after which a silent reader is given up. They are more than its limit of processor time,
/// `limit_seconds`, because it may wait for a disk or for a busy processor.
constexpr int clock_seconds(int limit_seconds) { return 6 * limit_seconds; }

std::string how_it_ended(int status, int limit_seconds) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
        return fmt::format("HDF5 did not come to an end within {} s", limit_seconds);
    if (WIFSIGNALED(status)) return fmt::format("reading it ends HDF5 with '{}'", strsignal(WTERMSIG(status)));
    return fmt::format("reading it ends HDF5 with status {}", WEXITSTATUS(status));
}

}  // namespace

PipeEnd::~PipeEnd() { ::close(descriptor_); }

void PipeEnd::write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const auto written = ::write(descriptor_, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        require(written > 0, "cannot write to a pipe: {}", error_text());
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
}

void PipeEnd::read_all(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
        wait_for_more();
        const auto got = ::read(descriptor_, bytes.data(), bytes.size());
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) throw Ended();
        require(got > 0, "cannot read from a pipe: {}", error_text());
        bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
}

/// Waits until there is more to read. It counts waits of one second and does not read a clock, because the child may be
/// stopped while this process is.
void PipeEnd::wait_for_more() {
    pollfd pipe{descriptor_, POLLIN, 0};
    for (int second = 0; limit_seconds_ > 0; ++second) {
        if (second == clock_seconds(limit_seconds_)) throw Silence();
        if (poll(&pipe, 1, 1000) > 0) return;
    }
}

void PipeEnd::put_bytes(std::span<const std::byte> bytes) {
    if (limit_seconds_ > 0) allow_seconds(limit_seconds_);
    const std::uint64_t length = bytes.size();
    write_all(std::as_bytes(std::span(&length, 1)));
    write_all(bytes);
}

void PipeEnd::get_bytes(std::span<std::byte> bytes) {
    std::uint64_t length = 0;
    read_all(std::as_writable_bytes(std::span(&length, 1)));
    if (length == failure) fail("{}", get_text());
    require(length == bytes.size(), "the child process sends {} bytes where {} are expected", length, bytes.size());
    read_all(bytes);
}

void PipeEnd::put_text(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    put_values(std::span(text));
}

std::string PipeEnd::get_text() {
    std::string text(get<std::uint64_t>(), '\0');
    get_values(std::span(text));
    return text;
}

void PipeEnd::put_failure(const std::string& text) {
    write_all(std::as_bytes(std::span(&failure, 1)));
    put_text(text);
}

void read_untrusted(const std::filesystem::path& file, const std::function<void(PipeEnd& to_parent)>& look,
                    const std::function<void(PipeEnd& from_child)>& take, int limit_seconds) {
    require_regular_file(file, "file");
    std::array<int, 2> ends{};
    require(pipe2(ends.data(), O_CLOEXEC) == 0, "cannot read {}: no pipe: {}", file.string(), error_text());
    const auto parent = getpid();
    const auto child = fork();
    if (child == 0) {
        ::close(ends[0]);
        become_a_reader(parent);
        be_the_child(ends[1], limit_seconds, look);
    }
    ::close(ends[1]);
    std::exception_ptr error;
    bool silent = false, ended = false;
    {
        PipeEnd from_child(ends[0], limit_seconds);
        require(child > 0, "cannot read {}: no child process: {}", file.string(), error_text());
        try {
            take(from_child);
        } catch (const Silence&) {
            silent = true;
            kill(child, SIGKILL);
        } catch (const Ended&) {
            ended = true;
            error = std::current_exception();
        } catch (...) {
            error = std::current_exception();
        }
    }  // closes the pipe, so that a child that still writes ends
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    require(!silent, "cannot read {}: nothing has come of it for {} s; its disk is not there, or it is damaged",
            file.string(), clock_seconds(limit_seconds));
    // Status 1 is an error that the child has sent. Without such an error it is damage, because the sanitizers also end
    // a child with 1.
    require(WIFEXITED(status) && WEXITSTATUS(status) <= (ended ? 0 : 1), "cannot read {}: it is damaged, {}",
            file.string(), how_it_ended(status, limit_seconds));
    if (error) std::rethrow_exception(error);
}

void require_regular_file(const std::filesystem::path& path, const std::string& what) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
    fail("{} '{}' is {}; it must be a file", what, path.string(),
         S_ISDIR(status.st_mode)    ? "a folder"
         : S_ISFIFO(status.st_mode) ? "a FIFO"
         : S_ISSOCK(status.st_mode) ? "a socket"
                                    : "a device");
}

}  // namespace ringlab::experiments
