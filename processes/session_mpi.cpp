#include "processes/heartbeat.hpp"
#include "processes/mpi_calls.hpp"
#include "processes/peers.hpp"
#include "processes/shared_memory.hpp"
#include "processes/watching/guardian.hpp"
#include "processes/watching/neighbours.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

namespace ringlab::processes {
namespace {

Session* current_session = nullptr;

}  // namespace

struct Session::Impl {
    Impl(const char* program, Clock::duration patience)
        : first_error(program), guardian(std::in_place, first_error, patience) {}

    void find_neighbours(Session& session);
    void find_hosts(Session& session, int first_rank);
    void share_board(Session& session, MPI_Comm host, const SharedMemory::Address& address);
    std::string look(Clock::duration elapsed);
    std::string silence_of(int peer) const;
    void see_neighbours_off();
    static void say_who_is_gone();

    FirstError first_error;
    std::mutex mutex;  // held during any call of MPI
    MPI_Comm comm = MPI_COMM_NULL, heartbeat_comm = MPI_COMM_NULL;
    int rank = 0, size = 1, rank_on_host = 0, on_host = 1;

    Siblings siblings;  // used until `neighbours` are known
    std::vector<Neighbour> neighbours;
    std::vector<Host> hosts;
    std::optional<SharedMemory> board;  // a counter of the processes of this host that are done with MPI
    std::optional<Heartbeat> heartbeat;
    std::optional<Guardian> guardian;

    static inline Impl* at_exit = nullptr;  // what say_who_is_gone() speaks for
};

/// Runs at exit(). Ringlab does not call exit() while there is a session, but MPI libraries do when they find that a
/// process is gone.
void Session::Impl::say_who_is_gone() {
    if (!at_exit) return;
    const auto suspects = suspects_among(at_exit->neighbours);
    at_exit->first_error.say(fmt::format("rank {} is ended by a library that it uses; {}", at_exit->rank,
                                         suspects.empty() ? "another process may have died" : suspects));
    at_exit->first_error.exit();
}

/// Finds the other processes of this host.
void Session::Impl::find_neighbours(Session& session) {
    MPI_Comm host = MPI_COMM_NULL;
    blocking(session, "MPI_Comm_split_type",
             [&] { return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host); });
    once(session, "MPI_Comm_rank", [&] { return MPI_Comm_rank(host, &rank_on_host); });
    once(session, "MPI_Comm_size", [&] { return MPI_Comm_size(host, &on_host); });

    if (rank_on_host == 0) board.emplace(sizeof(std::atomic<int>));
    using Card = std::array<std::int64_t, 4>;  // rank, process, its space, descriptor of the board
    const Card own{rank, getpid(), process_space(), board ? board->address().descriptor : -1};
    std::vector<Card> cards(static_cast<std::size_t>(on_host));
    constexpr int length = std::tuple_size_v<Card>;
    blocking(session, "MPI_Allgather",
             [&] { return MPI_Allgather(own.data(), length, MPI_INT64_T, cards.data(), length, MPI_INT64_T, host); });
    for (const auto& [other, process, space, descriptor] : cards)
        if (other != rank && space == process_space()) neighbours.push_back({static_cast<int>(other), process});
    find_hosts(session, static_cast<int>(cards[0][0]));
    share_board(session, host, {cards[0][1], cards[0][2], cards[0][3]});
    blocking(session, "MPI_Comm_free", [&] { return MPI_Comm_free(&host); });
}

