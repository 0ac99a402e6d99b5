#include "experiments/validation/published.hpp"

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/console/table.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/validation/published_reader.hpp"
#include "experiments/validation/scores.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

PublishedTable::System system_from(const PublishedReader& reader, std::size_t sizes, const std::string& file) {
    constexpr double most = 1e6;
    PublishedTable::System system{reader.text("name"), reader.text("implementation"), reader.text("layout"),
                                  reader.list<double>("forward", 1e-6, most), reader.list<double>("both", 1e-6, most)};
    require(system.forward.size() == sizes && system.both.size() == sizes,
            "{}: {} has {} figures forward and {} of both passes; tokens_per_rank has {}", file, system.name,
            system.forward.size(), system.both.size(), sizes);
    return system;
}

/// Predicted costs of a rank in a ring of `ranks` ranks with `tokens` tokens each.
struct PassCosts {
    double forward_seconds = 0, both_seconds = 0, forward_flop = 0, both_flop = 0;
};

PassCosts predicted_costs(const PublishedTable& table, const PublishedTable::System& system,
                          const sim::Machine& machine, int ranks, std::int64_t tokens) {
    const auto config = with_shape(table.shape, {});
    PassCosts costs;
    for (const auto pass : both_passes) {
        // One GPU alone has nothing to merge.
        const auto* policy = ranks > 1 && pass == Pass::forward ? "partials" : "carry";
        const Case which{"", table.mask, system.layout, "ring", policy, ranks, tokens * ranks};
        const auto plan = make_plan(which, problem_from(config));
        const auto& schedule = *plan.schedule(pass);
        const auto seconds = layouts::to_seconds(sim::simulate(schedule, machine).makespan);
        const auto flop = pass_flop(schedule) / ranks;
        if (pass == Pass::forward) costs.forward_seconds = seconds, costs.forward_flop = flop;
        costs.both_seconds += seconds;
        costs.both_flop += flop;
    }
    return costs;
}

}  // namespace

const char* to_string(PublishedTable::Unit unit) {
    return unit == PublishedTable::Unit::teraflops ? "TFLOP/s per GPU" : "share of one GPU";
}

PublishedTable load_published(const std::string& name) {
    const auto file = find_resource(name, "published", ".toml");
    const auto root = parsed_table(file);
    const PublishedReader reader(root, file);
    constexpr double most_tokens = 1 << 28;
    constexpr std::int64_t most_ranks = 1 << 14;
    PublishedTable table;
    table.name = reader.text("name");
    table.source = reader.text("source");
    table.machine = reader.text("machine");
    table.shape = reader.text("shape");
    table.mask = reader.text("mask");
    table.ranks = static_cast<int>(reader.count("ranks", 2, most_ranks));
    table.tokens_per_rank = reader.list<std::int64_t>("tokens_per_rank", 1, most_tokens);
    table.fitted = reader.list<std::int64_t>("fitted", 1, most_tokens);
    const auto unit = reader.text("unit");
    for (table.unit = PublishedTable::Unit::teraflops; unit != to_string(table.unit);) {
        require(table.unit == PublishedTable::Unit::teraflops,
                "{}: unit is '{}'; it must be 'TFLOP/s per GPU' or 'share of one GPU'", file, unit);
        table.unit = PublishedTable::Unit::share_of_one_gpu;
    }
    for (const auto& system : reader.tables("systems"))
        table.systems.push_back(system_from(system, table.tokens_per_rank.size(), file));
    return table;
}

