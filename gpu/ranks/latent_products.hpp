#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/elements/host_tensors.hpp"
#include "gpu/elements/views.hpp"
#include "layouts/schedules/schedule.hpp"

#include <memory>

namespace ringlab::gpu {

/// The matrices of a latent on one device, and the products that make K and V of it, and its gradient of theirs
/// (layouts::OpKind::expand, compress). By cuBLAS, which is loaded when it is needed. One thread at a time.
class LatentProducts {
public:
    /// `backward` may be null. Throws Error if there is no cuBLAS.
    LatentProducts(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank);
    ~LatentProducts();
    LatentProducts(const LatentProducts&) = delete;
    LatentProducts& operator=(const LatentProducts&) = delete;

    /// These wait for the device: matrices as layouts::Problem has them in V's place.
    void load(const HostTensor<std::uint16_t>& matrices);
    void load_random(int seed);

    /// K and V, from `first_head` on, of as many tokens and heads as `extent` has; in stream order, as all below.
    void expand(const Extent& extent, const ConstView& latent, const View& k, const View& v, int first_head,
                cudaStream_t stream);

    /// The gradient of the latent, overwritten or added to, of the fp32 gradients of these heads' K and V; and added to
    /// the matrices' gradient what theirs is by them.
    struct Compression {
        Extent extent;  ///< as many tokens and heads as dk and dv have
        ConstView dk, dv, latent;
        View dlatent;
        int first_head = 0;
        bool adds = false;
    };
    void compress(const Compression& what, cudaStream_t stream);

    /// Sets the matrices' gradient to 0.
    void begin_gradient(cudaStream_t stream);

    /// It, (heads, expanded_dim, rank); waits for the device.
    std::vector<float> gradient() const;

private:
    class Library;

    const layouts::Problem& problem_;
    std::unique_ptr<Library> library_;
    DeviceBuffer matrices_, gradient_;
    DeviceBuffer rows_;  // of what is compressed: own dims of dk, then dv, (batch, tokens, heads, dim), in 16 bits
};

}  // namespace ringlab::gpu
