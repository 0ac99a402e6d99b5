#include "reference/tensors/shards.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::reference {
namespace {

/// Calls visit(row in the global tensor, its offset in the shard) for every head, batch element and position. A row has
/// `width` numbers.
template <class GlobalTensor, class Visit>
void for_each_row(GlobalTensor& global, std::size_t width, std::span<const std::int64_t> positions, Visit visit) {
    const auto batch = global.shape(0), tokens = global.shape(1), heads = global.shape(2);
    std::size_t offset = 0;
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t b = 0; b < batch; ++b)
            for (const auto position : positions) {
                visit(global.data() + ((b * tokens + static_cast<std::size_t>(position)) * heads + h) * width, offset);
                offset += width;
            }
}

void require_size(std::size_t have, std::size_t expected) {
    require(have == expected, "a shard has {} numbers; the tokens of its rank need {}", have, expected);
}

}  // namespace

std::vector<double> scatter(const Tensor& global, std::span<const std::int64_t> positions) {
    const auto width = global.shape(3);
    std::vector<double> shard(global.shape(0) * global.shape(2) * positions.size() * width);
    for_each_row(global, width, positions,
                 [&](const double* row, std::size_t offset) { std::copy_n(row, width, shard.data() + offset); });
    return shard;
}

void gather(std::span<const double> shard, std::span<const std::int64_t> positions, Tensor& global) {
    const auto width = global.shape(3);
    require_size(shard.size(), global.shape(0) * global.shape(2) * positions.size() * width);
    for_each_row(global, width, positions,
                 [&](double* row, std::size_t offset) { std::copy_n(shard.data() + offset, width, row); });
}

void gather(std::span<const double> shard, std::span<const std::int64_t> positions, Lse& global) {
    require_size(shard.size(), global.shape(0) * global.shape(2) * positions.size());
    for_each_row(global, 1, positions, [&](double* row, std::size_t offset) { *row = shard[offset]; });
}

}  // namespace ringlab::reference
