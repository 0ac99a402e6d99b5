#include "reference/features/dropout_factors.hpp"

#include <algorithm>

namespace ringlab::reference {
namespace {

constexpr std::size_t drawn_patches = 16;  // at a time: enough for compilers to vectorise the loops
using DrawnWords = std::array<std::uint32_t, drawn_patches>;

}  // namespace

template <class Real>
void DropoutFactors::draw(std::span<Real> factors, std::span<const std::int64_t> keys, const Row& row) const {
    const auto number = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
    const auto factor = static_cast<Real>(factor_);
    std::size_t first = 0;
    while (first < factors.size()) {
        // The next keys that lie in few patches.
        DrawnWords keys_of_patches{}, kept;
        std::size_t patches = 0, end = first;
        for (; end < factors.size(); ++end) {
            const auto key = number(keys[end]);
            if (patches > 0 && key / 16 == keys_of_patches[patches - 1] / 16) continue;
            if (patches == drawn_patches) break;
            keys_of_patches[patches++] = key;
        }
        for (std::size_t i = 0; i < drawn_patches; ++i)
            kept[i] = draw_.kept(number(row.batch), number(row.head), number(row.query), keys_of_patches[i]);
        for (std::size_t i = first, patch = 0; i < end; ++i) {
            const auto key = number(keys[i]);
            if (key / 16 != keys_of_patches[patch] / 16) ++patch;
            const auto bit = layouts::DropoutDraw::place(number(row.query), key);
            factors[i] = kept[patch] >> bit & 1 ? factor : Real(0);
        }
        first = end;
    }
}

template void DropoutFactors::draw(std::span<float>, std::span<const std::int64_t>, const Row&) const;
template void DropoutFactors::draw(std::span<double>, std::span<const std::int64_t>, const Row&) const;

}  // namespace ringlab::reference
