#include "gpu/cuda_handles.hpp"
#include "gpu/transports/transport.hpp"
#include "processes/waiting.hpp"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

// The same macro style as RINGLAB_CUDA: the message carries the call.
#define RINGLAB_NCCL(call) check_nccl((call), #call, __FILE__, __LINE__)

namespace ringlab::gpu {
namespace {

void check_nccl(ncclResult_t status, const char* call, const char* file, int line) {
    if (status == ncclSuccess || status == ncclInProgress) return;
    int device = -1;
    cudaGetDevice(&device);
    fail("NCCL error '{}' from {} at {}:{}, device {}; {}", ncclGetErrorString(status), call, file, line, device,
         ncclGetLastError(nullptr));
}

/// Operations of one communicator run one after another, whatever their streams. A ring's ranks all send before they
/// receive, so a rank's sends and receives must lie on different communicators, which both ends agree on without
/// asking: the highest bit in which the two ranks differ, and the sender's value of it. A rank sends on (bit, its own
/// value) and receives on (bit, the other value). So lanes stay independent of each other, and a schedule that runs
/// lane by lane runs here. That takes 2 log2 P communicators a channel where a ring alone could do with two; they are
/// of all ranks, since NCCL splits no communicator without all of them, and are kept from run to run.
///
/// Messages that have time (has_time()) lie on communicators of their own, whose kernels take few multiprocessors: all
/// that they take, attends beside them go without for as long, which of the even turns of a backward grid costs one
/// turn more. Between hosts more channels are more connections, so there they take what NCCL chooses.
struct Colour {
    int channel;
    int bit;
    int value;
    bool takes_few;
    friend auto operator<=>(const Colour&, const Colour&) = default;
};

Colour colour_of(int from, int to, int channel, bool takes_few) {
    int bit = 0;
    for (int difference = from ^ to; difference > 1; difference >>= 1) ++bit;
    return {channel, bit, (from >> bit) & 1, takes_few};
}

/// How long a member waits for NCCL, and who may tell it to stop.
struct Patience {
    const Team& team;
    Clock::duration timeout;
};

using Id = std::array<char, sizeof(ncclUniqueId)>;  // all zero: none

/// Calls what waits for other ranks, on a thread of its own; after the time-out, or when a member of the team has
/// failed, that thread is left to itself, with all that `call` owns, so a dead peer cannot hang this process.
void call_with_patience(const char* what, int rank, const Patience& patience, std::function<void()> call) {
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    std::packaged_task<void()> task([device, call = std::move(call)] {
        RINGLAB_CUDA(cudaSetDevice(device));
        call();
    });
    auto done = task.get_future();
    std::thread(std::move(task)).detach();
    processes::Waiting waiting;
    while (done.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
        if (patience.team.cancelled()) throw Cancelled();
        require(waiting.so_far() < patience.timeout, "rank {}: NCCL has spent {} s on {}; another rank is not there",
                rank, std::chrono::duration<double>(patience.timeout).count(), what);
    }
    done.get();
}

/// Owns a communicator whose calls block the host: one that never does so starts a thread for every message, which
/// costs a tenth of a millisecond. Messages between ranks that are connected do not wait for each other on the host.
class Communicator {
public:
    Communicator(const Id& id, int rank, int ranks, bool takes_few, const Patience& patience) : id_(id), rank_(rank) {
        const auto made = std::make_shared<ncclComm_t>();
        call_with_patience("starting up", rank, patience, [=] {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            if (takes_few) config.maxCTAs = few_blocks;
            ncclUniqueId unique;
            std::memcpy(&unique, id.data(), id.size());
            RINGLAB_NCCL(ncclCommInitRankConfig(made.get(), ranks, unique, rank, &config));
        });
        handle_ = *made;
    }
    /// One that is not kept for the next run is one that something went wrong with: no peer need answer any more.
    ~Communicator() { abort(); }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    ncclComm_t handle() const { return handle_; }
    const Id& id() const { return id_; }

    /// Edges over which a message has gone.
    std::set<Edge>& connected() { return connected_; }

    /// Throws Error if anything has failed so far.
    void check(const char* what) const {
        ncclResult_t status = ncclSuccess;
        RINGLAB_NCCL(ncclCommGetAsyncError(handle_, &status));
        require(status == ncclSuccess || status == ncclInProgress, "rank {}: NCCL failed while {}: {}; {}", rank_, what,
                ncclGetErrorString(status), ncclGetLastError(handle_));
    }

    /// A thread may be inside it for good: nothing can be done with it any more.
    void lose() { handle_ = nullptr; }

