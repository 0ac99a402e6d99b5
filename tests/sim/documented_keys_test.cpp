// sim/README.md explains every key of a machine file, and names none that there is not.

#include "sim/machine/machine.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

using namespace ringlab;
using namespace ringlab::sim;

namespace {

/// As the README writes a key: PASS for forward and backward, LINK for the two kinds of link. The keys of another
/// kernel are those of `attention.PASS`, but for its scores.
std::string as_documented(const std::string& key) {
    auto name = std::regex_replace(key, std::regex("forward|backward"), "PASS");
    name = std::regex_replace(name, std::regex("^(inside_host|between_hosts)\\."), "LINK.");
    return std::regex_replace(name, std::regex("^kernels\\.NAME\\.PASS\\."), "attention.PASS.");
}

std::set<std::string> documented_names() {
    std::set<std::string> names;
    for (const auto& key : machine_keys()) names.insert(as_documented(key.name));
    return names;
}

std::string readme() {
    std::ifstream file(std::filesystem::path(RINGLAB_SOURCE_DIR) / "sim" / "README.md");
    BOOST_TEST_REQUIRE(file.is_open());
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Everything in the README in code style that has the form of `word`.
std::set<std::string> words_like(const std::string& form) {
    const auto text = readme();
    const std::regex word("`(" + form + ")`");
    std::set<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) found.insert((*at)[1]);
    return found;
}

/// Each `name` or `name.name`.
std::set<std::string> code_words() { return words_like("[A-Za-z_]+(?:\\.[A-Za-z_]+)*"); }

std::string section_of(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

BOOST_AUTO_TEST_SUITE(documented_keys)

BOOST_AUTO_TEST_CASE(the_readme_names_every_key_of_a_machine_file) {
    const auto names = documented_names();
    const auto words = code_words();
    BOOST_TEST(names.size() > 60u);
    for (const auto& name : names) BOOST_TEST(words.contains(name), "sim/README.md does not name `" << name << "`");
}

BOOST_AUTO_TEST_CASE(the_readme_has_each_key_in_the_row_of_the_term_that_uses_it) {
    std::map<std::string, std::string> rows;
    std::istringstream lines(readme());
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("| "))
            rows[std::regex_replace(line.substr(2, line.find(" |") - 2), std::regex("`"), "")] += line;
    for (const auto& key : machine_keys())
        if (!key.term.empty())
            BOOST_TEST(rows[key.term].find("`" + as_documented(key.name) + "`") != std::string::npos,
                       "the row of " << key.term << " in sim/README.md does not name `" << key.name << "`");
}

BOOST_AUTO_TEST_CASE(the_readme_names_no_key_that_is_unknown) {
    const auto names = documented_names();
    std::set<std::string> sections;
    for (const auto& name : names)
        if (name.find('.') != std::string::npos) sections.insert(section_of(name));
    for (const auto& word : code_words()) {
        const bool is_file = word.ends_with(".cpp") || word.ends_with(".hpp");
        if (is_file || word.find('.') == std::string::npos || !sections.contains(section_of(word))) continue;
        const bool is_section = std::ranges::any_of(
            names, [&](const std::string& name) { return name.starts_with(as_documented(word + ".")); });
        if (is_section) continue;
        BOOST_TEST(names.contains(as_documented(word)),
                   "sim/README.md names `" << word << "`, which is no key of a machine file");
    }
}

BOOST_AUTO_TEST_CASE(the_files_that_the_readme_names_are_there) {
    const auto files = words_like("[A-Za-z_/]+\\.[ch]pp");
    BOOST_TEST(files.size() > 15u);
    const std::filesystem::path root = RINGLAB_SOURCE_DIR;
    for (const auto& file : files)
        BOOST_TEST((exists(root / "sim" / file) || exists(root / file)),
                   "sim/README.md names `" << file << "`, which is neither in sim/ nor in the tree's root");
}

BOOST_AUTO_TEST_SUITE_END()
