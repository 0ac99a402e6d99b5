#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/elements/host_tensors.hpp"
#include "gpu/elements/views.hpp"
#include "layouts/schedules/schedule.hpp"

#include <memory>

namespace ringlab::gpu {

class Cublas;

/// The matrices of a latent on one device, and their products: K and V from the latent (layouts::OpKind::expand), and
/// the latent's gradient from theirs (compress). One thread at a time.
class LatentProducts {
public:
    /// `backward` may be null. Throws Error if there is no cuBLAS.
    LatentProducts(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank);
    ~LatentProducts();
    LatentProducts(const LatentProducts&) = delete;
    LatentProducts& operator=(const LatentProducts&) = delete;

    /// Copies the matrices to the device and waits for it. They have the shape that layouts::Problem gives them in V's
    /// place.
    void load(const HostTensor<std::uint16_t>& matrices);
    void load_random(int seed);

    /// Computes K and V of the heads from `first_head` on, of as many tokens and heads as `extent` has. In stream
    /// order, as all below.
    void expand(const Extent& extent, const ConstView& latent, const View& k, const View& v, int first_head,
                cudaStream_t stream);

    /// Computes the latent's gradient from the fp32 gradients of these heads' K and V; it is overwritten or added to.
    /// Adds their contribution to the gradient of the matrices.
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

    /// The gradient of the matrices, (heads, expanded_dim, rank). Waits for the device.
    std::vector<float> gradient() const;

private:
    const layouts::Problem& problem_;
    std::unique_ptr<Cublas> cublas_;
    DeviceBuffer matrices_, gradient_;
    DeviceBuffer rows_;  // of what is compressed: own dims of dk, then dv, (batch, tokens, heads, dim), in 16 bits
};

}  // namespace ringlab::gpu
