#pragma once

#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// SHA-256 as 64 hexadecimal digits: what `sha256sum` prints.
std::string digest_of(const std::string& bytes);

/// Of a file's contents. Throws Error if the file cannot be read.
std::string digest_of_file(const std::filesystem::path& path);

}  // namespace ringlab::experiments
