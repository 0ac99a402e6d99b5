#include "layouts/basics/text_file.hpp"

#include "layouts/basics/require.hpp"

#include <fstream>
#include <iterator>
#include <utility>

namespace ringlab::layouts {
namespace {

TextReader current_reader;

}  // namespace

std::string read_text(const std::filesystem::path& path, std::string_view what) {
    return current_reader ? current_reader(path, what) : read_text_from_disk(path, what);
}

std::string read_text_from_disk(const std::filesystem::path& path, std::string_view what) {
    std::ifstream file(path, std::ios::binary);
    require(file.good() && !std::filesystem::is_directory(path), "cannot read {} '{}'", what, path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

void set_text_reader(TextReader reader) { current_reader = std::move(reader); }

}  // namespace ringlab::layouts
