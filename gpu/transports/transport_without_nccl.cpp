#include "gpu/transports/transport.hpp"

// The NCCL fabric of transport.hpp in a program built without NCCL.
namespace ringlab::gpu {

std::unique_ptr<Fabric> make_nccl_fabric(Team&, const FabricOptions&, const Routes&) {
    fail("this program was built without NCCL; configure it with -DRINGLAB_NCCL=ON, or use another transport");
}

std::string nccl_version() { return "none"; }

}  // namespace ringlab::gpu
