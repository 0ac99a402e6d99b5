#pragma once

#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/pairs.hpp"

#include <chrono>

namespace ringlab::gpu {

/// Rows of another rank that a launch attends to.
struct OtherRows {
    const WorkList* work = nullptr;
    const Pair* q = nullptr;  ///< where their owner's launch stores them, two elements in a pair
    ResultPairs result = {};  ///< in the owner's memory
};

/// A rank's whole forward passes, each in one launch, which runs at the same time as the launches of its peers: it
/// sends its own rows, attends to the rows of peers and sends the results, attends to its own rows, and merges the
/// results of peers, in the order of `arriving`, and its own. All attends are to the same keys.
///
/// All ranks make their launches of one number together, and no number is that of the launch before. Pairs must not
/// have the number of the first launch before it, and nobody else writes to them. Nothing else orders launches of
/// different ranks.
struct MergingArgs {
    AttendShape shape = {};
    ConstView k = {}, v = {};
    std::span<Pair* const> messages = {};  ///< where peers want the own rows
    std::span<const OtherRows> others = {};
    const WorkList* work = nullptr;  ///< of the own rows; null if the rank has none
    ConstView q = {};
    ForwardResult result = {};
    std::span<const ResultPairs> arriving = {};  ///< in own memory, of the own rows, from peers ...
    ResultPairs own = {};                        ///< ... and from this launch, if there are peers

    /// Ranks that have such a launch on this device at the same time. If there are several, their thread blocks must
    /// all fit on the device, because they wait for each other.
    int ranks_on_device = 1;
    /// A launch waits for a peer for a limited time. After that it sets `late` in device memory, which ends all other
    /// waits, and then `*reported` in host memory to a LatePeer's code. Its results are of no use.
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);
    std::uint32_t* late = nullptr;
    std::uint32_t* reported = nullptr;
};

/// A message that a launch waited for in vain: the rows of others[index], or the result arriving[index].
struct LatePeer {
    std::size_t index = 0;
    bool is_result = false;

    /// `code`: as reported, not 0.
    static LatePeer from(std::uint32_t code) { return {(code - 1) / 2, code % 2 == 0}; }
};

}  // namespace ringlab::gpu
