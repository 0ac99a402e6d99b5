#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ringlab::experiments {

/// SHA-256 as 64 hexadecimal digits: what `sha256sum` prints.
std::string digest_of(std::string_view bytes);

/// Of a file's contents. Throws Error if the file cannot be read.
std::string digest_of_file(const std::filesystem::path& path);

}  // namespace ringlab::experiments
