#pragma once

#include "reference/cpu/transport.hpp"

namespace ringlab::reference {

/// What is wrong with one rank of a world, on purpose.
struct WorldFault {
    enum class Kind {
        slow,         ///< each of its operations takes `slowdown` times its processor time
        flips_a_bit,  ///< the lowest bit in the middle of its second message, which nobody would notice in a result
        misnumbers,   ///< all ranks: peers are numbered as if the ring were the world
    };
    Kind kind = Kind::slow;
    int rank = 0;  ///< global
    double slowdown = 4;
};

std::unique_ptr<World> with_fault(std::unique_ptr<World> world, const WorldFault& fault);

}  // namespace ringlab::reference
