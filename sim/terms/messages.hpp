#pragma once

#include "sim/terms/price.hpp"

/// Terms of messages, and of attends beside them. Their time with the link to itself: cost/cost.cpp.
namespace ringlab::sim::terms {

struct Latency {
    static constexpr auto name = "latency", effect = "set-up of a message";
    static constexpr Price<LinkCost> prices[] = {{"latency_us", &LinkCost::latency_seconds}};
};

struct BesideAttends {
    static constexpr auto name = "beside-attends", effect = "that messages are slower while an attend runs";
    static constexpr Price<LinkCost> prices[] = {
        {"busy_speed_ratio", &LinkCost::busy_speed_ratio, Fitted::no, 1, ranges::fraction}};
};

/// play/shared_resources.cpp shares it out.
struct MemoryShared {
    static constexpr auto name = "memory-shared", effect = "that attends and messages share the memory's bandwidth";
    static constexpr Price<Machine> prices[] = {{"gpu.attention_memory_gigabytes_per_second",
                                                 &Machine::attention_memory_bytes_per_second,
                                                 Fitted::no,
                                                 units::giga,
                                                 {0, 1e9}}};
};

/// play/sm_admission.hpp says how long they wait.
struct SmAdmission {
    static constexpr auto name = "sm-admission", effect = "that message kernels wait for SMs beside an attend";
    static void remove(AttentionCost& cost) { cost.transfer_start = AttentionCost::TransferStart::at_once; }
};

struct Pieces {
    static constexpr auto name = "pieces", effect = "that messages from several places in memory are several calls";
    static constexpr Price<LinkCost> prices[] = {
        {"pieces.each_us", &LinkCost::piece_seconds},
        {"pieces.gigabytes_per_second", &LinkCost::pieces_bytes_per_second, Fitted::no, units::giga, ranges::bandwidth},
        {"pieces.issue_us", &LinkCost::piece_issue_seconds}};

    static double latency(const LinkCost& link, std::int64_t pieces) {
        return link.piece_seconds * static_cast<double>(pieces - 1);
    }
};

}  // namespace ringlab::sim::terms
