#pragma once

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A file given by path, or by the name of one that comes with Ringlab: ("h200_cluster", "machines", ".toml").
/// Throws Error that lists the known names.
std::string find_resource(const std::string& name, const std::string& folder, const std::string& extension);

/// "machines/ideal.toml" for the path of a file that comes with Ringlab, wherever that is; any other path as it is.
std::string resource_name(const std::string& path);

/// The path of published figures that are given by path or name (see --list): a table (.toml) or a CSV file.
std::string published_file(const std::string& name);

/// The known names.
std::vector<std::string> resources(const std::string& folder, const std::string& extension);

}  // namespace ringlab::experiments
