#include "tests/layouts/mask_oracles/oracle.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace ringlab::mask_oracles {
namespace {

std::map<std::string, Oracle>& known() {
    static std::map<std::string, Oracle> all;
    return all;
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

std::string random_spec(const std::pair<const std::string, Oracle>& mask, Random& random, Token tokens) {
    const auto arguments = mask.second.random_arguments(random, tokens);
    return mask.first + (arguments.empty() ? "" : ":" + arguments);
}

}  // namespace

OracleRegistration::OracleRegistration(std::string_view file, std::string sentence, Arguments random_arguments,
                                       MakeTerm term) {
    auto name = std::filesystem::path(file).stem().string().substr(std::string_view("oracle_").size());
    std::ranges::replace(name, '_', '-');
    known().emplace(name, Oracle{std::move(sentence), std::move(random_arguments), std::move(term)});
}

const std::map<std::string, Oracle>& oracles() { return known(); }

Joined::Joined(const std::string& spec, Token tokens) : first_(static_cast<std::size_t>(tokens), tokens) {
    for (const auto& text : split(spec, '+')) {
        const auto colon = std::min(text.find(':'), text.size());
        const auto arguments = text.substr(std::min(colon + 1, text.size()));
        terms_.push_back(known().at(text.substr(0, colon)).term(arguments, tokens));
        sink_ = std::max(sink_, terms_.back().sink);
    }
    for (Token row = 0; row < tokens; ++row)
        for (Token key = tokens; key-- > 0;)
            if (all_see(row, key)) first_[static_cast<std::size_t>(row)] = key;
}

bool Joined::all_see(Token row, Token key) const {
    return std::ranges::all_of(terms_, [&](const Term& term) { return term.sees(row, key); });
}

bool Joined::is_padding(Token token) const {
    return std::ranges::any_of(terms_, [&](const Term& term) { return term.is_padding(token); });
}

bool Joined::sees(Token row, Token key) const {
    if (is_padding(row) || is_padding(key)) return false;
    const auto first = first_[static_cast<std::size_t>(row)];
    const bool sees_something = first < static_cast<Token>(first_.size());
    return all_see(row, key) || (sees_something && key < sink_ && key < first);
}

std::string no_arguments(Random&, Token) { return ""; }

std::string random_join(Random& random, Token tokens, int most) {
    std::string spec;
    for (auto terms = pick(random, 1, most); terms > 0; --terms) {
        const auto mask = std::next(known().begin(), pick(random, 0, static_cast<Token>(known().size()) - 1));
        spec += (spec.empty() ? "" : "+") + random_spec(*mask, random, tokens);
    }
    return spec;
}

std::vector<std::string> mask_examples(Token tokens) {
    std::vector<std::string> specs;
    for (const auto& mask : known()) {
        Random random(7);  // of each mask's own, so that a new mask does not change the others
        specs.push_back(random_spec(mask, random, tokens));
    }
    return specs;
}

Token pick(Random& random, Token low, Token high) {
    return low + static_cast<Token>(random() % static_cast<std::uint64_t>(high - low + 1));
}

std::vector<Token> lengths_of(const std::string& text) {
    std::vector<Token> lengths;
    for (const auto& item : split(text, ',')) {
        const auto parts = split(item, 'x');
        lengths.insert(lengths.end(), parts.size() == 2 ? std::stoul(parts[1]) : 1, std::stoll(parts.at(0)));
    }
    return lengths;
}

PerToken parts_of(const std::vector<Token>& lengths) {
    PerToken part;
    Token number = 0;
    for (const auto length : lengths) part.append(length, number++);
    return part;
}

std::string random_lengths(Random& random, Token tokens) {
    const auto equal = pick(random, 1, tokens);
    if (tokens % equal == 0 && pick(random, 0, 1) == 0)
        return std::to_string(equal) + "x" + std::to_string(tokens / equal);
    std::string text;
    for (auto left = tokens; left > 0;) {
        const auto length = pick(random, 1, left);
        left -= length;
        text += std::to_string(length) + (left > 0 ? "," : "");
    }
    return text;
}

}  // namespace ringlab::mask_oracles
