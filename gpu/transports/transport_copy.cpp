#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/driver.hpp"
#include "gpu/transports/transport.hpp"
#include "layouts/basics/counts.hpp"
#include "processes/peers.hpp"
#include "processes/shared_memory.hpp"
#include "processes/watching/neighbours.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace ringlab::gpu {

using processes::append;
using processes::take;

namespace {

/// Other processes map whole pages of device memory. So memory that they may access should share no page with other
/// data.
constexpr std::size_t page_bytes = std::size_t{2} << 20;

/// How many messages of an edge have been announced on the host so far. They only go up.
struct EdgeCounts {
    std::atomic<std::uint32_t> posted;  ///< receives whose `free` event has been recorded
    std::atomic<std::uint32_t> sent;    ///< sends whose `arrived` event has been recorded
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "counts are shared between processes");

/// Whether a rank may still use its peers' memory.
struct RankState {
    std::atomic<std::int64_t> process;
    std::atomic<bool> has_let_go;
};

/// The counts of all edges in host memory that all issuing threads of a host see, of one process or of many; where
/// there are many, also the states of their ranks. Throws the same Error on all ranks if a process cannot have it.
class CountTable {
public:
    CountTable(Team& team, const RankHosts& hosts, std::size_t edges, Clock::duration timeout) {
        if (team.local_size() == team.size()) {
            own_ = std::make_unique<EdgeCounts[]>(edges);
            counts_ = own_.get();
            return;
        }
        const auto ranks = static_cast<std::size_t>(team.size());
        const auto bytes = ranks * sizeof(RankState) + edges * sizeof(EdgeCounts);
        const int rank = team.first_local(), maker = hosts.first_rank_beside(rank);
        processes::SharedMemory::Address address;
        team.together(rank, timeout, [&] {
            if (maker != rank) return;
            shared_.emplace(bytes);
            address = shared_->address();
        });
        Bytes own;
        append(own, std::vector{address});
        const auto all = team.all_gather(rank, std::move(own), timeout);
        team.together(rank, timeout, [&] {
            if (maker == rank) return;
            std::span<const std::byte> of_maker(all.at(static_cast<std::size_t>(maker)));
            std::vector<processes::SharedMemory::Address> given;
            take(of_maker, given);
            try {
                shared_.emplace(given.at(0), bytes);
            } catch (const Error& error) {
                fail("{}; the copy transport works inside one host, use NCCL", error.what());
            }
        });
        shared_->all_have_it();
        states_ = static_cast<RankState*>(shared_->data());
        counts_ = reinterpret_cast<EdgeCounts*>(states_ + ranks);
        states_[rank].process = getpid();
    }
    CountTable(const CountTable&) = delete;
    CountTable& operator=(const CountTable&) = delete;

    EdgeCounts& operator[](std::size_t edge) const { return counts_[edge]; }
    RankState& state(int rank) const { return states_[rank]; }

private:
    std::optional<processes::SharedMemory> shared_;
    std::unique_ptr<EdgeCounts[]> own_;
    EdgeCounts* counts_ = nullptr;
    RankState* states_ = nullptr;
};

/// A rank's memory, and one event for each of its ends of edges, as its peers learn of them. An event is reused for
/// every message. That is safe: a stream that waits for an event waits for the latest recording at that moment, and the
/// event is recorded again only after the counterpart has been enqueued.
struct CardFacts {
    HostName host{};
    int rank = 0;
    int device = 0;  // as the owner's process numbers it
    void* address = nullptr;
    cudaIpcMemHandle_t memory_handle{};
};
struct Card : CardFacts {
    struct EdgeEvent {
        std::size_t edge;
        cudaEvent_t event;
        cudaIpcEventHandle_t handle;
    };
    std::vector<EdgeEvent> events;
};

Bytes pack(const Card& card) {
    Bytes bytes;
    append(bytes, std::vector<CardFacts>{card});
    append(bytes, card.events);
    return bytes;
}

Card unpack(std::span<const std::byte> bytes) {
    std::vector<CardFacts> facts;
    take(bytes, facts);
    Card card{facts.at(0), {}};
    take(bytes, card.events);
    return card;
}

/// Another rank's memory and events as this process sees them; closes what it opened.
class Peer {
public:
    Peer(const Card& own, const Card& peer, bool same_process) : address_(peer.address) {
        for (const auto& [edge, event, handle] : peer.events) events_[edge] = event;
        if (same_process) return;
        require(peer.host == own.host,
                "rank {} is on host {}, rank {} on {}; the copy transport works inside one host, use NCCL", own.rank,
                own.host.data(), peer.rank, peer.host.data());
        opened_ = true;
        if (address_) RINGLAB_CUDA(cudaIpcOpenMemHandle(&address_, peer.memory_handle, cudaIpcMemLazyEnablePeerAccess));
        for (const auto& [edge, event, handle] : peer.events)
            RINGLAB_CUDA(cudaIpcOpenEventHandle(&events_[edge], handle));
    }
    ~Peer() {
        if (!opened_) return;
        if (address_) cudaIpcCloseMemHandle(address_);
        for (const auto& [edge, event] : events_) cudaEventDestroy(event);
    }
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

