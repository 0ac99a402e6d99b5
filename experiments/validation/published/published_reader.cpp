#include "experiments/validation/published/published_reader.hpp"

#include "layouts/basics/text_file.hpp"

namespace ringlab::experiments {

toml::table parsed_table(const std::string& file) {
    try {
        return toml::parse(layouts::read_text(file, "published table"), file);
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
}

std::string PublishedReader::text(const char* key) const {
    const auto value = table_[key].value<std::string>();
    require(value && !value->empty(), "{}: {} must be a text in quotes that is not empty", file_, key);
    return *value;
}

std::int64_t PublishedReader::count(const char* key, std::int64_t least, std::int64_t most) const {
    const auto value = table_[key].value<std::int64_t>();
    require(value && *value >= least && *value <= most, "{}: {} must be from {} to {}", file_, key, least, most);
    return *value;
}

bool PublishedReader::flag(const char* key) const {
    if (!table_.contains(key)) return false;
    const auto value = table_[key].value<bool>();
    require(value.has_value(), "{}: {} must be true or false", file_, key);
    return *value;
}

std::vector<PublishedReader> PublishedReader::tables(const char* key) const {
    const auto* array = table_[key].as_array();
    require(array && !array->empty() && array->is_array_of_tables(), "{}: there must be [[{}]]", file_, key);
    std::vector<PublishedReader> readers;
    for (const auto& node : *array) readers.emplace_back(*node.as_table(), file_);
    return readers;
}

}  // namespace ringlab::experiments