void Session::Impl::find_hosts(Session& session, int first_rank) {
    struct Sign {
        int first_rank;
        std::array<char, MPI_MAX_PROCESSOR_NAME> name;
    } own{first_rank, {}};
    int length = 0;
    once(session, "MPI_Get_processor_name", [&] { return MPI_Get_processor_name(own.name.data(), &length); });
    std::vector<Sign> signs(static_cast<std::size_t>(size));
    blocking(session, "MPI_Allgather", [&] {
        return MPI_Allgather(&own, sizeof(own), MPI_BYTE, signs.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
    });
    std::vector<int> first_ranks;
    std::vector<std::string> names;
    for (const auto& sign : signs) {
        first_ranks.push_back(sign.first_rank);
        names.emplace_back(sign.name.data());
    }
    hosts = hosts_from(first_ranks, names);
    if (first_rank != first_ranks.front()) first_error.let_another_host_begin();
}

/// Afterwards all processes of the host have the board, or none has: a process in another container cannot reach it.
void Session::Impl::share_board(Session& session, MPI_Comm host, const SharedMemory::Address& address) {
    try {
        if (!board) board.emplace(address, sizeof(std::atomic<int>));
    } catch (const Error&) {
    }
    const int have = board ? 1 : 0;
    int all_have = 0;
    blocking(session, "MPI_Allreduce", [&] { return MPI_Allreduce(&have, &all_have, 1, MPI_INT, MPI_MIN, host); });
    if (all_have)
        board->all_have_it();
    else
        board.reset();
}

/// The check of the Guardian.
std::string Session::Impl::look(Clock::duration elapsed) {
    // Once all processes have said that they will end, one that is gone is no error.
    if (!heartbeat->over())
        for (const auto& [other, process] : neighbours)
            if (!exists(process)) return fmt::format("rank {} (process {}) has died", other, process);
    const auto silent = heartbeat->beat(elapsed, guardian->patience());
    return silent ? silence_of(*silent) : std::string();
}

std::string Session::Impl::silence_of(int peer) const {
    const auto patience = std::chrono::duration<double>(guardian->patience()).count();
    if (const auto who = suspects_among(neighbours); !who.empty())
        return fmt::format("{}; no sign of life for {:.4g} s", who, patience);
    return fmt::format("rank {} has given no sign of life for {:.4g} s; it hangs, is stopped, or its host is cut off",
                       peer, patience);
}

/// A process may leave MPI_Finalize() before the others. If one of these is then stopped inside it, the launcher waits
/// for ever. Therefore all processes of a host stay until all of them have left MPI_Finalize(), and the first one stays
/// until the others have ended.
void Session::Impl::see_neighbours_off() {
    if (!board) return;
    const auto wait_until = [&](const char* where, auto done) {
        guardian->watch(where, guardian->patience());
        while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        guardian->watch(nullptr, {});
    };
    auto& through = *static_cast<std::atomic<int>*>(board->data());
    ++through;
    wait_until("MPI_Finalize", [&] { return through == on_host; });
    if (rank_on_host != 0) return;
    for (const auto& neighbour : neighbours) {
        guardian->suspect_by([&] { return suspects_among({neighbour}); });  // others may have ended as they should
        wait_until("exit", [&] { return has_ended(neighbour.process); });
    }
}

bool built_with_mpi() { return true; }

Session::Session(int& argc, char**& argv, Clock::duration patience)
    : impl_(std::make_unique<Impl>(std::filesystem::path(argv[0]).filename().c_str(), patience)) {
    impl_->guardian->set_name(name_by_launcher());
    impl_->siblings.look();  // from now on the guardian's thread does
    impl_->guardian->suspect_by([impl = impl_.get()] { return impl->siblings.suspects(); });
    impl_->guardian->look_by([impl = impl_.get()](Clock::duration) { return impl->siblings.look(), std::string(); });
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
        for (auto* comm : {&impl_->comm, &impl_->heartbeat_comm}) {
            blocking(*this, "MPI_Comm_dup", [&] { return MPI_Comm_dup(MPI_COMM_WORLD, comm); });
            once(*this, "MPI_Comm_set_errhandler", [&] { return MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN); });
        }
        impl_->heartbeat.emplace(impl_->mutex, impl_->heartbeat_comm, impl_->guardian->interval());
    } catch (const std::exception& error) {
        end(error.what());
    }
    impl_->guardian->look_by([impl = impl_.get()](Clock::duration elapsed) { return impl->look(elapsed); });
    current_session = this;
    Impl::at_exit = impl_.get();
    std::atexit(Impl::say_who_is_gone);
}

Session::~Session() {
    current_session = nullptr;
    std::fflush(nullptr);  // another process may die while this one waits for it, and that ends this one too
    impl_->heartbeat->leave();
    impl_->guardian->look_by({});
    try {
        for (auto* comm : {&impl_->comm, &impl_->heartbeat_comm})
            blocking(*this, "MPI_Comm_free", [&] { return MPI_Comm_free(comm); });
        blocking(*this, "MPI_Finalize", [] { return MPI_Finalize(); });
    } catch (const std::exception& error) {
        end(error.what());
    }
    impl_->see_neighbours_off();
    Impl::at_exit = nullptr;
    impl_->guardian.reset();
}

Session& Session::current() {
    require(current_session != nullptr, "MPI is asked for before it was started; main() must hold a Session");
    return *current_session;
}

int Session::rank() const { return impl_->rank; }
int Session::size() const { return impl_->size; }
int Session::rank_on_host() const { return impl_->rank_on_host; }

const std::vector<Host>& Session::hosts() const { return impl_->hosts; }

std::vector<std::string> Session::tell_all(const std::string& own) {
    const auto bytes = std::as_bytes(std::span(own));
    std::vector<std::string> all;
    for (const auto& said : Peers(*this).all_gather({bytes.begin(), bytes.end()}, patiently))
        all.emplace_back(reinterpret_cast<const char*>(said.data()), said.size());
    return all;
}

void Session::advise(const std::string& advice) { impl_->guardian->advise(advice); }
void Session::set_computing(bool computing) { impl_->heartbeat->set_computing(computing); }
bool Session::others_compute() const { return impl_->heartbeat->others_compute(); }

void Session::end(const std::string& message) {
    Impl::at_exit = nullptr;
    const auto suspects = suspects_among(impl_->neighbours);
    const bool first = impl_->first_error.say(suspects.empty() ? message : message + "; " + suspects);
    int running = 0;
    MPI_Initialized(&running);
    // A single process has no others to end, and MPI_Abort() would print eight lines.
    if (first && running && impl_->size > 1) {
        // MPI_Abort() ends the processes of other hosts at once, but it may wait for one that is stopped.
        std::thread([impl = impl_.get()] {
            std::this_thread::sleep_for(std::chrono::seconds(3));
            impl->first_error.exit();
        }).detach();
        const std::lock_guard lock(impl_->mutex);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    impl_->first_error.exit();
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
