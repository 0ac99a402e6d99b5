#pragma once

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A file given by path, or by the name of one that comes with Ringlab: ("h200_cluster", "machines", ".toml").
/// Throws Error that lists the known names.
std::string find_resource(const std::string& name, const std::string& folder, const std::string& extension);

/// The known names.
std::vector<std::string> resources(const std::string& folder, const std::string& extension);

}  // namespace ringlab::experiments