    char* address() const { return static_cast<char*>(address_); }
    cudaEvent_t event(std::size_t edge) const { return events_.at(edge); }

private:
    void* address_;
    std::map<std::size_t, cudaEvent_t> events_;
    bool opened_ = false;
};

/// Knowledge that the ranks of one process share: of each other, and of the other processes' ranks.
struct Directory {
    Directory(Team& team_, const FabricOptions& options_, const std::set<Edge>& edges_)
        : team(team_),
          options(options_),
          edges(edges_.begin(), edges_.end()),
          counts(team_, options_.hosts, edges_.size(), options_.timeout) {}

    std::size_t edge(int from, int to, int channel) const {
        const Edge wanted{from, to, channel};
        const auto found = std::lower_bound(edges.begin(), edges.end(), wanted);
        require(found != edges.end() && *found == wanted, "copies from rank {} to {} on channel {} have no route", from,
                to, channel);
        return static_cast<std::size_t>(found - edges.begin());
    }
    bool across_processes() const { return team.local_size() < team.size(); }

    Team& team;
    FabricOptions options;
    std::vector<Edge> edges;  // sorted; an edge is its index
    CountTable counts;
    std::mutex mutex;           // of cards, while ranks join
    std::map<int, Card> cards;  // of ranks of this process
};

/// Pushes: the sender's copy engine writes into the receiver's slot behind the receiver's `free` event, and the
/// receiver's stream goes on behind the sender's `arrived` event.
class CopyTransport : public Transport {
public:
    CopyTransport(Directory& directory, const JoiningRank& joining) : directory_(directory), rank_(joining.rank) {
        own_.rank = joining.rank;
        own_.device = joining.device;
        own_.address = joining.memory.bytes > 0 ? joining.memory.address : nullptr;
        own_.host = host_name();
        const bool across = directory.across_processes();
        const auto use = across ? Event::Use::ordering_across_processes : Event::Use::ordering;
        if (across && own_.address) RINGLAB_CUDA(cudaIpcGetMemHandle(&own_.memory_handle, own_.address));
        for (std::size_t edge = 0; edge < directory.edges.size(); ++edge) {
            if (directory.edges[edge].from != rank_ && directory.edges[edge].to != rank_) continue;
            const cudaEvent_t event = events_.emplace(edge, use).first->second;
            auto& entry = own_.events.emplace_back(Card::EdgeEvent{edge, event, {}});
            if (across) RINGLAB_CUDA(cudaIpcGetEventHandle(&entry.handle, event));
        }
        if (across) {
            const auto cards = directory.team.all_gather(joining.member, pack(own_), directory.options.timeout);
            directory.team.together(joining.member, directory.options.timeout, [&] {
                for (const auto& bytes : cards) introduce(unpack(bytes));
            });
            return;
        }
        {
            const std::lock_guard lock(directory.mutex);
            for (const auto& [rank, card] : directory.cards)
                if (reaches(rank)) enable_access(card);
            directory.cards[rank_] = own_;
        }
        if (directory.team.size() > 1) directory.team.barrier(joining.member, directory.options.timeout);
    }

