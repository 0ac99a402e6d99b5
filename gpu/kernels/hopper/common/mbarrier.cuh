#pragma once

#include <cstdint>

// Synchronisation of the warpgroups of a thread block on sm_90a: barriers in shared memory that count arrivals and
// bytes, named barriers, fences between ordinary accesses and the asynchronous units, and who has how many registers.

namespace ringlab::gpu::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A barrier of 8 bytes at a shared-memory address, a multiple of 8. A phase ends when all `arrivals` and all announced
/// bytes have come. A wait names the parity of the phase it waits for: 0 for the first, 1 for the second, 0 again. The
/// phase before the first counts as ended, so a producer's first wait, for parity 1, passes at once.
struct Barrier {
    std::uint32_t address;

    __device__ void initialise(std::uint32_t arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
    }

    __device__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
    }

    /// Arrives, and adds to the bytes that the phase waits for.
    __device__ void arrive_and_expect(std::uint32_t bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
    }

    __device__ bool has_ended(std::uint32_t parity) const {
        std::uint32_t ended;
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(ended)
            : "r"(address), "r"(parity)
            : "memory");
        return ended != 0;
    }

    __device__ void wait(std::uint32_t parity) const {
#ifdef RINGLAB_BOUNDED_WAITS
        // For development: a wait that never ends becomes an error of the launch. Each try suspends for a while.
        for (int tries = 0; !has_ended(parity); ++tries)
            if (tries > (1 << 20)) __trap();
#else
        while (!has_ended(parity)) {
        }
#endif
    }
};

/// After initialising barriers: the asynchronous units see them. A barrier of the block has to follow.
__device__ inline void fence_barrier_initialisation() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Between ordinary accesses to shared memory and those of bulk copies or wgmma to the same bytes, in the thread that
/// made the ordinary ones, before the barrier that hands them over.
__device__ inline void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// The same for all memory: an acquired flag for data that a bulk copy reads next.
__device__ inline void fence_all_for_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Named barrier `id`, 1 to 15 (0 is __syncthreads()), of `threads`, a multiple of 32: waits for the others, ...
__device__ inline void sync_named(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// ... or is only counted.
__device__ inline void arrive_named(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Registers per thread of this warpgroup from now on, a multiple of 8. Needs __launch_bounds__(threads, 1).
template <int registers>
__device__ inline void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// The same for all lanes of a warp, and known to the compiler to be so.
__device__ inline int uniform(int value) { return __shfl_sync(~0u, value, 0); }

/// True in one lane of a converged warp.
__device__ inline bool elected() {
    std::uint32_t is_elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(is_elected));
    return is_elected != 0;
}

}  // namespace ringlab::gpu::hopper
