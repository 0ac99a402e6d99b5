#include "processes/guardian.hpp"
#include "processes/mpi_calls.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

namespace ringlab::processes {
namespace {

enum Beat : int { alive, leaving };

/// Another process of this host.
struct Neighbour {
    int rank = 0;
    std::int64_t process = 0;
};

/// Signs of life to and from one other process. All have one with the root, so the root can name who is gone.
struct Link {
    int peer = 0;
    int incoming = alive, outgoing = alive;
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
    Clock::duration silence{};
    bool they_leave = false, we_leave = false, sent = false;

    bool over() const { return they_leave && sent; }
};

Session* current_session = nullptr;

/// By which launchers tell a process its rank, before MPI can be asked.
constexpr std::array rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

std::string name_by_launcher() {
    for (const char* name : rank_variables)
        if (const char* rank = std::getenv(name)) return fmt::format("rank {}", rank);
    return fmt::format("process {}", getpid());
}

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

/// The processes that have the same launcher, by what it has told them.
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

/// Those that are stopped or gone, in words.
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

}  // namespace

struct Session::Impl {
    Impl(const char* program, Clock::duration patience, const std::string& advice)
        : last_word(program), guardian(std::in_place, last_word, patience, advice) {}

    void find_neighbours(Session& session);
    void make_links();
    std::string look(Clock::duration elapsed);
    void exchange(Link& link);
    std::string describe(const Link& link) const;

    LastWord last_word;
    std::mutex mutex;  // held during any call of MPI
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm pulse = MPI_COMM_NULL;
    int rank = 0, size = 1, rank_on_host = 0;

    std::vector<Neighbour> neighbours;
    std::vector<Link> links;
    std::mutex leave_mutex;
    std::condition_variable left;
    bool may_leave = false;  // main() is done
    bool all_left = false;
    std::optional<Guardian> guardian;
};

/// Who else is on this host.
void Session::Impl::find_neighbours(Session& session) {
    MPI_Comm host = MPI_COMM_NULL;
    blocking(session, "MPI_Comm_split_type",
             [&] { return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host); });
    int on_host = 1;
    once(session, "MPI_Comm_rank", [&] { return MPI_Comm_rank(host, &rank_on_host); });
    once(session, "MPI_Comm_size", [&] { return MPI_Comm_size(host, &on_host); });

    using Card = std::array<std::int64_t, 2>;  // rank, process
    const Card own{rank, getpid()};
    std::vector<Card> cards(static_cast<std::size_t>(on_host));
    blocking(session, "MPI_Allgather",
             [&] { return MPI_Allgather(own.data(), 2, MPI_INT64_T, cards.data(), 2, MPI_INT64_T, host); });
    blocking(session, "MPI_Comm_free", [&] { return MPI_Comm_free(&host); });
    for (const auto& [other, process] : cards)
        // Processes in containers of their own have numbers that mean others here, or nobody.
        if (other != rank && exists(process)) neighbours.push_back({static_cast<int>(other), process});
}

void Session::Impl::make_links() {
    if (rank == 0) {
        for (int peer = 1; peer < size; ++peer) links.push_back({.peer = peer});
    } else {
        links.push_back({.peer = 0});
    }
    const std::lock_guard lock(mutex);
    for (auto& link : links)
        check(MPI_Irecv(&link.incoming, 1, MPI_INT, link.peer, 0, pulse, &link.receive), "MPI_Irecv");
}

/// The guardian's thread comes here every interval.
std::string Session::Impl::look(Clock::duration elapsed) {
    const auto over = [&] { return std::all_of(links.begin(), links.end(), [](const Link& l) { return l.over(); }); };
    // Once all have said that they leave, others may be gone before this one is.
    if (!over())
        for (const auto& [other, process] : neighbours)
            if (!exists(process)) return fmt::format("rank {} (process {}) has died", other, process);
    // The main thread asks MPI again and again while it waits; it holds the mutex longer only where it is watched.
    for (int attempt = 0; attempt < 20; ++attempt) {
        const std::unique_lock lock(mutex, std::try_to_lock);
        if (lock) {
            for (auto& link : links) exchange(link);
            break;
        }
        std::this_thread::yield();
    }
    for (auto& link : links) {
        link.silence += elapsed;
        if (!link.they_leave && link.silence > guardian->patience()) return describe(link);
    }
    if (over()) {
        const std::lock_guard lock(leave_mutex);
        all_left = true;
        left.notify_all();
    }
    return {};
}

/// Says that this process lives, or that it leaves; hears what the other has said.
void Session::Impl::exchange(Link& link) {
    for (int done = 0; !link.they_leave; done = 0) {
        MPI_Test(&link.receive, &done, MPI_STATUS_IGNORE);
        if (!done) break;
        link.silence = -guardian->interval();  // the interval that has just passed is added to it
        link.they_leave = link.incoming == leaving;
        if (!link.they_leave) MPI_Irecv(&link.incoming, 1, MPI_INT, link.peer, 0, pulse, &link.receive);
    }
    int done = 0;
    MPI_Test(&link.send, &done, MPI_STATUS_IGNORE);
    if (!done) return;
    link.sent = link.we_leave;
    if (link.sent) return;
    bool leave = false;
    {
        const std::lock_guard lock(leave_mutex);
        leave = may_leave;
    }
    // The root is the last to leave: until then it can hear of the others.
    if (rank == 0)
        for (const auto& other : links) leave = leave && other.they_leave;
    link.outgoing = leave ? leaving : alive;
    link.we_leave = leave;
    MPI_Isend(&link.outgoing, 1, MPI_INT, link.peer, 0, pulse, &link.send);
}

