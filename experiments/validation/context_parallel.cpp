#include "experiments/validation/context_parallel.hpp"

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/console/table.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/values.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/validation/published_reader.hpp"
#include "layouts/basics/text_file.hpp"
#include "layouts/basics/typed_names.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using Documents = std::vector<std::int64_t>;

constexpr const char* column_names = "mask,pass,system,gpus,tflops_per_gpu";
const std::vector<std::string> known_masks{"full", "causal", "varlen_full", "varlen_causal"};
constexpr int most_gpus = 1 << 14;
constexpr double least_difference = 0.05;  ///< of two systems that are ranked

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
    std::map<int, std::vector<Documents>> packings;
    for (const auto& [number, line] : lines_of(file, "packings")) {
        const auto parts = fields_of(line, ':');
        const auto gpus = number_in<int>(parts[0]);
        require(parts.size() == 2 && gpus && *gpus >= 2 && *gpus <= most_gpus,
                "{}:{}: a packing must be GPUS: LENGTH LENGTH ..., with 2 to {} GPUs", file, number, most_gpus);
        const auto lengths = layouts::parse_lengths(
            [&] {
                auto text = parts[1].substr(std::min<std::size_t>(1, parts[1].size()));
                std::ranges::replace(text, ' ', ',');
                return text;
            }(),
            "lengths");
        const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        require(tokens == *gpus * tokens_per_gpu, "{}:{}: {} tokens in all; {} GPUs have {}", file, number, tokens,
                *gpus, *gpus * tokens_per_gpu);
        packings[*gpus].push_back(lengths);
    }
    return packings;
}

ContextParallelRow row_from(const std::string& line, const std::string& place,
                            const ContextParallelBenchmark& benchmark) {
    const auto cells = fields_of(line, ',');
    require(cells.size() == 5, "{}: {} cells; there must be 5: {}", place, cells.size(), column_names);
    ContextParallelRow row;
    row.mask = cells[0];
    require(std::ranges::count(known_masks, row.mask) == 1, "{}: {}", place,
            layouts::unknown_name("mask", row.mask, known_masks));
    require(cells[1] == "fwd" || cells[1] == "bwd", "{}: pass is '{}'; it must be fwd or bwd", place, cells[1]);
    row.pass = cells[1] == "fwd" ? Pass::forward : Pass::backward;
    row.system = cells[2];
    std::vector<std::string> known;
    for (const auto& system : benchmark.systems) known.push_back(system.name);
    require(benchmark.find(row.system), "{}: {}", place, layouts::unknown_name("system", row.system, known));
    const auto gpus = number_in<int>(cells[3]);
    require(gpus && *gpus >= 2 && *gpus <= most_gpus, "{}: gpus is '{}'; it must be a whole number from 2 to {}", place,
            cells[3], most_gpus);
    row.gpus = *gpus;
    const auto teraflops = number_in<double>(cells[4]);
    require(teraflops && std::isfinite(*teraflops) && *teraflops > 0,
            "{}: tflops_per_gpu is '{}'; it must be a number above 0", place, cells[4]);
    row.teraflops = *teraflops;
    return row;
}

auto key_of(const ContextParallelRow& row) {
    return std::tuple(row.mask, row.pass == Pass::forward ? 0 : 1, row.system, row.gpus);
}

layouts::Layout layout_of(const ContextParallelBenchmark& benchmark, const ContextParallelBenchmark::System& system,
                          const std::string& mask_name, const layouts::Mask& mask, const Documents& documents,
                          int gpus) {
    const auto& name = mask_name == "full" ? system.full : mask_name == "causal" ? system.causal : system.packed;
    const auto spec = layouts::Spec::parse(name);
    if (spec.name == "groups") return document_groups(documents, gpus, benchmark.tokens_per_gpu);
    if (spec.name == "document-zigzag") {
        const auto group = spec.arguments.empty() ? 1 : layouts::parse_count(spec.arguments, "ranks of a group", 1);
        return document_zigzag(documents, gpus, static_cast<int>(group));
    }
    return layouts::make_layout(name, mask, gpus);
}

/// What a pass takes, and its FLOP on each GPU.
struct PassTime {
    double seconds = 0, flop = 0;
};

