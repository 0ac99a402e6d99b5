#include "reference/ranks/transports/checksums.hpp"

#include "reference/ranks/transports/wrapped_world.hpp"

#include <cstring>
#include <tuple>

namespace ringlab::reference {
namespace {

/// Numbers the messages between two ranks on a channel, and computes the checksum seed of the next one.
class Numbering {
public:
    struct Next {
        std::uint64_t seed, number;
    };
    Next next(int from, int to, int channel) {
        const auto number = numbers_[{from, to, channel}]++;
        std::uint64_t seed = 1469598103934665603u;  // FNV's offset basis; any number would do
        for (const auto part : {static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
                                static_cast<std::uint64_t>(channel), number})
            seed = (seed ^ part) * 1099511628211u;
        return {seed, number};
    }

private:
    std::map<std::tuple<int, int, int>, std::uint64_t> numbers_;
};

/// A message followed by its checksum.
struct CheckedMessage {
    Bytes bytes;
    bool is_free = false;
};

class ChecksummedTransfer : public Transfer {
public:
    ChecksummedTransfer(std::unique_ptr<Transfer> inner, CheckedMessage& envelope, std::function<void()> arrived)
        : inner_(std::move(inner)), envelope_(envelope), arrived_(std::move(arrived)) {}

    std::optional<Clock::time_point> ended() override {
        const auto time = inner_->ended();
        if (time && !envelope_.is_free) {
            if (arrived_) arrived_();
            envelope_.is_free = true;
        }
        return time;
    }

private:
    std::unique_ptr<Transfer> inner_;
    CheckedMessage& envelope_;
    std::function<void()> arrived_;
};

class ChecksummedTransport : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        auto& envelope = take(from.size());
        const auto sum = checksum(from, sent_.next(rank(), peer, channel).seed);
        if (!from.empty()) std::memcpy(envelope.bytes.data(), from.data(), from.size());
        std::memcpy(envelope.bytes.data() + from.size(), &sum, sizeof(sum));
        return std::make_unique<ChecksummedTransfer>(inner_.send(envelope.bytes, peer, channel), envelope, nullptr);
    }

    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        auto& envelope = take(into.size());
        const auto [seed, number] = received_.next(peer, rank(), channel);
        auto open = [this, &envelope, into, peer, channel, seed = seed, number = number] {
            std::uint64_t stated = 0;
            std::memcpy(&stated, envelope.bytes.data() + into.size(), sizeof(stated));
            const auto found = checksum(std::span(envelope.bytes).first(into.size()), seed);
            require(found == stated,
                    "rank {} receives from rank {}: message {} on channel {}, of {} bytes, is not what was sent: its "
                    "checksum is {:016x}, but {:016x} was sent with it",
                    rank(), peer, number + 1, channel, into.size(), found, stated);
            if (!into.empty()) std::memcpy(into.data(), envelope.bytes.data(), into.size());
        };
        return std::make_unique<ChecksummedTransfer>(inner_.receive(envelope.bytes, peer, channel), envelope,
                                                     std::move(open));
    }

    std::unique_ptr<Transfer> fetch(std::span<std::byte>, int peer, std::size_t) override {
        fail(
            "rank {} would fetch from the memory of rank {}, which no checksum protects; leave out --checksums, or "
            "choose a schedule whose ranks send, such as ring",
            rank(), peer);
    }

private:
    CheckedMessage& take(std::size_t bytes) {
        auto free = std::find_if(envelopes_.begin(), envelopes_.end(), [](const auto& one) { return one->is_free; });
        if (free == envelopes_.end()) free = envelopes_.insert(free, std::make_unique<CheckedMessage>());
        (*free)->is_free = false;
        (*free)->bytes.resize(bytes + sizeof(std::uint64_t));
        return **free;
    }

    Numbering sent_, received_;
    std::vector<std::unique_ptr<CheckedMessage>> envelopes_;  // kept until the end of the run, see World::run()
};

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
    // All steps are invertible, so a change of one word always changes the sum. Four independent chains hide the
    // latency of multiplications.
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u;
    std::uint64_t chains[4] = {seed, seed ^ odd, ~seed, seed + odd};
    const auto take = [](std::uint64_t& chain, std::uint64_t word) {
        chain = (chain ^ word) * odd;
        chain ^= chain >> 32;
    };
    std::size_t at = 0;
    for (; at + 32 <= bytes.size(); at += 32) {
        std::uint64_t words[4];
        std::memcpy(words, bytes.data() + at, sizeof(words));
        for (std::size_t i = 0; i < 4; ++i) take(chains[i], words[i]);
    }
    for (; at < bytes.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
        take(chains[0], word);
    }
    std::uint64_t sum = bytes.size();
    for (const auto chain : chains) take(sum, chain);
    return sum;
}

std::unique_ptr<World> with_checksums(std::unique_ptr<World> world) {
    return std::make_unique<WrappedWorld<ChecksummedTransport>>(std::move(world));
}

}  // namespace ringlab::reference
