#pragma once

#include "reference/ranks/transports/transport.hpp"

namespace ringlab::reference {

/// A 64-bit checksum of a message's bytes. `seed` identifies sender, receiver, channel and number of the message. Two
/// messages that differ only within one 8-byte word always have different checksums; any other two have the same one
/// with probability 2^-64.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed);

/// Wraps a world so that every message is followed by an 8-byte checksum. A message that was changed, or that is not
/// the next one on its channel, ends the run with an Error that names both ranks, the channel and the message. A fetch
/// throws Error, because its owner takes no part in it and sends no checksum.
std::unique_ptr<World> with_checksums(std::unique_ptr<World> world);

}  // namespace ringlab::reference