/// Time in which the ranks of a group exchange tokens of Q, K and V for heads: a forward pass whose attends take no
/// time exchanges these and the output, and nothing hides any of it.
double exchange_seconds(const ContextParallelBenchmark& benchmark, const ContextParallelBenchmark::System& system,
                        const sim::Machine& machine, int gpus) {
    const auto spec = layouts::Spec::parse(system.schedule);
    const int members =
        spec.arguments.empty() ? gpus : static_cast<int>(layouts::parse_count(spec.arguments, "ranks of a group", 1));
    auto problem = problem_from(with_shape(benchmark.shape, {}));
    problem.tokens = benchmark.tokens_per_gpu * members;
    const auto mask = layouts::make_mask("full", problem.tokens);
    const auto schedule = layouts::make_schedule(problem, mask, layouts::make_layout("contiguous", mask, members),
                                                 {.schedule = spec.name});
    sim::SimOptions options;
    options.free = sim::Cause::attends;
    const auto kv_heads = static_cast<double>(std::max<std::int64_t>(problem.kv_heads, members));
    const auto query_heads = static_cast<double>(problem.query_heads);
    return layouts::to_seconds(sim::simulate(*schedule, machine, options).makespan) * (query_heads + 2 * kv_heads) /
           (2 * query_heads + 2 * kv_heads);
}

PassTime pass_time(const ContextParallelBenchmark& benchmark, const ContextParallelBenchmark::System& system,
                   const sim::Machine& machine, const ContextParallelRow& row, const Documents& documents,
                   double exchange) {
    auto problem = problem_from(with_shape(benchmark.shape, {}));
    problem.tokens = benchmark.tokens_per_gpu * row.gpus;
    const auto lengths = fmt::format("documents:{}", fmt::join(documents, ","));
    const auto spec = row.mask == "varlen_full"     ? lengths
                      : row.mask == "varlen_causal" ? "causal+" + lengths
                                                    : row.mask;
    const auto mask = layouts::make_mask(spec, problem.tokens);
    const auto policy = policy_from(row.packed() ? system.packed_policy : system.policy, problem.dtype);
    const auto layout = layout_of(benchmark, system, row.mask, mask, documents, row.gpus);
    const auto schedule = layouts::make_schedule(problem, mask, layout,
                                                 {row.packed() ? system.packed_schedule : system.schedule, row.pass,
                                                  policy.accumulation, policy.gradient_dtype});
    PassTime time{layouts::to_seconds(sim::simulate(*schedule, machine).makespan), pass_flop(*schedule) / row.gpus};
    if (row.pass == Pass::backward && system.keeps_exchanged) time.seconds -= exchange;
    return time;
}

/// TFLOP/s per GPU; the mean of those of all packings.
double predicted_rate(const ContextParallelBenchmark& benchmark, const ContextParallelRow& row) {
    const auto& system = *benchmark.find(row.system);
    const auto machine = sim::load_machine(find_resource(benchmark.machine, "machines", ".toml"),
                                           find_resource(system.implementation, "implementations", ".toml"));
    const double exchange = system.keeps_exchanged && row.pass == Pass::backward
                                ? exchange_seconds(benchmark, system, machine, row.gpus)
                                : 0;
    std::vector<Documents> packings{{row.gpus * benchmark.tokens_per_gpu}};  // one document
    if (row.packed()) {
        const auto found = benchmark.packings.find(row.gpus);
        require(found != benchmark.packings.end(), "{} has no packings for {} GPUs", benchmark.packings_file, row.gpus);
        packings = found->second;
    }
    double rate = 0;
    for (const auto& documents : packings) {
        const auto [seconds, flop] = pass_time(benchmark, system, machine, row, documents, exchange);
        rate += flop / seconds / 1e12 / static_cast<double>(packings.size());
    }
    return rate;
}

using ErrorOf = double (ContextParallelFigure::*)() const;

double mean_error(const std::vector<ContextParallelFigure>& figures, bool packed, ErrorOf error) {
    double sum = 0;
    int count = 0;
    for (const auto& figure : figures)
        if (!figure.fitted && figure.row.packed() == packed) sum += std::abs((figure.*error)()), ++count;
    return count == 0 ? std::nan("") : sum / count;
}

}  // namespace

const ContextParallelBenchmark::System* ContextParallelBenchmark::find(const std::string& system) const {
    const auto found = std::ranges::find(systems, system, &System::name);
    return found == systems.end() ? nullptr : &*found;
}

