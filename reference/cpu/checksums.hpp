#pragma once

#include "reference/cpu/transport.hpp"

namespace ringlab::reference {

/// Of a message's bytes, and of who sends which message to whom: `seed`. Two messages that differ within one word of 8
/// bytes never have the same one, any two others with a chance of 2^-64.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed);

/// The world with a checksum behind every message, 8 bytes: a message that is not what was sent, or not the one whose
/// turn it is, ends the run with an Error that names both ranks, the channel and the message. A fetch is refused: its
/// owner takes no part in it.
std::unique_ptr<World> with_checksums(std::unique_ptr<World> world);

}  // namespace ringlab::reference
