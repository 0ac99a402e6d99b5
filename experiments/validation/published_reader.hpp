#pragma once

#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Parses a TOML file of published figures. Throws Error with file and line if it is not valid.
inline toml::table parsed_table(const std::string& file) {
    try {
        return toml::parse(layouts::read_text(file, "published table"), file);
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
}

/// Reads what a parsed file of published figures must say. Every function throws Error, one line, if the key is missing
/// or wrong. The table must outlive the reader.
class PublishedReader {
public:
    PublishedReader(const toml::table& table, std::string file) : table_(table), file_(std::move(file)) {}

    std::string text(const char* key) const {
        const auto value = table_[key].value<std::string>();
        require(value && !value->empty(), "{}: {} must be a text in quotes that is not empty", file_, key);
        return *value;
    }
    std::string text_or(const char* key, const std::string& absent) const {
        return table_.contains(key) ? text(key) : absent;
    }
    std::int64_t count(const char* key, std::int64_t least, std::int64_t most) const {
        const auto value = table_[key].value<std::int64_t>();
        require(value && *value >= least && *value <= most, "{}: {} must be from {} to {}", file_, key, least, most);
        return *value;
    }
    bool flag(const char* key) const {  ///< false where the key is missing
        const auto value = table_.contains(key) ? table_[key].value<bool>() : false;
        require(value.has_value(), "{}: {} must be true or false", file_, key);
        return *value;
    }

    template <class T>
    std::vector<T> list(const char* key, double least, double most) const {
        const auto* array = table_[key].as_array();
        require(array, "{}: {} must be a list [..., ...]", file_, key);
        std::vector<T> values;
        for (const auto& node : *array) {
            const auto value = node.value<double>();
            require(value && *value >= least && *value <= most, "{}:{}: {} must have numbers from {} to {}", file_,
                    node.source().begin.line, key, least, most);
            values.push_back(static_cast<T>(*value));
        }
        return values;
    }

    std::vector<PublishedReader> tables(const char* key) const {
        const auto* array = table_[key].as_array();
        require(array && !array->empty() && array->is_array_of_tables(), "{}: there must be [[{}]]", file_, key);
        std::vector<PublishedReader> readers;
        for (const auto& node : *array) readers.emplace_back(*node.as_table(), file_);
        return readers;
    }

private:
    const toml::table& table_;
    std::string file_;
};

}  // namespace ringlab::experiments