ContextParallelBenchmark load_benchmark(const std::string& name) {
    const auto folder = "published/benchmarks";
    const auto file = find_resource(name, folder, ".toml");
    const auto root = parsed_table(file);
    const PublishedReader reader(root, file);
    ContextParallelBenchmark benchmark;
    benchmark.name = reader.text("name");
    benchmark.source = reader.text("source");
    benchmark.machine = reader.text("machine");
    benchmark.shape = reader.text("shape");
    benchmark.tokens_per_gpu = reader.count("tokens_per_gpu", 1, std::int64_t{1} << 24);
    benchmark.fitted_gpus = static_cast<int>(reader.count("fitted_gpus", 2, most_gpus));
    benchmark.fitted_rows = find_resource(reader.text("fitted_rows"), "published", ".csv");
    benchmark.packings_file = find_resource(reader.text("packings"), folder, ".txt");
    benchmark.packings = load_packings(benchmark.packings_file, benchmark.tokens_per_gpu);
    for (const auto& system : reader.tables("systems"))
        benchmark.systems.push_back({system.text("name"), system.text("implementation"), system.text("schedule"),
                                     system.text("policy"), system.text_or("packed_schedule", system.text("schedule")),
                                     system.text_or("packed_policy", system.text("policy")), system.text("full"),
                                     system.text("causal"), system.text("packed"), system.flag("keeps_exchanged")});
    return benchmark;
}

std::vector<ContextParallelRow> load_rows(const std::string& file, const ContextParallelBenchmark& benchmark) {
    const auto lines = lines_of(file, "published figures");
    require(!lines.empty() && lines.front().second == column_names,
            "{}: the first line is '{}'; it must be the columns {}", file, lines.empty() ? "" : lines.front().second,
            column_names);
    require(lines.size() > 1, "{}: there are columns but no figures", file);
    std::vector<ContextParallelRow> rows;
    std::set<decltype(key_of(rows.front()))> seen;
    for (std::size_t i = 1; i < lines.size(); ++i) {
        const auto place = fmt::format("{}:{}", file, lines[i].first);
        rows.push_back(row_from(lines[i].second, place, benchmark));
        require(seen.insert(key_of(rows.back())).second, "{}: this system, mask, pass and number of GPUs come twice",
                place);
    }
    return rows;
}

std::vector<ContextParallelFigure> predict_rows(const std::vector<ContextParallelRow>& rows,
                                                const std::vector<ContextParallelRow>& fitted,
                                                const ContextParallelBenchmark& benchmark) {
    std::map<decltype(key_of(rows.front())), double> models;
    const auto model_of = [&](const ContextParallelRow& row) {
        const auto [entry, added] = models.try_emplace(key_of(row), 0);
        if (added) entry->second = predicted_rate(benchmark, row);
        return entry->second;
    };
    std::vector<ContextParallelFigure> figures;
    for (const auto& row : rows) {
        auto anchor = row;
        anchor.gpus = benchmark.fitted_gpus;
        const auto found =
            std::ranges::find(fitted, key_of(anchor), [](const ContextParallelRow& other) { return key_of(other); });
        require(found != fitted.end(), "{} has no figure of {} for {}, {}, on {} GPUs, which is what is fitted to",
                benchmark.fitted_rows, row.system, row.mask, to_string(row.pass), benchmark.fitted_gpus);
        figures.push_back({row, row.gpus == benchmark.fitted_gpus, model_of(row), found->teraflops / model_of(*found),
                           found->teraflops});
    }
    return figures;
}

ContextParallelScore score_rows(const std::vector<ContextParallelFigure>& figures) {
    ContextParallelScore score;
    const auto errors = [&](ErrorOf error) {
        return ContextParallelScore::Guess{mean_error(figures, false, error), mean_error(figures, true, error), 0};
    };
    score.scaled = errors(&ContextParallelFigure::error);
    score.unscaled = errors(&ContextParallelFigure::error_unscaled);
    score.copied = errors(&ContextParallelFigure::error_copied);
    for (std::size_t i = 0; i < figures.size(); ++i) {
        const auto& a = figures[i];
        if (a.fitted) continue;
        ++(a.row.packed() ? score.packed_figures : score.plain_figures);
        for (std::size_t j = 0; j < i; ++j) {
            const auto& b = figures[j];
            if (b.fitted || a.row.mask != b.row.mask || a.row.pass != b.row.pass || a.row.gpus != b.row.gpus) continue;
            const auto [less, more] = std::minmax(a.row.teraflops, b.row.teraflops);
            if (more / less - 1 <= least_difference) continue;
            ++score.pairs;
            const bool a_leads = a.row.teraflops > b.row.teraflops;
            const auto right = [&](double of_a, double of_b) { return a_leads ? of_a > of_b : of_b > of_a; };
            score.scaled.right += right(a.predicted(), b.predicted());
            score.unscaled.right += right(a.model, b.model);
            score.copied.right += right(a.copied, b.copied);
        }
    }
    return score;
}

