#pragma once

#include "gpu/kernels/hopper/common/mbarrier.cuh"

#include <cuda.h>

// Copies by the bulk copy engine (TMA). One thread issues them; loads report to a Barrier, stores belong to the issuing
// thread's groups. Before a store, the threads that wrote the shared memory fence_shared_for_async() and meet.

namespace ringlab::gpu::hopper {

/// What to do with the lines in L2 (bits of the cache hint).
enum class Keep : std::uint64_t {
    normal = 0x1000000000000000,
    first_to_go = 0x12f0000000000000,  ///< read once
    last_to_go = 0x14f0000000000000,   ///< read by many
};

__device__ inline void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// A box of the mapped tensor to shared memory, its bytes counted by `barrier`.
__device__ inline void load_box(std::uint32_t shared, const CUtensorMap& map, Barrier barrier, int dim, int token,
                                int head, int batch, Keep keep = Keep::normal) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
        "l"(&map), "r"(barrier.address), "r"(dim), "r"(token), "r"(head), "r"(batch),
        "l"(static_cast<std::uint64_t>(keep))
        : "memory");
}

/// Reads a box of the mapped tensor into L2.
__device__ inline void prefetch_box(const CUtensorMap& map, int dim, int token, int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(dim), "r"(token),
                 "r"(head), "r"(batch)
                 : "memory");
}

/// `bytes` adjacent bytes, a multiple of 16, between aligned addresses.
__device__ inline void load_bytes(std::uint32_t shared, const void* global, std::uint32_t bytes, Barrier barrier,
                                  Keep keep = Keep::normal) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared),
        "l"(global), "r"(bytes), "r"(barrier.address), "l"(static_cast<std::uint64_t>(keep))
        : "memory");
}

/// A box of shared memory, added to the mapped tensor.
__device__ inline void add_box(const CUtensorMap& map, std::uint32_t shared, int dim, int token, int head, int batch) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
        "r"(shared), "r"(dim), "r"(token), "r"(head), "r"(batch)
        : "memory");
}

/// Closes a group of this thread's stores.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the last `pending` groups have read their shared memory, which may then be written again.
template <int pending>
__device__ inline void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/// Waits until all but the last `pending` groups are done: their writes are visible to this thread.
template <int pending>
__device__ inline void wait_stores_done() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace ringlab::gpu::hopper
