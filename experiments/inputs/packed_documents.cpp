#include "experiments/inputs/packed_documents.hpp"

#include "experiments/inputs/inputs_random.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ringlab::experiments {
std::vector<std::int64_t> drawn_packing(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                        std::uint64_t seed, std::uint32_t number) {
    constexpr std::uint32_t stream = 64;  // apart from those of inputs
    std::vector<std::int64_t> drawn;
    for (std::uint32_t i = 0; tokens > 0; ++i) {
        const auto place = random_bits(seed, {stream, number, 0, i, 0}) % lengths.size();
        drawn.push_back(std::min(lengths[place], tokens));
        tokens -= drawn.back();
    }
    return drawn;
}

std::string packed_mask(const std::string& mask, const std::vector<std::int64_t>& lengths) {
    return fmt::format("{}+documents:{}", mask, fmt::join(lengths, ","));
}

}  // namespace ringlab::experiments
