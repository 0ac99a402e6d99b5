#pragma once

#include "reference/ranks/transport.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace ringlab::reference {

/// A transport that forwards all calls to another one; derived classes change some of them.
class WrappedTransport : public Transport {
public:
    WrappedTransport(Transport& inner, const layouts::RingGroup& group) : inner_(inner), group_(group) {}

    int rank() const override { return inner_.rank(); }
    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        return inner_.send(from, peer, channel);
    }
    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        return inner_.receive(into, peer, channel);
    }
    void expose(std::span<const std::byte> bytes) override { inner_.expose(bytes); }
    void withdraw() override { inner_.withdraw(); }
    std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) override {
        return inner_.fetch(into, peer, offset);
    }
    void wait(Clock::duration limit) override { inner_.wait(limit); }
    void set_computing(bool computing) override { inner_.set_computing(computing); }
    bool others_compute() const override { return inner_.others_compute(); }
    Clock::time_point start_together() override { return inner_.start_together(); }
    double clock_uncertainty() const override { return inner_.clock_uncertainty(); }

protected:
    Transport& inner_;
    const layouts::RingGroup& group_;
};

/// A world whose ranks use transports of the type Wrapped, around those of another world.
template <class Wrapped>
class WrappedWorld : public World {
public:
    explicit WrappedWorld(std::unique_ptr<World> inner) : World(inner->group()), inner_(std::move(inner)) {}

    bool is_root() const override { return inner_->is_root(); }
    bool agree(bool root_says) override { return inner_->agree(root_says); }

    /// Wrappers live until the end of the run, because buffers that are given to a transport must.
    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override {
        std::mutex mutex;
        std::map<int, Wrapped> wrappers;
        return inner_->run(timeout, [&](Transport& transport) {
            const auto add = [&] {
                const std::lock_guard lock(mutex);
                return wrappers.try_emplace(transport.rank(), transport, group()).first;
            };
            return body(add()->second);
        });
    }

private:
    std::unique_ptr<World> inner_;
};

}  // namespace ringlab::reference
