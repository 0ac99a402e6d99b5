#pragma once

#include <compare>

namespace ringlab::gpu {

/// Operations of one NCCL communicator run one after another, whatever their streams. A ring's ranks all send before
/// they receive, so a rank's sends and receives must lie on different communicators, which both ends agree on without
/// asking: the highest bit in which the two ranks differ, and the sender's value of it. A rank sends on (bit, its own
/// value) and receives on (bit, the other value). That takes 2 log2 P communicators where a ring alone could do with
/// two, and holds for messages between any ranks.
struct NcclDirection {
    int bit = 0;
    int value = 0;
    friend auto operator<=>(const NcclDirection&, const NcclDirection&) = default;
};

/// The direction of a message from rank (or device) `from` to `to`, two different ones.
constexpr NcclDirection nccl_direction(int from, int to) {
    int bit = 0;
    for (int difference = from ^ to; difference > 1; difference >>= 1) ++bit;
    return {bit, (from >> bit) & 1};
}

}  // namespace ringlab::gpu