std::vector<PublishedFigure> predict_published(const PublishedTable& table) {
    const auto machine_file = find_resource(table.machine, "machines", ".toml");
    std::vector<PublishedFigure> figures;
    for (const auto& system : table.systems) {
        const auto machine =
            sim::load_machine(machine_file, find_resource(system.implementation, "implementations", ".toml"));
        for (std::size_t i = 0; i < table.tokens_per_rank.size(); ++i) {
            const auto tokens = table.tokens_per_rank[i];
            const auto ring = predicted_costs(table, system, machine, table.ranks, tokens);
            const bool fitted = std::find(table.fitted.begin(), table.fitted.end(), tokens) != table.fitted.end();
            PublishedFigure figure{system.name, system.implementation, system.layout,   tokens,
                                   fitted,      {system.forward[i]},   {system.both[i]}};
            if (table.unit == PublishedTable::Unit::teraflops) {
                figure.forward.predicted = ring.forward_flop / ring.forward_seconds / 1e12;
                figure.both.predicted = ring.both_flop / ring.both_seconds / 1e12;
            } else {
                const auto one = predicted_costs(table, system, machine, 1, tokens);
                figure.forward.predicted = table.ranks * one.forward_seconds / ring.forward_seconds;
                figure.both.predicted = table.ranks * one.both_seconds / ring.both_seconds;
            }
            figures.push_back(figure);
        }
    }
    return figures;
}

void add_provenance(Provenance& provenance, const PublishedTable& table) {
    provenance.set_file("machine_" + table.machine, find_resource(table.machine, "machines", ".toml"));
    for (const auto& system : table.systems)
        provenance.set_file("implementation_" + system.implementation,
                            find_resource(system.implementation, "implementations", ".toml"));
}

void describe_published(RunWriter& run, const PublishedTable& table, const PublishedFigure& figure) {
    run.attribute("table", table.name, "1", "what was published");
    run.attribute("source", table.source, "1", "where, or by whom");
    run.attribute("machine", table.machine, "1", "file of the machine");
    run.attribute("implementation", figure.implementation, "1", "file of what the machine runs");
    run.attribute("system", figure.system, "1", "what ran");
    run.attribute("layout", figure.layout, "1", "who owns which tokens");
    run.attribute("mask", table.mask, "1", "who sees whom");
    run.attribute("shape", table.shape, "1", "heads, dims and arithmetic");
    run.attribute("ranks", table.ranks, "1", "GPUs of the ring");
    run.attribute("tokens", table.ranks * figure.tokens_per_rank, "1", "of the whole sequence");
    run.attribute("fitted", figure.fitted ? 1 : 0, "1", "1: a parameter of the implementation was fitted to it");
    run.attribute("unit", to_string(table.unit), "1", "of what is published and predicted");
    for (const auto& [passes, pair] : {std::pair{"forward", figure.forward}, std::pair{"both", figure.both}}) {
        run.attribute(fmt::format("published_{}", passes), pair.published, "1", "in the run's unit");
        run.attribute(fmt::format("predicted_{}", passes), pair.predicted, "1", "in the run's unit");
        run.attribute(fmt::format("error_{}", passes), pair.error(), "1", "predicted over published, less 1");
    }
}

std::string published_text(const PublishedTable& table, const std::vector<PublishedFigure>& figures) {
    Table runs({"system", "tokens per GPU", "forward", "predicted", "error", "both passes", "predicted", "error", ""});
    std::map<std::int64_t, std::vector<double>> errors;  // by tokens per rank
    const auto value = [](double number) { return fmt::format("{:.3g}", number); };
    const auto percent = [](double number) { return fmt::format("{:+.1f} %", 100 * number); };
    for (const auto& figure : figures) {
        const auto& [forward, both] = std::pair{figure.forward, figure.both};
        runs.add({figure.system, fmt::format("{}", figure.tokens_per_rank), value(forward.published),
                  value(forward.predicted), percent(forward.error()), value(both.published), value(both.predicted),
                  percent(both.error()), figure.fitted ? "fitted" : ""});
        if (figure.fitted) continue;
        errors[figure.tokens_per_rank].push_back(forward.error());
        errors[figure.tokens_per_rank].push_back(both.error());
    }
    auto text = fmt::format("{} ({}), {}:\n{}\n", table.name, table.source, to_string(table.unit), runs.text());
    for (const auto& [tokens, values] : errors)
        text += fmt::format("{} tokens per GPU, not fitted: {:.1f} % off on average, {:.1f} % at most\n", tokens,
                            100 * score(values).mean, 100 * score(values).most);
    return text;
}

}  // namespace ringlab::experiments
