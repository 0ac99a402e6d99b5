#include "reference/ranks/faulty_world.hpp"

#include "reference/ranks/executor.hpp"
#include "reference/ranks/transports/wrapped_world.hpp"

#include <list>

namespace ringlab::reference {
namespace {

class SlowTransport : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    void set_computing(bool computing) override {
        if (computing) {
            begin_ = thread_cpu_time();
        } else {
            const auto end = begin_ + 4 * (thread_cpu_time() - begin_);
            while (thread_cpu_time() < end) {
            }
        }
        WrappedTransport::set_computing(computing);
    }

private:
    layouts::Picoseconds begin_ = 0;
};

class FlippingTransport : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        if (++sent_ != 2 || from.empty()) return WrappedTransport::send(from, peer, channel);
        auto& flipped = flipped_.emplace_back(from.begin(), from.end());
        flipped[flipped.size() / 2 / 8 * 8] ^= std::byte{1};
        return WrappedTransport::send(flipped, peer, channel);
    }

private:
    int sent_ = 0;
    std::list<Bytes> flipped_;
};

/// Uses the ring rank of a peer where its global rank is needed.
class MisnumberedTransport : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        return WrappedTransport::send(from, group_.ring_rank(peer), channel);
    }
    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        return WrappedTransport::receive(into, group_.ring_rank(peer), channel);
    }
    std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) override {
        return WrappedTransport::fetch(into, group_.ring_rank(peer), offset);
    }
};

}  // namespace

std::unique_ptr<World> with_fault(std::unique_ptr<World> world, const WorldFault& fault) {
    return std::make_unique<WrappingWorld>(
        std::move(world), [fault](Transport& transport, const layouts::RingGroup& group) -> std::unique_ptr<Transport> {
            using Kind = WorldFault::Kind;
            if (fault.kind == Kind::misnumbers) return std::make_unique<MisnumberedTransport>(transport, group);
            if (transport.rank() != fault.rank) return std::make_unique<WrappedTransport>(transport, group);
            if (fault.kind == Kind::slow) return std::make_unique<SlowTransport>(transport, group);
            return std::make_unique<FlippingTransport>(transport, group);
        });
}

}  // namespace ringlab::reference
