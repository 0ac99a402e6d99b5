#include "experiments/record/provenance.hpp"
#include "layouts/require.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <system_error>

namespace ringlab::experiments {
namespace {

/// The hash function of FIPS 180-4, sections 5 and 6.2.
class Sha256 {
public:
    void update(std::span<const std::byte> bytes) {
        length_ += bytes.size();
        for (const auto byte : bytes) {
            block_[filled_++] = std::to_integer<std::uint8_t>(byte);
            if (filled_ == block_.size()) compress();
        }
    }

    std::string digest() {
        const std::uint64_t bits = length_ * 8;
        constexpr std::byte one{0x80}, zero{0};
        update({&one, 1});
        while (filled_ != block_.size() - sizeof(bits)) update({&zero, 1});
        std::array<std::byte, sizeof(bits)> tail;
        for (std::size_t i = 0; i < tail.size(); ++i) tail[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
        update(tail);
        std::string text;
        for (const auto word : state_) text += fmt::format("{:08x}", word);
        return text;
    }

private:
    void compress() {
        filled_ = 0;
        std::array<std::uint32_t, 64> w;
        for (std::size_t t = 0; t < 16; ++t)
            w[t] = std::uint32_t{block_[4 * t]} << 24 | std::uint32_t{block_[4 * t + 1]} << 16 |
                   std::uint32_t{block_[4 * t + 2]} << 8 | std::uint32_t{block_[4 * t + 3]};
        for (std::size_t t = 16; t < 64; ++t) {
            const auto s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
            const auto s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
            w[t] = s1 + w[t - 7] + s0 + w[t - 16];
        }
        auto [a, b, c, d, e, f, g, h] = state_;
        for (std::size_t t = 0; t < 64; ++t) {
            const auto t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                            constants[t] + w[t];
            const auto t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const std::array<std::uint32_t, 8> after{a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < after.size(); ++i) state_[i] += after[i];
    }

    /// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
    static constexpr std::array<std::uint32_t, 64> constants{
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

    /// Of the square roots of the first 8 primes.
    std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> block_{};
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;
};

}  // namespace

std::string sha256(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.digest();
}

std::string sha256_of_file(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
    Sha256 hash;
    std::vector<char> buffer(1 << 16);
    while (file.good()) {
        file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        hash.update(std::as_bytes(std::span(buffer.data(), static_cast<std::size_t>(file.gcount()))));
    }
    require(file.eof(), "cannot read {}: {}", path.string(), std::generic_category().message(errno));
    return hash.digest();
}

}  // namespace ringlab::experiments
