#include "gpu/transports/transport.hpp"

namespace ringlab::gpu {

bool is_overlapped(const layouts::Instruction& instruction) {
    return instruction.overlapped_flop >= overlapping_flop_per_byte * static_cast<double>(instruction.op.bytes);
}

std::set<int> flagged_peers(const Fabric& fabric, const layouts::RingGroup& group, int global_rank) {
    std::set<int> peers;
    for (int peer = 0; peer < group.ring; ++peer)
        if (fabric.sets_flags(global_rank, group.global_rank(group.replica(global_rank), peer))) peers.insert(peer);
    return peers;
}

Routes routes_of(const layouts::RingGroup& group, const std::vector<layouts::Program>& programs) {
    Routes routes;
    for (const auto& of_pass : programs)
        for (const auto& program : of_pass.ranks)
            for (const auto& instruction : program.code)
                for (int replica = 0; replica < group.replicas; ++replica)
                    if (instruction.sends())
                        routes.insert({{group.global_rank(replica, program.rank),
                                        group.global_rank(replica, instruction.op.peer), instruction.op.channel},
                                       is_overlapped(instruction)});
    return routes;
}

}  // namespace ringlab::gpu
