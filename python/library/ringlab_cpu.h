/* Ringlab's CPU ranks behind plain C: plans, one rank's forward and backward pass, what they cost and may be wrong by.
 *
 * Every function that can fail returns a ringlab_status; ringlab_message() then says why, in one line. No C++ exception
 * leaves the library. Objects are opaque, made by *_create and freed by *_destroy. A plan may be used by several
 * threads at a time, a ring by one, but for ringlab_ring_done(). Nothing here prints or reads the environment. */
#ifndef RINGLAB_CPU_H
#define RINGLAB_CPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Changes when a program that was compiled against this header has to be compiled again. */
#define RINGLAB_CPU_VERSION 4
int ringlab_version(void);

typedef enum {
    RINGLAB_OK = 0,
    RINGLAB_REFUSED = 1, /* an argument is wrong; nothing was begun, and the next call may be right */
    RINGLAB_BROKEN = 2   /* a pass ended half way: its ring can be used no more, all else can */
} ringlab_status;

/* Why the last call of this thread failed; valid until its next call. */
const char* ringlab_message(void);

/* The commit that this library was built from, with "+dirty" if files had changed; "unknown" without a repository. */
const char* ringlab_commit(void);

/* ---- Names ---- */

typedef enum { RINGLAB_LAYOUTS = 0, RINGLAB_MASKS = 1, RINGLAB_SCHEDULES = 2 } ringlab_kind;

/* How the index-th name of a kind is typed, as "striped[:WIDTH]", and what it is; the texts stay valid. Refused past
 * the last one. */
ringlab_status ringlab_name(ringlab_kind kind, int index, const char** name, const char** usage, const char** help);

/* ---- Plans ---- */

typedef enum { RINGLAB_BF16 = 0, RINGLAB_FP16 = 1, RINGLAB_FP32 = 2, RINGLAB_FP64 = 3 } ringlab_dtype;

/* Of the whole sequence; see layouts/problem/problem.hpp. bf16 and fp16 are emulated: operands of products are rounded,
 * sums are fp32. */
typedef struct {
    int64_t batch, tokens, query_heads, kv_heads, head_dim, value_dim;
    double scale;    /* 0: 1/sqrt(head_dim) */
    double soft_cap; /* 0: none */
    double dropout;  /* probability, 0: none */
    int32_t dtype;   /* ringlab_dtype */
} ringlab_problem;

/* Names as the programs take them. The mask is of the first `mask_tokens` tokens; those behind are padding. An empty
 * mask is "full", and refused by layouts that follow the mask. */
typedef struct {
    const char* mask;
    const char* layout;
    const char* schedule;
    int64_t tokens, mask_tokens;
    int32_t ranks;
} ringlab_choices;

/* Tokens must be a multiple of this for the layout to divide them. */
ringlab_status ringlab_granularity(const char* layout, int ranks, int64_t* multiple);

/* Global positions of a rank's tokens in local order; of documents their places in their documents if `by_document`.
 * Writes at most `capacity` of them, and their number to `count`. The schedule is not read. */
ringlab_status ringlab_positions(const ringlab_choices* choices, int rank, int by_document, int64_t* positions,
                                 int64_t capacity, int64_t* count);

/* Sets visible[i] to 1 if row queries[i] sees key keys[i] under the mask, else to 0; `count` pairs of global positions.
 * Layout, schedule and ranks are not read. */
ringlab_status ringlab_visible(const ringlab_choices* choices, const int64_t* queries, const int64_t* keys,
                               int64_t count, uint8_t* visible);

typedef struct ringlab_plan ringlab_plan;
ringlab_status ringlab_plan_create(const ringlab_problem* problem, const ringlab_choices* choices, ringlab_plan** plan);
void ringlab_plan_destroy(ringlab_plan* plan);

/* ---- Rings ---- */

/* How messages travel. Calls come from the thread that is in ringlab_forward() or ringlab_backward(). Messages between
 * two ranks on one channel match in order. send and receive return at once, 0 or, where they cannot even begin, not 0;
 * ringlab_ring_done() tells later how a request ended, from any thread. */
typedef struct {
    void* context;
    /* `data` is valid during the call alone. */
    int (*send)(void* context, int peer, int channel, const void* data, size_t bytes, uint64_t request);
    int (*receive)(void* context, int peer, int channel, size_t bytes, uint64_t request);
    /* Asked several times a second while a pass waits; not 0 ends it. */
    int (*stop)(void* context);
} ringlab_transport;

typedef struct ringlab_ring ringlab_ring;

/* A pass in which nothing moves for `timeout` seconds ends. */
ringlab_status ringlab_ring_create(const ringlab_transport* transport, int rank, int ranks, double timeout,
                                   ringlab_ring** ring);
void ringlab_ring_destroy(ringlab_ring* ring);

/* A request has ended: with what was received, which is copied, or nothing for a send; or with `error`. Requests of a
 * pass that is over are ignored. */
void ringlab_ring_done(ringlab_ring* ring, uint64_t request, const void* data, size_t bytes, const char* error);

