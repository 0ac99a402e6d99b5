#include "experiments/record/run_writer.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <type_traits>

namespace ringlab::experiments {
namespace {

constexpr auto missing_place = std::numeric_limits<std::int8_t>::min();  // the fill value of such datasets

/// What an attribute becomes in a table: a list becomes one text.
hdf5::Values as_values(const hdf5::Attribute& value) {
    return std::visit(
        [](const auto& held) -> hdf5::Values {
            using T = std::decay_t<decltype(held)>;
            if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>)
                return std::vector<T>{held};
            else
                return std::vector<std::string>{fmt::format("{}", fmt::join(held, "; "))};
        },
        value);
}

}  // namespace

void require_path(const std::string& path, const char* what) {
    std::stringstream parts(path + "/");
    for (std::string part; std::getline(parts, part, '/');)
        require(!part.empty() && part != "." && part != "..",
                "'{}' cannot name a {}: its parts must not be empty or dots", path, what);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

hdf5::Values measured(const std::vector<double>& values) { return std::vector<float>(values.begin(), values.end()); }

void RunWriter::attribute(const std::string& name, hdf5::Attribute value, const std::string& unit,
                          const std::string& description) {
    require_path(name, "attribute");
    require(name.find('/') == std::string::npos, "'{}' cannot name an attribute: it holds a '/'", name);
    auto words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    add({"runs/" + name, as_values(value), {}, unit, description.empty() ? words : description});
}

void RunWriter::dimension(const std::string& name, hdf5::Values coordinates, const std::string& unit,
                          const std::string& description) {
    require_path(name, "dimension");
    auto& length = lengths_.try_emplace(name, Dimension::unknown).first->second;
    const auto count = static_cast<std::int64_t>(hdf5::size_of(coordinates));
    require(length == Dimension::unknown || length == count, "dimension '{}' has length {}, its coordinates {}", name,
            length, count);
    for (const auto& other : coordinates_)
        require(other.path != name, "dimension '{}' was given coordinates twice", name);
    length = count;
    coordinates_.push_back({name, std::move(coordinates), {}, unit, description});
}

void RunWriter::dataset(const std::string& path, hdf5::Values values, const std::vector<Dimension>& dimensions,
                        const std::string& unit, const std::string& description) {
    Item item{path, std::move(values), dimensions, unit, description};
    const auto count = static_cast<std::int64_t>(hdf5::size_of(item.values));
    std::int64_t known = 1;
    std::vector<std::int64_t*> open;
    for (const auto& dimension : item.dimensions) {
        require_path(dimension.name, "dimension");
        if (!dimension.label.empty()) continue;
        auto& length = lengths_.try_emplace(dimension.name, Dimension::unknown).first->second;
        require(length == Dimension::unknown || dimension.length == Dimension::unknown || length == dimension.length,
                "dimension '{}' of dataset '{}' has length {} elsewhere in the run, here {}", dimension.name, path,
                length, dimension.length);
        if (dimension.length != Dimension::unknown) length = dimension.length;
        if (length == Dimension::unknown)
            open.push_back(&length);
        else
            known *= length;
    }
    require(open.size() <= 1, "dataset '{}' has {} dimensions of unknown length; at most one follows from its values",
            path, open.size());
    if (open.size() == 1) {
        require(known > 0 && count % known == 0, "dataset '{}' has {} values; that is no multiple of {}", path, count,
                known);
        *open.front() = count / known;
        known = count;
    }
    require(known == count, "dataset '{}' has {} values; its dimensions ask for {}", path, count, known);
    for (auto& dimension : item.dimensions)
        if (dimension.label.empty()) dimension.length = lengths_.at(dimension.name);
    add(std::move(item));
}

void RunWriter::enumeration(const std::string& path, const std::vector<std::string>& values,
                            const std::vector<std::string>& meanings, const std::vector<Dimension>& dimensions,
                            const std::string& unit, const std::string& description) {
    constexpr std::size_t most = std::numeric_limits<std::int8_t>::max();
    require(meanings.size() <= most, "'{}' has {} meanings; an enumeration has at most {}", path, meanings.size(),
            most);
    for (const auto& meaning : meanings)
        require(!meaning.empty() && meaning.find(' ') == std::string::npos,
                "'{}' of '{}' must be a word, as blanks separate the meanings", meaning, path);
    std::vector<std::int8_t> places;
    for (const auto& value : values) {
        const auto found = std::find(meanings.begin(), meanings.end(), value);
        require(value.empty() || found != meanings.end(), "'{}' is none of the meanings of '{}'", value, path);
        places.push_back(value.empty() ? missing_place : static_cast<std::int8_t>(found - meanings.begin()));
    }
    dataset(path, std::move(places), dimensions, unit, description);
    items_.back().meanings = meanings;
}

void RunWriter::add(Item item) {
    require_path(item.path, "dataset");
    require(!item.unit.empty() && !item.description.empty(),
            "dataset '{}' lacks a unit or a description; every dataset has both (unit \"1\" for plain numbers)",
            item.path);
    const auto same_place = [](const Dimension& a, const Dimension& b) { return a.label == b.label; };
    for (const auto& other : items_)
        require(other.path != item.path || !std::equal(other.dimensions.begin(), other.dimensions.end(),
                                                       item.dimensions.begin(), item.dimensions.end(), same_place),
                "the run has '{}' already", item.path);
    items_.push_back(std::move(item));
}

void RunWriter::timeline(const std::string& source, const std::string& pass, layouts::Timeline timeline) {
    for (const auto& other : spans_)
        require(other.source != source || other.pass != pass, "the run has a timeline '{}, {}' already", source, pass);
    spans_.push_back({source, pass, std::move(timeline)});
}

}  // namespace ringlab::experiments
