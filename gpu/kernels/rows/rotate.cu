#include "gpu/kernels/common/launch.cuh"
#include "gpu/kernels/common/tile.cuh"
#include "gpu/kernels/elementwise_params.hpp"

// A warp takes a token: its lanes work out the sines and cosines of their pairs once, for all heads.

namespace ringlab::gpu {
namespace {

using namespace device;

constexpr int rotate_threads = 256, tokens_per_block = rotate_threads / 32, heads_at_once = 4;

struct PairTurn {
    double cosine, sine;
};

__device__ PairTurn turn_of(const RotateParams& params, double position, int pair) {
    double sine, cosine;
    sincos(position * params.frequencies[pair], &sine, &cosine);
    return {params.amplitude * cosine, params.sign * params.amplitude * sine};
}

/// A float that rounds to 16 bits as `x` does: to float by rounding to odd, which no later rounding takes for a tie.
/// Products in fp32 round some elements of q and k to the other neighbour, which lse shows.
__device__ float to_odd(double x) {
    const float cut = __double2float_rz(x);
    return static_cast<double>(cut) == x ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}

__device__ float2 turned(PairTurn turn, float x, float y) {
    return make_float2(to_odd(turn.cosine * x - turn.sine * y), to_odd(turn.sine * x + turn.cosine * y));
}

/// Two neighbours in front of two others, each first one with its second one `distance` behind.
struct Halves {
    static constexpr int pairs = 2;
    float2 x, y;

    __device__ void load(const RotateParams& params, std::int64_t at) {
        x = load_pair(params.from, at, 2);
        y = load_pair(params.from, at + params.distance, 2);
    }
    __device__ void turn(const PairTurn* turns) {
        const float2 a = turned(turns[0], x.x, y.x), b = turned(turns[1], x.y, y.y);
        x = make_float2(a.x, b.x);
        y = make_float2(a.y, b.y);
    }
    __device__ void store(const RotateParams& params, std::int64_t at) const {
        store_pair(params.to, at, x.x, x.y, 2);
        store_pair(params.to, at + params.distance, y.x, y.y, 2);
    }
};

/// One pair of dims that may lie anywhere.
struct Single {
    static constexpr int pairs = 1;
    float x, y;

    __device__ void load(const RotateParams& params, std::int64_t at) {
        x = load_element(params.from, at);
        y = load_element(params.from, at + params.distance);
    }
    __device__ void turn(const PairTurn* turns) {
        const float2 both = turned(turns[0], x, y);
        x = both.x;
        y = both.y;
    }
    __device__ void store(const RotateParams& params, std::int64_t at) const {
        store_element(params.to, at, x);
        store_element(params.to, at + params.distance, y);
    }
};

/// Two neighbours.
struct Neighbours : Single {
    __device__ void load(const RotateParams& params, std::int64_t at) {
        const float2 both = load_pair(params.from, at, 2);
        x = both.x;
        y = both.y;
    }
    __device__ void store(const RotateParams& params, std::int64_t at) const { store_pair(params.to, at, x, y, 2); }
};

template <class Unit>
__global__ void __launch_bounds__(rotate_threads) rotate_kernel(const __grid_constant__ RotateParams params) {
    const std::int64_t token = std::int64_t{blockIdx.x} * tokens_per_block + threadIdx.x / 32;
    if (token >= params.sizes.tokens) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const double position = params.positions[token];
    for (int pair = Unit::pairs * lane; pair < params.pairs; pair += Unit::pairs * 32) {
        PairTurn turns[Unit::pairs];
#pragma unroll
        for (int i = 0; i < Unit::pairs; ++i) turns[i] = turn_of(params, position, pair + i);
        const int column = params.first + (params.interleaved ? 2 * pair : pair);
        for (std::int64_t batch = 0; batch < params.sizes.batch; ++batch)
            for (std::int64_t head = 0; head < params.sizes.heads; head += heads_at_once) {
                const auto count = params.sizes.heads - head;
                Unit units[heads_at_once];
#pragma unroll
                for (int i = 0; i < heads_at_once; ++i)
                    if (i < count)
                        units[i].load(params, row_index(params.from.strides, batch, token, head + i) + column);
#pragma unroll
                for (int i = 0; i < heads_at_once; ++i)
                    if (i < count) {
                        units[i].turn(turns);
                        units[i].store(params, row_index(params.to.strides, batch, token, head + i) + column);
                    }
            }
    }
    if (!params.copies) return;
    for (std::int64_t batch = 0; batch < params.sizes.batch; ++batch)
        for (std::int64_t head = 0; head < params.sizes.heads; ++head)
            for (int column = lane; column < params.sizes.dim; column += 32)
                if (column < params.first || column >= params.first + 2 * params.pairs)
                    store_element(
                        params.to, row_index(params.to.strides, batch, token, head) + column,
                        load_element(params.from, row_index(params.from.strides, batch, token, head) + column));
}

}  // namespace

void launch_rotate(const RotateParams& params, cudaStream_t stream) {
    const bool even = params.first % 2 == 0;
    const auto kernel = params.interleaved && even         ? rotate_kernel<Neighbours>
                        : even && params.distance % 2 == 0 ? rotate_kernel<Halves>
                                                           : rotate_kernel<Single>;
    const auto blocks = (params.sizes.tokens + tokens_per_block - 1) / tokens_per_block;
    launch(kernel, "rotate kernel", dim3(static_cast<unsigned>(blocks)), rotate_threads, 0, params, stream);
}

}  // namespace ringlab::gpu
