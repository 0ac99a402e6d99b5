#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace ringlab::experiments {

/// SHA-256.
using Digest = std::array<std::byte, 32>;

Digest digest_of(std::span<const std::byte> bytes);

/// Digest of a file's contents. Throws Error if the file cannot be read.
Digest digest_of_file(const std::filesystem::path& path);

/// As 64 hexadecimal digits: what `sha256sum` prints.
std::string to_text(const Digest& digest);

}  // namespace ringlab::experiments
