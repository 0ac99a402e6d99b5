#include "experiments/command_line/list.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/options/options.hpp"
#include "experiments/prediction/machines.hpp"
#include "layouts/basics/text_file.hpp"
#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"

#include <fmt/format.h>

#include <functional>
#include <sstream>
#include <string>
#include <tuple>

namespace ringlab::experiments {
namespace {

void print_entry(const std::string& usage, const std::string& help) {
    constexpr std::size_t column = 38, line = 116;
    fmt::print("  {:<34}  {}\n", usage, wrapped(help, column, line - column));
}

template <class Entries>
void print_entries(const char* title, const Entries& entries) {
    fmt::print("{}\n", title);
    for (const auto& [name, entry] : entries) print_entry(entry.usage, entry.help);
}

void print_files(const char* title, const std::string& folder, const std::string& extension,
                 const std::function<std::string(const std::string& name)>& line_of) {
    fmt::print("{}\n", title);
    for (const auto& name : resources(folder, extension)) print_entry(name, line_of(name));
}

/// The comment at the top of a file, which says what it holds.
std::string comment_of(const std::string& path) {
    std::istringstream file(layouts::read_text_from_disk(path, "file"));
    std::string text;
    for (std::string line; std::getline(file, line) && line.starts_with("#");) text += line.substr(1);
    return text;
}

}  // namespace

void print_machine_keys() {
    fmt::print(
        "A number is written as {{ value = ..., source = \"where it comes from\" }}.\n"
        "\n"
        "- term: the row of sim/README.md that has the formula. Keys without a term are no part of a time.\n"
        "- if left out: a key is required; or derived, by this rule; or in an optional section, whose effect is then "
        "not modelled.\n"
        "- [between_hosts] is for several hosts only.\n");
    std::string section = "none";
    for (const auto& key : sim::machine_keys()) {
        const auto dot = key.name.rfind('.');
        const auto in = dot == std::string::npos ? "" : key.name.substr(0, dot);
        if (in != section)
            fmt::print("\n{}\n\n| key | unit or values | range | term | if left out |\n|---|---|---|---|---|\n",
                       in.empty() ? "Before all sections" : "[" + in + "]");
        section = in;
        fmt::print("| `{}` | {} | {} | {} | {} |\n", key.name.substr(dot == std::string::npos ? 0 : dot + 1), key.unit,
                   key.range, key.term, key.left_out);
    }
}

void print_list() {
    print_entries("Layouts", layouts::layouts().entries());
    print_entries("Masks, joined by +", layouts::masks().entries());
    print_entries("Schedules", layouts::schedules().entries());
    fmt::print("Inputs\n");
    print_entry("real", "Q, K, V and loss gradient of a causal language model, 2048 tokens");
    for (const auto& kind : input_kinds()) print_entry(kind.name, kind.help);
    print_files("Machines", "machines", ".toml", machine_line);
    for (const auto& [title, folder, extension] : {std::tuple{"Published tables", "published", ".toml"},
                                                   {"Published figures of systems", "published", ".csv"},
                                                   {"Presets", "presets", ".cfg"}})
        print_files(title, folder, extension,
                    [&](const std::string& name) { return comment_of(find_resource(name, folder, extension)); });
}

}  // namespace ringlab::experiments
