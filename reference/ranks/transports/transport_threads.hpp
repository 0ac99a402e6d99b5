#pragma once

#include "reference/ranks/transports/transport.hpp"

namespace ringlab::reference {

/// A world whose ranks are threads of this process. A message is copied once, from the sender's buffer to the
/// receiver's, by whichever of the two threads comes last.
class ThreadWorld : public World {
public:
    using World::World;

    bool is_root() const override { return true; }
    bool agree(bool root_says) override { return root_says; }
    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override;
};

}  // namespace ringlab::reference
