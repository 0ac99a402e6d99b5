#pragma once

#include "gpu/kernels/attention.hpp"

#include <chrono>

namespace ringlab::gpu {

/// Own rows that a launch stores in a peer's memory before anything else: `rows` pieces of `bytes` bytes. It sets
/// `flag` there when they are stored.
struct RowsMessage {
    const char* from = nullptr;
    char* to = nullptr;
    std::size_t bytes = 0, rows = 1;
    std::size_t from_pitch = 0, to_pitch = 0;
    std::uint32_t* flag = nullptr;
    std::uint32_t* parts_done = nullptr;  ///< in own memory: a counter that is 0 between launches
};

/// Rows of another rank that a launch attends to.
struct OtherRows {
    const WorkList* work = nullptr;
    ConstView q = {};                          ///< where their owner's launch stores them, ...
    const std::uint32_t* rows_flag = nullptr;  ///< ... and sets this flag
    View o = {};                               ///< the partial result, normalised, in the owner's memory, ...
    RowView lse = {};
    std::uint32_t* result_flag = nullptr;      ///< ... where the launch then sets this flag
    std::uint32_t* row_groups_done = nullptr;  ///< in own memory: a counter that is 0 between launches
};

/// A partial result of the own rows, normalised, that a peer's launch stores in this rank's memory.
struct ArrivingResult {
    ConstView o = {};
    ConstRowView lse = {};
    const std::uint32_t* flag = nullptr;
};

/// A rank's whole forward pass in one launch, which runs at the same time as the launches of its peers: it sends its
/// own rows, attends to the rows of peers and sends the results, attends to its own rows, and merges the results of
/// peers into the own one, an o in fp32, in the order of `arriving`. All attends are to the same keys.
///
/// Flags are four bytes that have the number of the launch that set them last. Launches of a rank have ascending
/// numbers from 1, and all ranks make their launches of one number together. Nothing else orders launches of different
/// ranks.
struct MergingArgs {
    AttendShape shape = {};
    ConstView k = {}, v = {};
    std::span<const RowsMessage> messages = {};
    std::span<const OtherRows> others = {};
    const WorkList* work = nullptr;  ///< of the own rows; null if the rank has none
    ConstView q = {};
    ForwardResult result = {};
    std::span<const ArrivingResult> arriving = {};
    std::uint32_t* own_done = nullptr;  ///< in own memory: a counter that is 0 between launches, ...
    std::uint32_t* own_flag = nullptr;  ///< ... and a flag that no peer sets

    /// Ranks that have such a launch on this device at the same time. If there are several, their thread blocks must
    /// all fit on the device, because they wait for each other.
    int ranks_on_device = 1;
    std::uint32_t number = 0;
    /// A launch waits for a peer for a limited time. After that it sets `late` in device memory, which ends all other
    /// waits, and then `*reported` in host memory to a LatePeer's code. Its results are of no use.
    std::chrono::nanoseconds most_wait = std::chrono::minutes(1);
    std::uint32_t* late = nullptr;
    std::uint32_t* reported = nullptr;
};

/// What a launch waited for in vain: the rows of others[index], or arriving[index].
struct LatePeer {
    std::size_t index = 0;
    bool is_result = false;

    /// `code`: as reported, not 0.
    static LatePeer from(std::uint32_t code) { return {(code - 1) / 2, code % 2 == 0}; }
};

}  // namespace ringlab::gpu
