#pragma once

#include "reference/ranks/transports/transport.hpp"

namespace ringlab::reference {

/// A fault that is injected into one rank of a world, to test that it is noticed.
struct WorldFault {
    enum class Kind {
        slow,         ///< each of its operations takes four times its CPU time
        flips_a_bit,  ///< inverts a lowest-order bit in the middle of its second message, too small to show in results
        misnumbers,   ///< all ranks use ring ranks as global ranks
    };
    Kind kind = Kind::slow;
    int rank = 0;  ///< global
};

/// Wraps a world so that it has the fault.
std::unique_ptr<World> with_fault(std::unique_ptr<World> world, const WorldFault& fault);

}  // namespace ringlab::reference
