#include "gpu/transports/transport.hpp"

namespace ringlab::gpu {
namespace {

class MixedTransport : public Transport {
public:
    /// `sends_out`: whether a message of this rank leaves or enters its host.
    MixedTransport(RankHosts hosts, int rank, bool sends_out, std::unique_ptr<Transport> inside,
                   std::unique_ptr<Transport> between)
        : hosts_(std::move(hosts)),
          rank_(rank),
          sends_out_(sends_out),
          inside_(std::move(inside)),
          between_(std::move(between)) {}

    void post_receive(const Message& message, cudaStream_t stream) override {
        over(message.peer).post_receive(message, stream);
    }
    bool can_complete_receive(const Message& message) const override {
        return over(message.peer).can_complete_receive(message);
    }
    void complete_receive(const Message& message, cudaStream_t stream) override {
        over(message.peer).complete_receive(message, stream);
    }
    bool can_send(const Message& message) const override { return over(message.peer).can_send(message); }
    void send(const Message& message, cudaStream_t stream) override { over(message.peer).send(message, stream); }
    void fetch(const Message& message, cudaStream_t stream) override { over(message.peer).fetch(message, stream); }

    // Only ranks of the same host write to this rank's memory without a call of its own.
    void meet(std::size_t flags, std::uint32_t number, cudaStream_t stream) override {
        inside_->meet(flags, number, stream);
    }
    char* memory_of(int rank) override { return inside_->memory_of(rank); }

    bool takes_multiprocessors() const override { return sends_out_ && between_->takes_multiprocessors(); }
    void check() override {
        inside_->check();
        between_->check();
    }
    void disconnect() override {
        inside_->disconnect();
        between_->disconnect();
    }
    bool is_free() const override { return inside_->is_free() && between_->is_free(); }

    // Inside first: to abort a communicator of NCCL can take until the device's streams have gone on.
    void abort() noexcept override {
        inside_->abort();
        between_->abort();
    }

private:
    Transport& over(int peer) const { return hosts_.share(rank_, peer) ? *inside_ : *between_; }

    const RankHosts hosts_;
    const int rank_;
    const bool sends_out_;
    const std::unique_ptr<Transport> inside_, between_;
};

class MixedFabric : public Fabric {
public:
    MixedFabric(RankHosts hosts, std::unique_ptr<Fabric> inside, std::unique_ptr<Fabric> between,
                const Routes& between_routes)
        : hosts_(std::move(hosts)), inside_(std::move(inside)), between_(std::move(between)) {
        for (const auto& route : between_routes) {
            sends_out_.insert(route.edge.from);
            sends_out_.insert(route.edge.to);
        }
    }

    bool sets_flags(int from, int to) const override { return hosts_.share(from, to) && inside_->sets_flags(from, to); }

    // From the fabric of copies: their engines reach only some memory, and NCCL can register any.
    std::shared_ptr<void> allocate(std::size_t bytes) override { return inside_->allocate(bytes); }

    std::unique_ptr<Transport> join(const JoiningRank& joining) override {
        auto inside = inside_->join(joining);
        auto between = between_->join(joining);
        return std::make_unique<MixedTransport>(hosts_, joining.rank, sends_out_.contains(joining.rank),
                                                std::move(inside), std::move(between));
    }

private:
    const RankHosts hosts_;
    const std::unique_ptr<Fabric> inside_, between_;
    std::set<int> sends_out_;  // ranks
};

}  // namespace

std::unique_ptr<Fabric> make_mixed_fabric(Team& team, const FabricOptions& options, const Routes& routes,
                                          const FabricFactory& make_between) {
    Routes inside, between;
    for (const auto& route : routes)
        (options.hosts.share(route.edge.from, route.edge.to) ? inside : between).insert(route);
    auto copies = make_copy_fabric(team, options, inside);
    if (between.empty()) return copies;
    return std::make_unique<MixedFabric>(options.hosts, std::move(copies), make_between(team, options, between),
                                         between);
}

}  // namespace ringlab::gpu