    void post_receive(const Message& message, cudaStream_t stream) override {
        const auto edge = directory_.edge(message.peer, rank_, message.channel);
        if (!message.has_arrival_flag) events_.at(edge).record(stream);
        directory_.counts[edge].posted.fetch_add(1, std::memory_order_release);
    }

    bool can_complete_receive(const Message& message) const override {
        const auto& counts = directory_.counts[directory_.edge(message.peer, rank_, message.channel)];
        return is_at_least(counts.sent.load(std::memory_order_acquire), counts.posted.load(std::memory_order_relaxed));
    }

    void complete_receive(const Message& message, cudaStream_t stream) override {
        if (message.has_arrival_flag) return wait_for_value(stream, flag_at(message.local, message), message.number);
        const auto edge = directory_.edge(message.peer, rank_, message.channel);
        RINGLAB_CUDA(cudaStreamWaitEvent(stream, peer(message.peer).event(edge), 0));
    }

    bool can_send(const Message& message) const override {
        if (message.has_arrival_flag) return true;
        const auto& counts = directory_.counts[directory_.edge(rank_, message.peer, message.channel)];
        return !is_at_least(counts.sent.load(std::memory_order_relaxed), counts.posted.load(std::memory_order_acquire));
    }

    void send(const Message& message, cudaStream_t stream) override {
        const auto edge = directory_.edge(rank_, message.peer, message.channel);
        const auto& receiver = peer(message.peer);
        if (!message.has_arrival_flag) RINGLAB_CUDA(cudaStreamWaitEvent(stream, receiver.event(edge), 0));
        copy_pieces(message, message.local, receiver.address(), stream);
        if (message.has_arrival_flag)
            write_value(stream, flag_at(receiver.address(), message), message.number);
        else
            events_.at(edge).record(stream);
        directory_.counts[edge].sent.fetch_add(1, std::memory_order_release);
    }

    void fetch(const Message& message, cudaStream_t stream) override {
        copy_pieces(message, peer(message.peer).address(), message.local, stream);
    }

    void meet(std::size_t flags, std::uint32_t number, cudaStream_t stream) override {
        if (!meeting_) meeting_.emplace(Meeting{Stream(), flags, 0});
        meeting_->number = number;
        std::vector<std::uint32_t*> of_peers;
        std::vector<const std::uint32_t*> own;
        for (int rank = 0; rank < directory_.options.group.world(); ++rank) {
            if (rank == rank_ || !reaches(rank)) continue;
            of_peers.push_back(flag_of(peer(rank).address(), flags, rank_));
            own.push_back(flag_of(own_memory(), flags, rank));
        }
        if (!own.empty()) exchange_value(stream, of_peers, own, number);
    }

    char* memory_of(int rank) override {
        if (rank == rank_) return own_memory();
        if (!reaches(rank)) return nullptr;
        int possible = 1;
        if (!directory_.across_processes()) {
            const int device = directory_.cards.at(rank).device;
            if (device != own_.device) RINGLAB_CUDA(cudaDeviceCanAccessPeer(&possible, own_.device, device));
        }
        return possible ? peer(rank).address() : nullptr;  // processes could not have opened it without access
    }

    void disconnect() override {
        peers_.clear();
        if (directory_.across_processes()) directory_.counts.state(rank_).has_let_go = true;
    }

    bool is_free() const override {
        if (!directory_.across_processes()) return true;
        for (int rank = 0; rank < directory_.options.group.world(); ++rank) {
            if (rank == rank_ || !reaches(rank)) continue;
            const auto& state = directory_.counts.state(rank);
            if (!state.has_let_go && !processes::has_ended(state.process)) return false;
        }
        return true;
    }

    /// Ends all waits for meetings. Rank::give_up() ends those for arrival flags.
    void abort() noexcept override {
        if (!meeting_) return;
        constexpr std::uint32_t far_ahead = 1u << 30;
        try {
            for (int rank = 0; rank < directory_.options.group.world(); ++rank)
                write_value(meeting_->abort_stream, flag_of(own_memory(), meeting_->flags, rank),
                            meeting_->number + far_ahead);
        } catch (const Error&) {
            // Streams then wait for ever, as they do for a dead peer.
        }
    }

private:
    struct Meeting {
        Stream abort_stream;
        std::size_t flags;
        std::uint32_t number;
    };

