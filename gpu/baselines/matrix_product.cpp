#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cublas.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/elements/elementwise.hpp"

#include <array>
#include <memory>

namespace ringlab::gpu {

TimedCall matrix_product() {
    constexpr auto n = matrix_product_size;
    const auto cublas = std::make_shared<Cublas>();
    const auto matrices = std::make_shared<std::array<DeviceBuffer, 3>>();
    std::uint64_t seed = 0;
    for (auto& matrix : *matrices) {
        matrix = DeviceBuffer(static_cast<std::size_t>(n * n * layouts::bytes_of(DType::bf16)));
        fill_normal(matrix.data(), DType::bf16, n * n, ++seed, nullptr);
    }
    return {"matrix_product", [=](cudaStream_t stream) {
                const auto& [a, b, c] = *matrices;
                cublas->multiply(n, n, n, {a.data(), DType::bf16, n},
                                 {.data = b.data(), .dtype = DType::bf16, .stride = n, .transposed = true},
                                 {c.data(), DType::bf16, n}, false, 1, stream);
            }};
}

}  // namespace ringlab::gpu
