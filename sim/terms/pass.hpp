#pragma once

#include "layouts/operations/operation.hpp"
#include "sim/terms/price.hpp"

#include <algorithm>

/// Terms of what a pass does on the GPU beside its attends, and of the host that issues it.
namespace ringlab::sim::terms {

/// Kernels whose work tiles are query tiles begin with launches, those of key tiles with memory traffic as well. So one
/// figure is fitted for each.
struct Begin {
    static constexpr auto name = "begin", effect = "kernels and fills around the attends of a pass";
    static constexpr Price<AttentionCost> prices[] = {
        {"begin_us", &AttentionCost::begin_seconds, Fitted::for_query_tiles},
        {"begin_memory_ratio", &AttentionCost::begin_memory_ratio, Fitted::for_key_tiles, 1, ranges::ratio}};

    static double seconds(const AttentionCost& cost, double bytes_of_q, double memory) {
        return cost.begin_seconds + cost.begin_memory_ratio * bytes_of_q / memory;
    }
};

/// Merges of partial results, sums of gradients, and copies.
struct Sums {
    static constexpr auto name = "sum-launches", effect = "launches of merges, sums and copies";
    static constexpr Price<Machine> prices[] = {
        {"accumulate.launch_us", &Machine::accumulate_launch_seconds},
        {"accumulate.merge_memory_ratio", &Machine::merge_memory_ratio, Fitted::no, 1, ranges::ratio},
        {"accumulate.add_memory_ratio", &Machine::add_memory_ratio, Fitted::no, 1, ranges::ratio},
        {"accumulate.copy_memory_ratio", &Machine::copy_memory_ratio, Fitted::no, 1, ranges::ratio}};

    /// The first partial result of its rows finds no result to read. It is only converted to fp32.
    static double seconds(const Machine& machine, const layouts::Op& op, std::int64_t bytes_of_number) {
        auto ratio = op.kind == layouts::OpKind::copy    ? machine.copy_memory_ratio
                     : op.kind == layouts::OpKind::merge ? machine.merge_memory_ratio
                                                         : machine.add_memory_ratio;
        if (op.kind == layouts::OpKind::merge && op.begins)
            ratio = std::min(ratio, 1 + 4 / static_cast<double>(bytes_of_number));
        return machine.accumulate_launch_seconds +
               ratio * static_cast<double>(op.bytes) / machine.memory_bytes_per_second;
    }
    static void remove(Machine& machine) { machine.accumulate_launch_seconds = 0; }
};

struct MessageIssue {
    static constexpr auto name = "message-issue", effect = "host time to issue a message";
    static constexpr Price<Machine> prices[] = {{"host.transfer_issue_us", &Machine::transfer_issue_seconds}};

    static void remove(Machine& machine) {
        machine.transfer_issue_seconds = 0;
        for (auto* link : {&machine.inside_host, &machine.between_hosts}) link->piece_issue_seconds = 0;
    }
};

}  // namespace ringlab::sim::terms