    bool reaches(int rank) const { return directory_.options.hosts.share(rank_, rank); }
    char* own_memory() const { return static_cast<char*>(own_.address); }
    static std::uint32_t* flag_of(char* memory, std::size_t flags, int rank) {
        return reinterpret_cast<std::uint32_t*>(memory + flags) + rank;
    }

    /// Whether a count has reached another one. Counts only increase, and wrap around to 0.
    static bool is_at_least(std::uint32_t count, std::uint32_t other) {
        return static_cast<std::int32_t>(count - other) >= 0;
    }
    static std::uint32_t* flag_at(char* memory, const Message& message) {
        return reinterpret_cast<std::uint32_t*>(memory + message.flag);
    }
    static void copy_pieces(const Message& message, const char* from, char* to, cudaStream_t stream) {
        for (const auto& piece : message.pieces) {
            copy_rows(to + piece.to, piece.to_pitch, from + piece.from, piece.from_pitch, piece.bytes, piece.rows,
                      stream);
        }
    }

    void introduce(const Card& card) {
        if (card.rank != rank_ && reaches(card.rank))
            peers_.try_emplace(card.rank, own_, card, !directory_.across_processes());
    }

    /// All ranks of this process have joined before the first message is sent.
    const Peer& peer(int rank) {
        const auto known = peers_.find(rank);
        if (known != peers_.end()) return known->second;
        introduce(directory_.cards.at(rank));
        return peers_.at(rank);
    }

    /// Enables access in both directions. Without peer access copies go through host memory.
    void enable_access(const Card& other) const {
        if (other.device == own_.device) return;
        for (const auto& [from, to] : {std::pair(own_.device, other.device), std::pair(other.device, own_.device)}) {
            int possible = 0;
            RINGLAB_CUDA(cudaDeviceCanAccessPeer(&possible, from, to));
            if (!possible) continue;
            const DeviceScope scope(from);
            const auto status = cudaDeviceEnablePeerAccess(to, 0);
            if (status == cudaErrorPeerAccessAlreadyEnabled)
                cudaGetLastError();
            else
                RINGLAB_CUDA(status);
        }
    }

    Directory& directory_;
    int rank_;
    Card own_;
    std::map<std::size_t, Event> events_;  // by edge: `free` where this rank receives, `arrived` where it sends
    std::map<int, Peer> peers_;
    std::optional<Meeting> meeting_;  // the latest, of ranks that meet
};

class CopyFabric : public Fabric {
public:
    CopyFabric(Team& team, const FabricOptions& options, const std::set<Edge>& edges)
        : directory_(team, options, edges) {
        senders_set_flags_ = directory_.across_processes() || all_reach_each_other();
    }

    bool sets_flags(int, int) const override { return senders_set_flags_; }

    std::shared_ptr<void> allocate(std::size_t bytes) override {
        auto buffer =
            std::make_shared<DeviceBuffer>(directory_.across_processes() ? rounded_up(bytes, page_bytes) : bytes);
        return {buffer, buffer->data()};
    }

    std::unique_ptr<Transport> join(const JoiningRank& joining) override {
        return std::make_unique<CopyTransport>(directory_, joining);
    }

private:
    /// Whether all devices of this process have peer access to each other. Arrival flags need it, because a flag is
    /// written directly into another device's memory. Copies do not. (Processes without access to each other's memory
    /// could not have opened it.)
    static bool all_reach_each_other() {
        int devices = 0;
        RINGLAB_CUDA(cudaGetDeviceCount(&devices));
        for (int from = 0; from < devices; ++from)
            for (int to = 0; to < devices; ++to) {
                int possible = from == to;
                if (!possible) RINGLAB_CUDA(cudaDeviceCanAccessPeer(&possible, from, to));
                if (!possible) return false;
            }
        return true;
    }

    Directory directory_;
    bool senders_set_flags_ = false;
};

}  // namespace

std::unique_ptr<Fabric> make_copy_fabric(Team& team, const FabricOptions& options, const Routes& routes) {
    std::set<Edge> edges;
    for (const auto& route : routes) edges.insert(route.edge);
    return std::make_unique<CopyFabric>(team, options, edges);
}

}  // namespace ringlab::gpu
