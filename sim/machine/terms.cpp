#include "sim/machine/terms.hpp"

#include "layouts/basics/require.hpp"

#include <array>

namespace ringlab::sim {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

/// Calls change(cost) for the attention costs of all kernels and passes.
template <class Change>
void for_each_attention(Machine& machine, Change change) {
    change(machine.forward);
    change(machine.backward);
    for (auto& kernel : machine.kernels) {
        change(kernel.forward);
        change(kernel.backward);
    }
}

template <class Change>
void for_each_link(Machine& machine, Change change) {
    change(machine.inside_host);
    change(machine.between_hosts);
}

/// Sets one price of every attention cost to 0.
template <double AttentionCost::*price>
void free_attention(Machine& machine) {
    for_each_attention(machine, [](AttentionCost& cost) { cost.*price = 0; });
}

template <double Machine::*price>
void free_machine(Machine& machine) {
    machine.*price = 0;
}

constexpr std::array all_terms{
    Term{"launch", "launch, ramp and drain of kernels", free_attention<&AttentionCost::launch_seconds>},
    Term{"work-tile", "prologue, loads and stores of a work tile", free_attention<&AttentionCost::work_tile_seconds>},
    Term{"partial-tiles", "that tiles which the mask cuts cost more than full ones",
         [](Machine& machine) {
             for_each_attention(machine,
                                [](AttentionCost& cost) { cost.partial_tile_seconds = cost.full_tile_seconds; });
         }},
    Term{"idle-work-tile", "work tiles that see nothing", free_attention<&AttentionCost::idle_work_tile_seconds>},
    Term{"resume", "read of the fp32 state of earlier blocks", free_attention<&AttentionCost::resume_seconds>},
    Term{"finish", "division and store behind the last block", free_attention<&AttentionCost::finish_seconds>},
    Term{"cluster", "sums of SMs that share a work tile", free_attention<&AttentionCost::cluster_seconds>},
    Term{"overflow-idle", "L2 overflow of work tiles that see nothing",
         free_attention<&AttentionCost::idle_tile_seconds_per_byte>},
    Term{"overflow-tail", "L2 overflow of O at the end of a launch",
         free_attention<&AttentionCost::tail_seconds_per_byte>},
    Term{"l2-misses", "row tiles that L2 has evicted", free_attention<&AttentionCost::l2_miss_seconds>},
    Term{"fused-launch", "that fused launches which wait for blocks are slower",
         [](Machine& machine) { for_each_attention(machine, [](AttentionCost& cost) { cost.fused_ratio = 1; }); }},
    Term{"power", "the clock that power allows",
         [](Machine& machine) {
             for_each_attention(machine, [](AttentionCost& cost) { cost.power_flops = unlimited; });
         }},
    Term{"power-of-gpus", "that GPUs differ in power", [](Machine& machine) { machine.power_of_gpus.clear(); }},
    Term{"begin", "kernels and fills before the first attend",
         [](Machine& machine) {
             for_each_attention(machine, [](AttentionCost& cost) { cost.begin_seconds = cost.begin_memory_ratio = 0; });
         }},
    Term{"end", "kernels behind the last operation",
         [](Machine& machine) {
             for_each_attention(machine, [](AttentionCost& cost) { cost.end_seconds = cost.end_memory_ratio = 0; });
         }},
    Term{"sum-launches", "launches of merges, sums and copies",
         [](Machine& machine) { machine.accumulate_launch_seconds = machine.copy_launch_seconds = 0; }},
    Term{"pass-issue", "host time before the first operation", free_machine<&Machine::pass_issue_seconds>},
    Term{"kernel-issue", "host time to issue a kernel", free_machine<&Machine::compute_issue_seconds>},
    Term{"message-issue", "host time to issue a message",
         [](Machine& machine) {
             machine.transfer_issue_seconds = machine.next_transfer_issue_seconds = 0;
             for_each_link(machine, [](LinkCost& link) { link.piece_issue_seconds = 0; });
         }},
    Term{"issue", "all time of the host",
         [](Machine& machine) {
             machine.pass_issue_seconds = machine.compute_issue_seconds = 0;
             machine.transfer_issue_seconds = machine.next_transfer_issue_seconds = 0;
             for_each_link(machine, [](LinkCost& link) { link.piece_issue_seconds = 0; });
         }},
    Term{"latency", "set-up of a message",
         [](Machine& machine) { for_each_link(machine, [](LinkCost& link) { link.latency_seconds = 0; }); }},
    Term{"beside-attends", "that messages are slower while an attend runs",
         [](Machine& machine) { for_each_link(machine, [](LinkCost& link) { link.busy_speed_ratio = 1; }); }},
    Term{"memory-shared", "that attends and messages share the memory's bandwidth",
         free_machine<&Machine::attention_memory_bytes_per_second>},
    Term{"sm-admission", "that message kernels wait for SMs beside an attend",
         [](Machine& machine) {
             for_each_attention(
                 machine, [](AttentionCost& cost) { cost.transfer_start = AttentionCost::TransferStart::at_once; });
         }},
    Term{"hidden-messages", "that messages which an attend hides use fewer channels",
         [](Machine& machine) { for_each_link(machine, [](LinkCost& link) { link.hidden = {}; }); }},
    Term{"pieces", "that messages from several places in memory are several calls",
         [](Machine& machine) {
             for_each_link(machine, [](LinkCost& link) {
                 link.piece_seconds = link.piece_issue_seconds = 0;
                 link.pieces_bytes_per_second = unlimited;
             });
         }},
};

}  // namespace

std::span<const Term> terms() { return all_terms; }

const Term& find_term(const std::string& name) {
    std::string known;
    for (const auto& term : all_terms) {
        if (term.name == name) return term;
        known += std::string(known.empty() ? "" : ", ") + term.name;
    }
    fail("unknown term of the cost model '{}'; known: {}", name, known);
}

}  // namespace ringlab::sim
