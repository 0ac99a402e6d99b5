#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringlab::layouts {

/// The counter-based generator Philox4x32 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011):
/// four random words for every counter and key, with no other state. Its authors recommend 10 rounds, and found that 7
/// pass all tests of BigCrush. constexpr, so that device code can call it, too.
template <std::size_t rounds>
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              const std::array<std::array<std::uint32_t, 2>, rounds>& round_keys) {
    for (std::size_t round = 0; round < rounds; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
        counter = {
            static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ round_keys[round][0], static_cast<std::uint32_t>(b),
            static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ round_keys[round][1], static_cast<std::uint32_t>(a)};
    }
    return counter;
}

/// The keys of the rounds, which only depend on the key.
template <std::size_t rounds>
constexpr std::array<std::array<std::uint32_t, 2>, rounds> philox_round_keys(std::array<std::uint32_t, 2> key) {
    std::array<std::array<std::uint32_t, 2>, rounds> keys{};
    for (auto& of_round : keys) {
        of_round = key;
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return keys;
}

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    return philox(counter, philox_round_keys<10>(key));
}

}  // namespace ringlab::layouts
