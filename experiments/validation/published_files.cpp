#include "experiments/files/resources.hpp"
#include "experiments/options/values.hpp"
#include "experiments/validation/published.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"
#include "layouts/basics/typed_names.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

namespace ringlab::experiments {
namespace {

constexpr const char* column_names = "mask,pass,system,gpus,tflops_per_gpu";
constexpr int most_gpus = 1 << 14;
constexpr std::int64_t most_tokens = 1 << 28;

/// Parses a TOML file of published figures.
toml::table parsed_table(const std::string& file) {
    try {
        return toml::parse(layouts::read_text(file, "published table"), file);
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
}

/// Reads what a parsed file must say. Every function throws Error, one line, if the key is missing or wrong.
class Reader {
public:
    Reader(const toml::table& table, std::string file) : table_(table), file_(std::move(file)) {}

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
    std::vector<double> numbers(const char* key, double least, double most) const {
        const auto* array = table_[key].as_array();
        require(array, "{}: {} must be a list [..., ...]", file_, key);
        std::vector<double> values;
        for (const auto& node : *array) {
            const auto value = node.value<double>();
            require(value && *value >= least && *value <= most, "{}:{}: {} must have numbers from {} to {}", file_,
                    node.source().begin.line, key, least, most);
            values.push_back(*value);
        }
        return values;
    }
    bool flag(const char* key) const {  ///< false where the key is missing
        const auto value = table_.contains(key) ? table_[key].value<bool>() : false;
        require(value.has_value(), "{}: {} must be true or false", file_, key);
        return *value;
    }
    std::vector<Reader> tables(const char* key) const {
        const auto* array = table_[key].as_array();
        require(array && !array->empty() && array->is_array_of_tables(), "{}: there must be [[{}]]", file_, key);
        std::vector<Reader> readers;
        for (const auto& node : *array) readers.emplace_back(*node.as_table(), file_);
        return readers;
    }

private:
    const toml::table& table_;
    std::string file_;
};

void require_mask(const std::string& place, const std::string& mask) {
    const std::vector<std::string> known{"full", "causal", "varlen_full", "varlen_causal"};
    require(std::ranges::count(known, mask) == 1, "{}: {}", place, layouts::unknown_name("mask", mask, known));
}

/// A table of rings that merge 16-bit partial results and send fp32 gradients.
PublishedTable table_of_rings(const std::string& file) {
    const auto root = parsed_table(file);
    const Reader reader(root, file);
    PublishedTable table{.name = reader.text("name"),
                         .source = reader.text("source"),
                         .machine = reader.text("machine"),
                         .shape = reader.text("shape"),
                         .unit = reader.text("unit")};
    require(table.unit == "TFLOP/s per GPU" || table.unit == "share of one GPU",
            "{}: unit is '{}'; it must be 'TFLOP/s per GPU' or 'share of one GPU'", file, table.unit);
    const auto mask = reader.text("mask");
    require_mask(file, mask);
    const auto gpus = static_cast<int>(reader.count("ranks", 2, most_gpus));
    const auto tokens = reader.numbers("tokens_per_rank", 1, most_tokens),
               fitted = reader.numbers("fitted", 1, most_tokens);
    for (const auto& system : reader.tables("systems")) {
        constexpr double most = 1e6;
        const auto layout = system.text("layout");
        table.systems.push_back({.name = system.text("name"),
                                 .implementation = system.text("implementation"),
                                 .schedule = "ring",
                                 .policy = "partials",
                                 .backward_policy = "carry",
                                 .full = layout,
                                 .causal = layout,
                                 .packed = layout});
        const auto forward = system.numbers("forward", 1e-6, most), both = system.numbers("both", 1e-6, most);
        require(forward.size() == tokens.size() && both.size() == tokens.size(),
                "{}: {} has {} figures forward and {} of both passes; tokens_per_rank has {}", file,
                table.systems.back().name, forward.size(), both.size(), tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i)
            for (const auto& [passes, figures] : {std::pair("forward", &forward), std::pair("both", &both)})
                table.figures.push_back({.system = table.systems.back().name,
                                         .mask = mask,
                                         .passes = passes,
                                         .gpus = gpus,
                                         .tokens_per_gpu = static_cast<std::int64_t>(tokens[i]),
                                         .published = (*figures)[i],
                                         .fitted = std::ranges::count(fitted, tokens[i]) > 0});
    }
    return table;
}

template <class Number>
std::optional<Number> number_in(const std::string& text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// The lines of a text file that are neither empty nor comments, with their numbers from 1.
std::vector<std::pair<int, std::string>> lines_of(const std::string& file, const char* what) {
    std::istringstream text(layouts::read_text(file, what));
    std::vector<std::pair<int, std::string>> lines;
    std::string line;
    for (int number = 1; std::getline(text, line); ++number) {
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty() && !line.starts_with('#')) lines.emplace_back(number, line);
    }
    return lines;
}

/// Lines "GPUS: LENGTH LENGTH ...", one for each packing.
auto load_packings(const std::string& file, std::int64_t tokens_per_gpu) {
    std::map<int, std::vector<std::vector<std::int64_t>>> packings;
    for (const auto& [number, line] : lines_of(file, "packings")) {
        auto parts = fields_of(line, ':');
        const auto gpus = number_in<int>(parts[0]);
        require(parts.size() == 2 && gpus && *gpus >= 2 && *gpus <= most_gpus,
                "{}:{}: a packing must be GPUS: LENGTH LENGTH ..., with 2 to {} GPUs", file, number, most_gpus);
        std::ranges::replace(parts[1], ' ', ',');
        const auto lengths =
            layouts::parse_lengths(parts[1].substr(std::min<std::size_t>(1, parts[1].size())), "lengths");
        const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        require(tokens == *gpus * tokens_per_gpu, "{}:{}: {} tokens in all; {} GPUs have {}", file, number, tokens,
                *gpus, *gpus * tokens_per_gpu);
        packings[*gpus].push_back(lengths);
    }
    return packings;
}

PublishedFigure figure_from(const std::string& line, const std::string& place, const PublishedTable& table) {
    const auto cells = fields_of(line, ',');
    require(cells.size() == 5, "{}: {} cells; there must be 5: {}", place, cells.size(), column_names);
    require_mask(place, cells[0]);
    require(cells[1] == "fwd" || cells[1] == "bwd", "{}: pass is '{}'; it must be fwd or bwd", place, cells[1]);
    std::vector<std::string> known;
    for (const auto& system : table.systems) known.push_back(system.name);
    require(std::ranges::count(known, cells[2]) > 0, "{}: {}", place, layouts::unknown_name("system", cells[2], known));
    const auto gpus = number_in<int>(cells[3]);
    require(gpus && *gpus >= 2 && *gpus <= most_gpus, "{}: gpus is '{}'; it must be a whole number from 2 to {}", place,
            cells[3], most_gpus);
    const bool is_known = cells[4] != "unknown";
    const auto teraflops = is_known ? number_in<double>(cells[4]) : NAN;
    require(!is_known || (teraflops && std::isfinite(*teraflops) && *teraflops > 0),
            "{}: tflops_per_gpu is '{}'; it must be a number above 0, or unknown", place, cells[4]);
    return {.system = cells[2],
            .mask = cells[0],
            .passes = cells[1] == "fwd" ? "forward" : "backward",
            .gpus = *gpus,
            .published = *teraflops,
            .fitted = *gpus == table.fitted_gpus};
}

std::vector<PublishedFigure> load_figures(const std::string& file, const PublishedTable& table,
                                          std::int64_t tokens_per_gpu) {
    const auto lines = lines_of(file, "published figures");
    require(!lines.empty() && lines.front().second == column_names,
            "{}: the first line is '{}'; it must be the columns {}", file, lines.empty() ? "" : lines.front().second,
            column_names);
    require(lines.size() > 1, "{}: there are columns but no figures", file);
    std::vector<PublishedFigure> figures;
    std::set<std::tuple<std::string, std::string, std::string, int>> seen;
    for (std::size_t i = 1; i < lines.size(); ++i) {
        const auto place = fmt::format("{}:{}", file, lines[i].first);
        auto& figure = figures.emplace_back(figure_from(lines[i].second, place, table));
        figure.tokens_per_gpu = tokens_per_gpu;
        require(seen.insert({figure.mask, figure.passes, figure.system, figure.gpus}).second,
                "{}: this system, mask, pass and number of GPUs come twice", place);
    }
    return figures;
}

PublishedTable table_of_systems(const std::string& file) {
    const std::string folder = "published/benchmarks";
    const auto benchmark = find_resource("cp_h100", folder, ".toml");
    const auto root = parsed_table(benchmark);
    const Reader reader(root, benchmark);
    PublishedTable table{.name = std::filesystem::path(file).stem().string(),
                         .source = reader.text("source"),
                         .machine = reader.text("machine"),
                         .shape = reader.text("shape")};
    for (const auto& system : reader.tables("systems")) {
        const auto schedule = system.text("schedule"), policy = system.text("policy");
        table.systems.push_back({system.text("name"), system.text("implementation"), schedule, policy, policy,
                                 system.text("full"), system.text("causal"), system.text("packed"),
                                 system.text_or("packed_schedule", schedule), system.text_or("packed_policy", policy),
                                 system.flag("keeps_exchanged")});
    }
    table.fitted_gpus = static_cast<int>(reader.count("fitted_gpus", 2, most_gpus));
    const auto tokens = reader.count("tokens_per_gpu", 1, most_tokens);
    const auto anchors = find_resource(reader.text("fitted_rows"), "published", ".csv"),
               packings = find_resource(reader.text("packings"), folder, ".txt");
    table.packings = load_packings(packings, tokens);
    table.figures = load_figures(file, table, tokens);
    table.anchors = load_figures(anchors, table, tokens);
    table.files = {{"packings", packings}, {"fitted_rows", anchors}, {"published_" + table.name, file}};
    return table;
}

}  // namespace

const PublishedSystem& PublishedTable::system(const std::string& setup) const {
    return *std::ranges::find(systems, setup, &PublishedSystem::name);
}

PublishedTable load_published(const std::string& name) {
    const auto file = published_file(name);
    auto table = file.ends_with(".csv") ? table_of_systems(file) : table_of_rings(file);
    table.files.emplace_back("machine_" + table.machine, find_resource(table.machine, "machines", ".toml"));
    for (const auto& system : table.systems)
        table.files.emplace_back("implementation_" + system.implementation,
                                 find_resource(system.implementation, "implementations", ".toml"));
    return table;
}

}  // namespace ringlab::experiments