/* ---- An all-gather among ranks of one host ---- */

/* Through shared memory, repeated: in each round every rank gives a block of `bytes` and gets those of all. */
typedef struct ringlab_all_gather ringlab_all_gather;

/* On rank 0. `address` is for the other ranks; it holds until ringlab_all_gather_ready(), when all have opened it. */
ringlab_status ringlab_all_gather_create(int ranks, size_t bytes, int64_t address[3], ringlab_all_gather** gather);
/* On the others. Refused where rank 0's memory cannot be opened, as on another host. */
ringlab_status ringlab_all_gather_open(const int64_t address[3], int rank, int ranks, size_t bytes,
                                       ringlab_all_gather** gather);
void ringlab_all_gather_ready(ringlab_all_gather* gather);
/* The other ranks hear that this one begins no further round. */
void ringlab_all_gather_leave(ringlab_all_gather* gather);
void ringlab_all_gather_destroy(ringlab_all_gather* gather);

/* Begins a round with this rank's block, or goes on with the one that has begun if `block` is null. Waits `seconds` at
 * most. Once the blocks of all ranks are there it copies them to `blocks`, by rank, and sets `complete`. Broken where a
 * rank has left or its process has ended, or where the round waited longer than `limit` seconds. */
ringlab_status ringlab_all_gather_round(ringlab_all_gather* gather, const void* block, double seconds, double limit,
                                        void* blocks, int* complete);

/* ---- Passes ---- */

/* (batch, tokens of the rank, heads, dim) of the problem's dtype; strides count elements. */
typedef struct {
    const void* data;
    int64_t strides[4];
} ringlab_tensor;

typedef struct {
    ringlab_tensor q, k, v;
    const double* sinks; /* a logit for each query head, or null */
    uint64_t seed;       /* of dropout, the same on all ranks */
} ringlab_inputs;

/* All ranks of a ring make the same calls in the same order. Results are contiguous, in the shapes of the rank's
 * tensors: o in the problem's dtype; o_exact the same before its last rounding; lse (batch, tokens, query heads). The
 * last two are fp64 for an fp64 problem, else fp32. */
ringlab_status ringlab_forward(ringlab_plan* plan, ringlab_ring* ring, const ringlab_inputs* inputs, void* o,
                               void* o_exact, void* lse);

/* dq, dk, dv in the problem's dtype, and by query head what the rank's own rows add to the gradient of the sinks. */
ringlab_status ringlab_backward(ringlab_plan* plan, ringlab_ring* ring, const ringlab_inputs* inputs,
                                const ringlab_tensor* dout, const void* o_exact, const void* lse, void* dq, void* dk,
                                void* dv, double* dsinks);

typedef enum { RINGLAB_ATTEND = 0, RINGLAB_OTHER_COMPUTE = 1, RINGLAB_SEND = 2, RINGLAB_RECEIVE = 3 } ringlab_activity;

/* An operation of a pass. Both times are seconds before the call of ringlab_spans(); a message begins when this rank is
 * ready for it. */
typedef struct {
    double begin, end;
    int32_t activity; /* ringlab_activity */
    int32_t peer;     /* of a message, else -1 */
} ringlab_span;

/* What this rank did in the ring's last pass. Writes at most `capacity` spans, and their number to `count`; none if
 * there was no pass, or if it failed. */
ringlab_status ringlab_spans(const ringlab_ring* ring, ringlab_span* spans, int64_t capacity, int64_t* count);

/* ---- What it may be wrong by, and what it would cost ---- */

/* Whole tensors in fp64, contiguous: what attention is computed from, and what is expected of it. */
typedef struct {
    const double *q, *k, *v, *dout, *sinks;
    uint64_t seed;
    const double *o, *lse, *dq, *dk, *dv, *dsinks;
} ringlab_expected;

/* The most that a right run may be off by, from the roundings of its arithmetic (reference/error/error_model.hpp):
 * relative root mean square, and largest difference over the largest expected magnitude, of o, o_exact, lse, dq, dk, dv
 * and dsinks, in this order. */
ringlab_status ringlab_bounds(const ringlab_plan* plan, const ringlab_expected* expected, double bounds[7][2]);

typedef enum { RINGLAB_PASS_FORWARD = 0, RINGLAB_PASS_BACKWARD = 1 } ringlab_pass;

/* Seconds on the machine that a file describes. */
typedef struct {
    double seconds;                /* end of the last operation of any rank */
    double naive_overlapped;       /* guesses without a simulator: of the slowest rank's steps max(compute, transfer) */
    double naive_serial;           /* and compute + transfer */
    double compute, compute_mean;  /* of the compute lane: the rank with most, and the mean */
    double communication, exposed; /* largest of any rank: transfers; time in which nothing computes */
    double flop;                   /* of visible pairs, all ranks */
    double scratch_bytes;          /* of a rank, beside its own tensors */
} ringlab_prediction;
ringlab_status ringlab_predict(const ringlab_plan* plan, const char* machine_file, ringlab_pass pass,
                               ringlab_prediction* prediction);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