void add_provenance(Provenance& provenance, const ContextParallelBenchmark& benchmark) {
    provenance.set_file("machine_" + benchmark.machine, find_resource(benchmark.machine, "machines", ".toml"));
    provenance.set_file("packings", benchmark.packings_file);
    provenance.set_file("fitted_rows", benchmark.fitted_rows);
    for (const auto& system : benchmark.systems)
        provenance.set_file("implementation_" + system.implementation,
                            find_resource(system.implementation, "implementations", ".toml"));
}

void describe_row(RunWriter& run, const ContextParallelBenchmark& benchmark, const ContextParallelFigure& figure) {
    const auto& system = *benchmark.find(figure.row.system);
    run.attribute("benchmark", benchmark.name, "1", "what was published");
    run.attribute("source", benchmark.source, "1", "where, or by whom");
    run.attribute("machine", benchmark.machine, "1", "file of the machine");
    run.attribute("implementation", system.implementation, "1", "file of what the machine runs");
    run.attribute("system", figure.row.system, "1", "what ran");
    run.attribute("schedule", figure.row.packed() ? system.packed_schedule : system.schedule, "1",
                  "who sends what to whom, and when");
    run.attribute("mask", figure.row.mask, "1", "who sees whom; varlen: packed documents");
    run.attribute("pass", to_string(figure.row.pass), "1", "direction of the pass");
    run.attribute("shape", benchmark.shape, "1", "heads, dims and arithmetic");
    run.attribute("ranks", figure.row.gpus, "1", "GPUs");
    run.attribute("tokens", figure.row.gpus * benchmark.tokens_per_gpu, "1", "of the whole sequence");
    run.attribute("fitted", figure.fitted ? 1 : 0, "1", "1: figures on these many GPUs are fitted to");
    run.attribute("published", figure.row.teraflops, "TFLOP/s", "per GPU, over visible pairs");
    run.attribute("model", figure.model, "TFLOP/s", "as simulated, per GPU; packed: mean of the packings");
    run.attribute("scale", figure.scale, "1", "published over model on the number of GPUs fitted to");
    run.attribute("predicted", figure.predicted(), "TFLOP/s", "model times scale");
    run.attribute("copied", figure.copied, "TFLOP/s", "published on the number of GPUs fitted to");
    run.attribute("error", figure.error(), "1", "predicted over published, less 1");
    run.attribute("error_unscaled", figure.error_unscaled(), "1", "model over published, less 1");
    run.attribute("error_copied", figure.error_copied(), "1", "copied over published, less 1");
}

std::string rows_text(const std::string& name, const ContextParallelBenchmark& benchmark,
                      const std::vector<ContextParallelFigure>& figures) {
    const auto percent = [](double number) { return fmt::format("{:+.1f} %", 100 * number); };
    Table table({"mask", "pass", "system", "GPUs", "published", "model", "error", "scale", "predicted", "error", ""});
    for (const auto& figure : figures)
        table.add({figure.row.mask, to_string(figure.row.pass), figure.row.system, fmt::format("{}", figure.row.gpus),
                   fmt::format("{:.1f}", figure.row.teraflops), fmt::format("{:.1f}", figure.model),
                   percent(figure.error_unscaled()), fmt::format("{:.3f}", figure.scale),
                   fmt::format("{:.1f}", figure.predicted()), percent(figure.error()), figure.fitted ? "fitted" : ""});
    auto text = fmt::format("{}, TFLOP/s per GPU ({}):\n{}", name, benchmark.source, table.text());
    const auto score = score_rows(figures);
    if (score.plain_figures + score.packed_figures == 0)
        return text + fmt::format("\nNothing to score: all figures are on {} GPUs, which is fitted to.\n",
                                  benchmark.fitted_gpus);
    Table scores({"guess", fmt::format("causal, full ({})", score.plain_figures),
                  fmt::format("packed ({})", score.packed_figures), fmt::format("pairs right of {}", score.pairs)});
    const auto add = [&](const std::string& guess, const ContextParallelScore::Guess& of) {
        const auto mean = [](double error) {
            return std::isnan(error) ? std::string("-") : fmt::format("{:.1f} %", 100 * error);
        };
        scores.add({guess, mean(of.plain), mean(of.packed),
                    score.pairs == 0 ? "-" : fmt::format("{} ({:.0f} %)", of.right, 100.0 * of.right / score.pairs)});
    };
    add("prediction", score.scaled);
    add("model without scales", score.unscaled);
    add(fmt::format("figure of {} GPUs", benchmark.fitted_gpus), score.copied);
    return text + fmt::format(
                      "\nMean error of figures that were not fitted to; a pair is two systems that differ by "
                      "more than {:.0f} %:\n{}",
                      100 * least_difference, scores.text());
}

}  // namespace ringlab::experiments
