#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace ringlab::layouts {

/// Contents of a text file. Every text file that decides a result is read by this function, so that a program can keep
/// account of all of them. `what` names the file in errors: "machine file". Throws Error if `path` cannot be read.
std::string read_text(const std::filesystem::path& path, std::string_view what);

/// The same, past whoever keeps account.
std::string read_text_from_disk(const std::filesystem::path& path, std::string_view what);

/// From now on read_text() asks `reader`; an empty one takes that back. Not while other threads read.
using TextReader = std::function<std::string(const std::filesystem::path&, std::string_view what)>;
void read_texts_by(TextReader reader);

}  // namespace ringlab::layouts