    void abort() noexcept {
        if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
    }

private:
    const Id id_;
    const int rank_;
    ncclComm_t handle_ = nullptr;
    std::set<Edge> connected_;
};

/// Communicators that are of use to the next run of this process: to start one takes a good part of a second, and a
/// run has up to a dozen. They stay until the process ends, which is when their threads and memory go too: NCCL's own
/// way of taking them down needs every rank to come, and races with its threads when it runs at exit.
class Pool {
public:
    /// A rank's end of a communicator. Which others are at its far ends, ids tell.
    struct Place {
        int rank, ranks, device;
        Colour colour;
        friend auto operator<=>(const Place&, const Place&) = default;
    };

    static Pool& of_this_process() {
        static auto* const pool = new Pool;  // never destroyed, see above
        return *pool;
    }

    /// Null if there is none. Whoever takes it owns it.
    std::unique_ptr<Communicator> take(const Place& place) {
        const std::lock_guard lock(mutex_);
        const auto found = kept_.extract(place);
        return found ? std::move(found.mapped()) : nullptr;
    }

    void keep(const Place& place, std::unique_ptr<Communicator> communicator) {
        const std::lock_guard lock(mutex_);
        kept_[place] = std::move(communicator);
    }

private:
    std::mutex mutex_;
    std::map<Place, std::unique_ptr<Communicator>> kept_;
};

/// Memory that a communicator may move to and from directly, without its own buffers in between.
class Registration {
public:
    Registration(ncclComm_t comm, void* memory, std::size_t bytes) : comm_(comm) {
        RINGLAB_NCCL(ncclCommRegister(comm, memory, bytes, &handle_));
    }
    Registration(Registration&& other) noexcept : comm_(other.comm_), handle_(std::exchange(other.handle_, nullptr)) {}
    Registration& operator=(Registration&&) = delete;
    ~Registration() {
        if (handle_) ncclCommDeregister(comm_, handle_);
    }

    void forget() { handle_ = nullptr; }  // aborted communicators take their registrations with them

private:
    ncclComm_t comm_;
    void* handle_ = nullptr;
};

/// Messages of an edge, those that have time apart.
struct Route {
    Edge edge;
    bool has_time = false;
    friend auto operator<=>(const Route&, const Route&) = default;
};

class NcclTransport : public Transport {
public:
    NcclTransport(Team& team, const FabricOptions& options, const std::set<Route>& routes, const Member& member)
        : patience_{team, options.timeout}, rank_(member.rank), ranks_(options.group.world()), device_(member.device) {
        find_hosts(team, member);
        std::set<Colour> colours;
        for (const auto& [edge, has_time] : routes)
            colours.insert(colour_between(edge.from, edge.to, edge.channel, has_time));
        try {
            start(team, member, std::vector(colours.begin(), colours.end()));
            register_memory(member);
            connect(routes, member);
            team.barrier(member.member, options.timeout);
        } catch (...) {
            abort();
            throw;
        }
    }
    /// Without leave() something has gone wrong.
    ~NcclTransport() override { abort(); }

    // NCCL's kernels meet their counterparts by themselves, each on a queue of its own communicator.
    void post_receive(const Message&, cudaStream_t) override {}
    bool can_complete_receive(const Message&) const override { return true; }
    bool can_send(const Message&) const override { return true; }

    void complete_receive(const Message& message, cudaStream_t stream) override {
        const auto& communicator =
            *communicators_.at(colour_between(message.peer, rank_, message.channel, message.has_time));
        for_each_row(message.pieces, [&](const Piece& piece, std::size_t row) {
            RINGLAB_NCCL(ncclRecv(message.local + piece.to + row * piece.to_pitch, piece.bytes, ncclUint8, message.peer,
                                  communicator.handle(), stream));
        });
    }

    void send(const Message& message, cudaStream_t stream) override {
        const auto& communicator =
            *communicators_.at(colour_between(rank_, message.peer, message.channel, message.has_time));
        for_each_row(message.pieces, [&](const Piece& piece, std::size_t row) {
            RINGLAB_NCCL(ncclSend(message.local + piece.from + row * piece.from_pitch, piece.bytes, ncclUint8,
                                  message.peer, communicator.handle(), stream));
        });
    }

    void fetch(const Message& message, cudaStream_t) override {
        fail("rank {} is to read the memory of rank {}; over NCCL the owner has to send it", rank_, message.peer);
    }

    bool takes_multiprocessors() const override { return true; }

    void check() override {
        for (const auto& [colour, communicator] : communicators_) communicator->check("moving data");
    }

