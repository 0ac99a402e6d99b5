#pragma once

#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Parses a TOML file of published figures. Throws Error with file and line if it is not valid.
toml::table parsed_table(const std::string& file);

/// Reads what a parsed file of published figures must say. Every function throws Error, one line, if the key is missing
/// or wrong. The table must outlive the reader.
class PublishedReader {
public:
    PublishedReader(const toml::table& table, std::string file) : table_(table), file_(std::move(file)) {}

    std::string text(const char* key) const;
    std::string text_or(const char* key, const std::string& absent) const {
        return table_.contains(key) ? text(key) : absent;
    }
    std::int64_t count(const char* key, std::int64_t least, std::int64_t most) const;
    bool flag(const char* key) const;  ///< false where the key is missing

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

    std::vector<PublishedReader> tables(const char* key) const;

private:
    const toml::table& table_;
    std::string file_;
};

}  // namespace ringlab::experiments
