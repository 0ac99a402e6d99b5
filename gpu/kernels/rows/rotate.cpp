#include "gpu/kernels/rows/rotate.hpp"

#include "gpu/kernels/rows/rotate_params.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::gpu {
namespace {

Elements elements_to_rotate(const ConstView& view) {
    const auto pair_bytes = static_cast<std::uintptr_t>(2 * layouts::bytes_of(view.dtype));
    const auto& strides = view.strides;
    return {const_cast<void*>(view.data), view.dtype, strides,
            reinterpret_cast<std::uintptr_t>(view.data) % pair_bytes == 0 && strides.batch % 2 == 0 &&
                strides.token % 2 == 0 && strides.head % 2 == 0};
}

}  // namespace

void rotate(const RotateArgs& args, cudaStream_t stream) {
    const auto& [batch, tokens, heads, dim] = args.extent;
    if (batch == 0 || tokens == 0 || heads == 0) return;
    const auto& table = args.table;
    const auto pairs = static_cast<int>(table.frequencies.size());
    require(pairs <= RotateParams::most_pairs && table.first + table.dims() <= dim,
            "{} dims from {} on of heads of {} are to be rotated; there must be so many, and at most {}", table.dims(),
            table.first, dim, 2 * RotateParams::most_pairs);
    RotateParams params{.sizes = {batch, tokens, heads, dim},
                        .to = elements_to_rotate(args.destination),
                        .from = elements_to_rotate(args.source),
                        .positions = args.positions,
                        .first = static_cast<int>(table.first),
                        .pairs = pairs,
                        .distance = static_cast<int>(table.distance()),
                        .interleaved = table.pairs == layouts::Rotary::Pairs::interleaved,
                        .copies = args.destination.data != args.source.data,
                        .amplitude = table.amplitude,
                        .sign = args.back ? -1.0 : 1.0,
                        .frequencies = {}};
    std::copy(table.frequencies.begin(), table.frequencies.end(), params.frequencies);
    launch_rotate(params, stream);
}

}  // namespace ringlab::gpu