    void leave() override {
        check();
        registrations_.clear();
        for (auto& [colour, communicator] : communicators_)
            Pool::of_this_process().keep(place(colour), std::move(communicator));
        communicators_.clear();
    }

    /// All communicators at once. NCCL tells a communicator's kernels to quit when its own rank aborts it; the last
    /// rank of a process to do so then frees the memory of all of them there, for which CUDA can wait for every kernel
    /// of their devices. So that one may only be waited for once the others have been told to quit too.
    void abort() noexcept override {
        for (auto& registration : registrations_) registration.forget();
        std::vector<std::jthread> threads;
        for (auto& [colour, communicator] : communicators_) {
            if (!communicator) continue;
            try {
                threads.emplace_back([&one = *communicator] { one.abort(); });
            } catch (const std::exception&) {
                communicator->abort();
            }
        }
    }

private:
    /// What does not lie together goes as messages of its own, in one launch.
    template <class Visit>
    static void for_each_row(std::span<const Piece> pieces, Visit visit) {
        const bool several = pieces.size() > 1 || (pieces.size() == 1 && pieces.front().rows > 1);
        if (several) RINGLAB_NCCL(ncclGroupStart());
        for (const auto& piece : pieces)
            for (std::size_t row = 0; row < piece.rows; ++row) visit(piece, row);
        if (several) RINGLAB_NCCL(ncclGroupEnd());
    }

    void find_hosts(Team& team, const Member& member) {
        struct Seat {
            int rank;
            std::array<char, 64> host;
        } own{rank_, {}};
        require(gethostname(own.host.data(), own.host.size() - 1) == 0, "this host does not tell its name");
        Bytes bytes(sizeof(own));
        std::memcpy(bytes.data(), &own, sizeof(own));
        hosts_.resize(static_cast<std::size_t>(ranks_));
        for (const auto& other : team.all_gather(member.member, std::move(bytes), patience_.timeout)) {
            Seat seat;
            std::memcpy(&seat, other.data(), sizeof(seat));
            hosts_.at(static_cast<std::size_t>(seat.rank)) = seat.host.data();
        }
    }

    Colour colour_between(int from, int to, int channel, bool has_time) const {
        const bool one_host = hosts_[static_cast<std::size_t>(from)] == hosts_[static_cast<std::size_t>(to)];
        return colour_of(from, to, channel, has_time && one_host);
    }

    Pool::Place place(const Colour& colour) const { return {rank_, ranks_, device_, colour}; }

    /// Takes up the communicators that an earlier run has left, where all ranks have an end of the same one, and starts
    /// the others.
    void start(Team& team, const Member& member, const std::vector<Colour>& colours) {
        std::vector<Id> ids(colours.size(), Id{});
        for (std::size_t i = 0; i < colours.size(); ++i) {
            auto& communicator = communicators_[colours[i]] = Pool::of_this_process().take(place(colours[i]));
            if (communicator) ids[i] = communicator->id();
        }
        std::vector<std::size_t> missing;
        const auto all = exchange(team, member, ids);
        for (std::size_t i = 0; i < colours.size(); ++i)
            if (ids[i] == Id{} || std::any_of(all.begin(), all.end(), [&](const auto& of) { return of[i] != ids[i]; }))
                missing.push_back(i);
        if (missing.empty()) return;
        for (const auto i : missing) {
            communicators_[colours[i]].reset();
            if (rank_ != 0) continue;
            ncclUniqueId unique;
            RINGLAB_NCCL(ncclGetUniqueId(&unique));
            std::memcpy(ids[i].data(), &unique, sizeof(unique));
        }
        const auto from_root = exchange(team, member, ids)[0];
        for (const auto i : missing)
            communicators_[colours[i]] =
                std::make_unique<Communicator>(from_root[i], rank_, ranks_, colours[i].takes_few, patience_);
    }

    void register_memory(const Member& member) {
        if (member.memory.bytes == 0) return;
        for (const auto& [colour, communicator] : communicators_)
            registrations_.emplace_back(communicator->handle(), member.memory.address, member.memory.bytes);
    }

