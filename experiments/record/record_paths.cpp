#include "experiments/record/record_paths.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <numeric>
#include <sstream>

namespace ringlab::experiments {

void require_path(const std::string& path, const char* what) {
    std::stringstream parts(path + "/");
    for (std::string part; std::getline(parts, part, '/');)
        require(!part.empty() && part != "." && part != "..",
                "'{}' cannot name a {}: its parts must not be empty or dots", path, what);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void describe(hdf5::Dataset& dataset, const std::string& unit, const std::string& description) {
    dataset.set("units", unit);
    dataset.set("description", description);
}

void tell_meanings(hdf5::Dataset& dataset, const std::vector<std::string>& meanings) {
    std::vector<std::int8_t> places(meanings.size());
    std::iota(places.begin(), places.end(), std::int8_t{0});
    dataset.set("flag_values", places);
    dataset.set("flag_meanings", fmt::format("{}", fmt::join(meanings, " ")));
}

}  // namespace ringlab::experiments
