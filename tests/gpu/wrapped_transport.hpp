#pragma once

#include "gpu/transports/transport.hpp"

#include <functional>
#include <memory>
#include <utility>

namespace ringlab::gpu {

/// A transport that forwards all calls to another one; derived classes change some of them.
class WrappedTransport : public Transport {
public:
    explicit WrappedTransport(std::unique_ptr<Transport> real) : real_(std::move(real)) {}

    void post_receive(const Message& message, cudaStream_t stream) override { real_->post_receive(message, stream); }
    bool can_complete_receive(const Message& message) const override { return real_->can_complete_receive(message); }
    void complete_receive(const Message& message, cudaStream_t stream) override {
        real_->complete_receive(message, stream);
    }
    bool can_send(const Message& message) const override { return real_->can_send(message); }
    void send(const Message& message, cudaStream_t stream) override { real_->send(message, stream); }
    void fetch(const Message& message, cudaStream_t stream) override { real_->fetch(message, stream); }
    char* memory_of(int rank) override { return real_->memory_of(rank); }
    void check() override { real_->check(); }
    void disconnect() override { real_->disconnect(); }
    void abort() noexcept override { real_->abort(); }

private:
    std::unique_ptr<Transport> real_;
};

/// How a rank joins another fabric.
using Join = std::function<std::unique_ptr<Transport>(Fabric& real, const JoiningRank& joining)>;

/// The fabrics of `make`, which ranks join as `join` says.
inline FabricFactory joined_by(FabricFactory make, Join join) {
    class JoinedBy : public Fabric {
    public:
        JoinedBy(std::unique_ptr<Fabric> real, Join how) : real_(std::move(real)), join_(std::move(how)) {}

        bool sets_flags(int from, int to) const override { return real_->sets_flags(from, to); }
        std::shared_ptr<void> allocate(std::size_t bytes) override { return real_->allocate(bytes); }
        std::unique_ptr<Transport> join(const JoiningRank& joining) override { return join_(*real_, joining); }

    private:
        std::unique_ptr<Fabric> real_;
        Join join_;
    };
    return [=](Team& team, const FabricOptions& options, const Routes& routes) {
        return std::make_unique<JoinedBy>(make(team, options, routes), join);
    };
}

}  // namespace ringlab::gpu
