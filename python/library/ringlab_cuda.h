/* Ringlab's rings on CUDA devices behind plain C: one rank of a ring in each process, on tensors in device memory of
 * the caller, on the caller's stream. Statuses, problems and choices are those of ringlab_cpu.h.
 *
 * No C++ exception leaves the library. A ring and its plans are used by one thread at a time. Functions that say "all
 * ranks" are called by all ranks of the ring, in the same order, with equal arguments. */
#ifndef RINGLAB_CUDA_H
#define RINGLAB_CUDA_H

#include "ringlab_cpu.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Changes when a program that was compiled against this header has to be compiled again. */
#define RINGLAB_CUDA_VERSION 5
int ringlab_cuda_version(void);

/* Why the last call of this thread failed; valid until its next call. */
const char* ringlab_cuda_message(void);

/* ---- Rings ---- */

/* How ranks exchange bytes on the host while a plan is made; a ring of one rank never calls it. */
typedef struct {
    void* context;
    /* Sets `all` to what every rank gave, one behind another, valid until the next call, and sizes[rank] to its bytes.
     * Returns 0, or not 0 where other ranks did not come. */
    int (*all_gather)(void* context, const void* data, size_t bytes, const void** all, size_t* sizes);
} ringlab_cuda_exchange;

/* Device memory of plans comes from the caller, by functions that are called inside the functions below, on the same
 * thread. */
typedef struct {
    void* context;
    /* Returns memory of the ring's device, aligned to 256 bytes, for work that `stream` (a cudaStream_t) is given from
     * now on; null where there is none. */
    void* (*allocate)(void* context, size_t bytes, void* stream);
    /* All work that uses the memory has been enqueued: work that its stream is given later may get it. */
    void (*release)(void* context, void* memory);
} ringlab_cuda_allocator;

/* What moves blocks: copy engines among the devices of one host, NCCL among any; automatic: copy engines inside a host,
 * NCCL between hosts. */
typedef enum {
    RINGLAB_CUDA_AUTOMATIC = 0,
    RINGLAB_CUDA_COPY_ENGINES = 1,
    RINGLAB_CUDA_NCCL = 2
} ringlab_cuda_transport;

/* Of the CUDA device with this number in this process. All ranks. A pass that has begun and does not end within
 * `timeout` seconds breaks the ring: streams go on with results of no use, and the next call says why. */
typedef struct ringlab_cuda_ring ringlab_cuda_ring;
ringlab_status ringlab_cuda_ring_create(const ringlab_cuda_exchange* exchange, const ringlab_cuda_allocator* allocator,
                                        int rank, int ranks, int device, ringlab_cuda_transport transport,
                                        double timeout, ringlab_cuda_ring** ring);

/* Any rank at any time, also of a broken ring; its plans go with it. Returns 1 if the ring is destroyed, and 0 as long
 * as passes, or peers that have not done the same and live, may be using its memory: then it is to be called again. */
int ringlab_cuda_ring_destroy(ringlab_cuda_ring* ring);

/* What the ring holds besides memory of the allocator, in bytes: device memory that peers read and write, and pinned
 * host memory. It grows only when a plan needs more than all plans before. */
void ringlab_cuda_ring_held(const ringlab_cuda_ring* ring, int64_t* device, int64_t* host);

/* ---- Plans ---- */

/* bf16 and fp16 problems. A plan has work lists in memory of the allocator, and uses memory of the ring during its
 * passes, which run one after another. With `sinks` calls bring learned logits; if it is `deterministic`, dQ is summed
 * in a fixed order too. Making one does not wait for the device unless the ring's memory has to grow. All ranks;
 * refused on all of them if one cannot. */
typedef struct ringlab_cuda_plan ringlab_cuda_plan;
ringlab_status ringlab_cuda_plan_create(ringlab_cuda_ring* ring, const ringlab_problem* problem,
                                        const ringlab_choices* choices, int sinks, int deterministic,
                                        ringlab_cuda_plan** plan);

/* Bytes of device memory that a forward and a backward pass need besides their tensors. */
void ringlab_cuda_plan_scratch(const ringlab_cuda_plan* plan, int64_t bytes[2]);

/* Its passes may still be under way. Of a broken ring it does nothing. */
void ringlab_cuda_plan_destroy(ringlab_cuda_plan* plan);

/* ---- Passes ---- */

/* q, k, v as ringlab_tensor, strides[3] being 1; where head dims are multiples of 8, data and the other strides are
 * multiples of 16 bytes and not 0. The rest is contiguous: fp32 sinks by query head, or null. */
typedef struct {
    ringlab_tensor q, k, v;
    const float* sinks;
    uint64_t seed; /* of dropout, the same on all ranks */
} ringlab_cuda_inputs;

/* All ranks. Enqueues the pass behind what `stream` (a cudaStream_t) was given, and what it is given next behind the
 * pass. Results are contiguous, in the shapes of the rank's tensors: o in the problem's dtype; o_exact in fp32, before
 * its last rounding; lse (batch, tokens, query heads) in fp32. `scratch` has the bytes of ringlab_cuda_plan_scratch(),
 * aligned to 256 bytes, and is used by the pass alone: work that `stream` is given later may use it again. */
ringlab_status ringlab_cuda_forward(ringlab_cuda_plan* plan, const ringlab_cuda_inputs* inputs, void* o, float* o_exact,
                                    float* lse, void* scratch, void* stream);

/* dq, dk, dv in the problem's dtype, and by query head what the rank's own rows add to the gradient of the sinks, or
 * null. `dout` is as q. */
ringlab_status ringlab_cuda_backward(ringlab_cuda_plan* plan, const ringlab_cuda_inputs* inputs,
                                     const ringlab_tensor* dout, const float* o_exact, const float* lse, void* dq,
                                     void* dk, void* dv, float* dsinks, void* scratch, void* stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