std::string Session::Impl::describe(const Link& link) const {
    const auto patience = std::chrono::duration<double>(guardian->patience()).count();
    if (const auto who = suspects_among(neighbours); !who.empty())
        return fmt::format("{}; no sign of life for {:.4g} s", who, patience);
    return fmt::format("rank {} has given no sign of life for {:.4g} s; it hangs, is stopped, or its host is cut off",
                       link.peer, patience);
}

bool built_with_mpi() { return true; }

Session::Session(int& argc, char**& argv, Clock::duration patience, std::string advice)
    : impl_(std::make_unique<Impl>(std::filesystem::path(argv[0]).filename().c_str(), patience, advice)) {
    impl_->guardian->set_name(name_by_launcher());
    impl_->guardian->suspect_by([] { return suspects_among(siblings()); });
    try {
        int provided = MPI_THREAD_SINGLE;
        blocking(*this, "MPI_Init_thread",
                 [&] { return MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided); });
        require(provided >= MPI_THREAD_SERIALIZED,
                "this MPI library lets one thread alone call it (level {} of {} at least); use one that was built with "
                "threads",
                provided, static_cast<int>(MPI_THREAD_SERIALIZED));
        once(*this, "MPI_Comm_set_errhandler",
             [] { return MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); });
        once(*this, "MPI_Comm_rank", [&] { return MPI_Comm_rank(MPI_COMM_WORLD, &impl_->rank); });
        once(*this, "MPI_Comm_size", [&] { return MPI_Comm_size(MPI_COMM_WORLD, &impl_->size); });
        impl_->guardian->set_name(fmt::format("rank {}", impl_->rank));
        impl_->find_neighbours(*this);
        impl_->guardian->suspect_by([impl = impl_.get()] { return suspects_among(impl->neighbours); });
        for (auto* comm : {&impl_->comm, &impl_->pulse}) {
            blocking(*this, "MPI_Comm_dup", [&] { return MPI_Comm_dup(MPI_COMM_WORLD, comm); });
            once(*this, "MPI_Comm_set_errhandler", [&] { return MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN); });
        }
        impl_->make_links();
    } catch (const std::exception& error) {
        end(error.what());
    }
    impl_->guardian->look_by([impl = impl_.get()](Clock::duration elapsed) { return impl->look(elapsed); });
    current_session = this;
}

Session::~Session() {
    current_session = nullptr;
    std::fflush(nullptr);  // should another process die while this one waits for it
    if (!impl_->links.empty()) {
        std::unique_lock lock(impl_->leave_mutex);
        impl_->may_leave = true;
        impl_->left.wait(lock, [&] { return impl_->all_left; });
    }
    impl_->guardian->look_by({});
    try {
        for (auto* comm : {&impl_->comm, &impl_->pulse})
            blocking(*this, "MPI_Comm_free", [&] { return MPI_Comm_free(comm); });
        blocking(*this, "MPI_Finalize", [] { return MPI_Finalize(); });
    } catch (const std::exception& error) {
        end(error.what());
    }
    impl_->guardian.reset();
}

Session& Session::current() {
    require(current_session != nullptr, "MPI is asked for before it was started; main() must hold a Session");
    return *current_session;
}

int Session::rank() const { return impl_->rank; }
int Session::size() const { return impl_->size; }
int Session::rank_on_host() const { return impl_->rank_on_host; }

void Session::end(const std::string& message) {
    const auto suspects = suspects_among(impl_->neighbours);
    const bool first = impl_->last_word.say(suspects.empty() ? message : message + "; " + suspects);
    int running = 0;
    MPI_Initialized(&running);
    // A process of its own has nobody to end, and MPI_Abort() would say so in eight lines.
    if (first && running && impl_->size > 1) {
        // It ends the processes of other hosts at once, but may wait for one that is stopped.
        std::thread([impl = impl_.get()] {
            std::this_thread::sleep_for(std::chrono::seconds(3));
            impl->last_word.exit();
        }).detach();
        const std::lock_guard lock(impl_->mutex);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    impl_->last_word.exit();
}

MPI_Comm communicator(Session& session) { return session.impl().comm; }
std::mutex& mpi_mutex(Session& session) { return session.impl().mutex; }

void check(int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    fail("{} failed: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
}

Blocking::Blocking(Session& session, const char* name) : session_(session), lock_(mpi_mutex(session)) {
    session_.impl().guardian->watch(name, session_.impl().guardian->patience());
}

Blocking::~Blocking() { session_.impl().guardian->watch(nullptr, {}); }

}  // namespace ringlab::processes
