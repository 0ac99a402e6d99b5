#include "experiments/files/resources.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/basics/typed_names.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace ringlab::experiments {
namespace {

std::string data_directory() {
    if (const char* directory = std::getenv("RINGLAB_DATA")) return directory;
    return RINGLAB_DATA_DIRECTORY;
}

}  // namespace

std::vector<std::string> resources(const std::string& folder, const std::string& extension) {
    std::vector<std::string> names;
    std::error_code missing;
    for (const auto& file : std::filesystem::directory_iterator(data_directory() + "/" + folder, missing))
        if (file.path().extension() == extension) names.push_back(file.path().stem());
    std::sort(names.begin(), names.end());
    return names;
}

std::string find_resource(const std::string& name, const std::string& folder, const std::string& extension) {
    if (std::filesystem::is_regular_file(name)) return name;
    const auto path = data_directory() + "/" + folder + "/" + name + extension;
    if (std::filesystem::is_regular_file(path)) return path;
    const auto known = resources(folder, extension);
    const auto hint = layouts::did_you_mean(name, known);
    fail("'{}' is neither a file nor one of the known {}{} {}", name, folder,
         hint.empty() ? ":" : hint + " Known:", fmt::join(known, ", "));
}

std::string published_file(const std::string& name) {
    const auto csv = resources("published", ".csv");
    return find_resource(name, "published", std::ranges::count(csv, name) > 0 ? ".csv" : ".toml");
}

std::string resource_name(const std::string& path) {
    const auto folder = data_directory() + "/";
    return path.starts_with(folder) ? path.substr(folder.size()) : path;
}

}  // namespace ringlab::experiments
