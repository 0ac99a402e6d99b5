#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace ringlab::layouts {

/// The contents of a text file. Every text file that influences a result is read through this function, so that a
/// program can keep a list of them, see set_text_reader(). `what` names the kind of file in errors: "machine file".
/// Throws Error if `path` cannot be read.
std::string read_text(const std::filesystem::path& path, std::string_view what);

/// The same without the reader that set_text_reader() has set.
std::string read_text_from_disk(const std::filesystem::path& path, std::string_view what);

/// From now on read_text() calls `reader`; an empty one restores read_text_from_disk(). No other thread may call
/// read_text() at the same time.
using TextReader = std::function<std::string(const std::filesystem::path&, std::string_view what)>;
void set_text_reader(TextReader reader);

}  // namespace ringlab::layouts