    /// What every rank has, by rank.
    std::vector<std::vector<Id>> exchange(Team& team, const Member& member, const std::vector<Id>& own) const {
        Bytes bytes(sizeof(rank_) + own.size() * sizeof(Id));
        std::memcpy(bytes.data(), &rank_, sizeof(rank_));
        if (!own.empty()) std::memcpy(bytes.data() + sizeof(rank_), own.data(), own.size() * sizeof(Id));
        std::vector<std::vector<Id>> all(static_cast<std::size_t>(ranks_), own);
        for (const auto& other : team.all_gather(member.member, std::move(bytes), patience_.timeout)) {
            int rank = 0;
            std::memcpy(&rank, other.data(), sizeof(rank));
            auto& theirs = all.at(static_cast<std::size_t>(rank));
            if (!theirs.empty()) std::memcpy(theirs.data(), other.data() + sizeof(rank), theirs.size() * sizeof(Id));
        }
        return all;
    }

    /// A byte along every edge that is new, all at once: NCCL connects two ranks at their first message, and waits
    /// there for the other one, which inside a pass could be waiting likewise for a third.
    void connect(const std::set<Route>& routes, const Member& member) {
        struct Byte {
            bool sends;
            void* memory;
            int peer;
            ncclComm_t communicator;
        };
        std::vector<Byte> bytes;
        std::set<Communicator*> waiting;
        for (const auto& [edge, has_time] : routes) {
            const auto& [from, to, channel] = edge;
            auto* const last = static_cast<char*>(member.memory.address) + member.memory.bytes - 1;
            auto& communicator = *communicators_.at(colour_between(from, to, channel, has_time));
            if (!communicator.connected().insert(edge).second) continue;
            // Nothing is in this memory yet.
            if (from == rank_) bytes.push_back({true, last, to, communicator.handle()});
            if (to == rank_) bytes.push_back({false, last, from, communicator.handle()});
            if (from == rank_ || to == rank_) waiting.insert(&communicator);
        }
        if (bytes.empty()) return;
        const auto stream = std::make_shared<const Stream>();
        try {
            call_with_patience("connecting", rank_, patience_, [=] {
                RINGLAB_NCCL(ncclGroupStart());
                for (const auto& [sends, memory, peer, communicator] : bytes)
                    if (sends)
                        RINGLAB_NCCL(ncclSend(memory, 1, ncclUint8, peer, communicator, *stream));
                    else
                        RINGLAB_NCCL(ncclRecv(memory, 1, ncclUint8, peer, communicator, *stream));
                RINGLAB_NCCL(ncclGroupEnd());
            });
        } catch (...) {
            for (auto* communicator : waiting) communicator->lose();
            throw;
        }
        wait(*stream);
    }

    void wait(const Stream& stream) const {
        const Event end(Event::Use::ordering);
        end.record(stream);
        processes::Waiting waiting;
        while (!end.done()) {
            if (patience_.team.cancelled()) throw Cancelled();
            require(waiting.so_far() < patience_.timeout,
                    "rank {}: the first messages over NCCL have not come after {} s; another rank is not there", rank_,
                    std::chrono::duration<double>(patience_.timeout).count());
            std::this_thread::yield();
        }
    }

    const Patience patience_;
    const int rank_, ranks_, device_;
    std::vector<std::string> hosts_;  // by rank
    std::map<Colour, std::unique_ptr<Communicator>> communicators_;
    std::vector<Registration> registrations_;
};

class NcclFabric : public Fabric {
public:
    NcclFabric(Team& team, const FabricOptions& options, const PassPrograms& programs)
        : team_(team), options_(options) {
        for (const bool time : {false, true})
            for (const auto& edge : edges_of(options.group, programs, [&](const layouts::Instruction& instruction) {
                     return has_time(instruction) == time;
                 }))
                routes_.insert({edge, time});
    }

    bool fetches() const override { return false; }

    std::shared_ptr<void> allocate(std::size_t bytes) override {
        if (bytes == 0) return nullptr;
        void* memory = nullptr;
        RINGLAB_NCCL(ncclMemAlloc(&memory, bytes));
        return {memory, [](void* address) { ncclMemFree(address); }};
    }

    std::unique_ptr<Transport> join(const Member& member) override {
        return std::make_unique<NcclTransport>(team_, options_, routes_, member);
    }

private:
    Team& team_;
    FabricOptions options_;
    std::set<Route> routes_;
};

}  // namespace

std::unique_ptr<Fabric> make_nccl_fabric(Team& team, const FabricOptions& options, const PassPrograms& programs) {
    // NCCL's monitoring service (RAS) is of no use here. Its thread keeps account of every communicator that is made,
    // and ends the process by an assertion where that account does not add up.
    setenv("NCCL_RAS_ENABLE", "0", 0);
    return std::make_unique<NcclFabric>(team, options, programs);
}

std::string nccl_version() {
    int version = 0;
    RINGLAB_NCCL(ncclGetVersion(&version));
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ringlab::gpu
