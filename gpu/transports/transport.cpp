#include "gpu/transports/transport.hpp"

namespace ringlab::gpu {

bool is_overlapped(const layouts::Instruction& instruction) {
    return instruction.overlapped_flop >= overlapping_flop_per_byte * static_cast<double>(instruction.op.bytes);
}

std::set<Edge> edges_of(const layouts::RingGroup& group, const PassPrograms& programs, const MessageFilter& counts) {
    std::set<Edge> edges;
    for (const auto* of_pass : programs)
        for (const auto& program : of_pass->ranks)
            for (const auto& instruction : program.code)
                for (int replica = 0; replica < group.replicas; ++replica)
                    if (instruction.sends() && counts(instruction))
                        edges.insert({group.global_rank(replica, program.rank),
                                      group.global_rank(replica, instruction.op.peer), instruction.op.channel});
    return edges;
}

}  // namespace ringlab::gpu
