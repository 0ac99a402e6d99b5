#include "experiments/validation/published.hpp"

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/console/table.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/validation/scores.hpp"
#include "layouts/basics/typed_names.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using Documents = std::vector<std::int64_t>;

constexpr double least_difference = 0.05;  ///< of two systems that are ranked

/// What a pass takes, and its FLOP on each GPU.
struct PassTime {
    double seconds = 0, flop = 0;
};

/// The number behind "ulysses:8" or "document-zigzag:8"; `otherwise` where there is none.
int group_of(const layouts::Spec& spec, int otherwise) {
    return spec.arguments.empty() ? otherwise
                                  : static_cast<int>(layouts::parse_count(spec.arguments, "ranks of a group", 1));
}

layouts::Layout layout_of(const std::string& name, const layouts::Mask& mask, const Documents& documents, int gpus,
                          std::int64_t tokens_per_gpu) {
    const auto spec = layouts::Spec::parse(name);
    if (spec.name == "groups") return document_groups(documents, gpus, tokens_per_gpu);
    if (spec.name == "document-zigzag") return document_zigzag(documents, gpus, group_of(spec, 1));
    return layouts::make_layout(name, mask, gpus);
}

/// The figures of a table as one system runs them.
class SystemModel {
public:
    SystemModel(const PublishedTable& table, const PublishedFigure& figure)
        : table_(table),
          system_(table.system(figure.system)),
          figure_(figure),
          machine_(sim::load_machine(find_resource(table.machine, "machines", ".toml"),
                                     find_resource(system_.implementation, "implementations", ".toml"))) {}

    /// In the table's unit; the mean of all packings.
    double value() const {
        std::vector<Documents> packings{{figure_.gpus * figure_.tokens_per_gpu}};  // one document
        if (figure_.is_packed()) {
            const auto found = table_.packings.find(figure_.gpus);
            require(found != table_.packings.end(), "the packings of {} are not for {} GPUs", table_.name,
                    figure_.gpus);
            packings = found->second;
        }
        const double kept = system_.keeps_exchanged && figure_.passes == "backward" ? exchange_seconds() : 0;
        double sum = 0;
        for (const auto& documents : packings) {
            const auto ring = time_of_passes(documents, figure_.gpus);
            sum += table_.unit == "share of one GPU"
                       ? figure_.gpus * time_of_passes({figure_.tokens_per_gpu}, 1).seconds / ring.seconds
                       : ring.flop / (ring.seconds - kept) / 1e12;
        }
        return sum / static_cast<double>(packings.size());
    }

private:
    layouts::Problem problem(int gpus) const {
        auto problem = problem_from(with_shape(table_.shape, {}));
        problem.tokens = figure_.tokens_per_gpu * gpus;
        return problem;
    }

    PassTime time_of_passes(const Documents& documents, int gpus) const {
        PassTime sum;
        for (const auto pass : both_passes)
            if (figure_.passes == "both" || figure_.passes == to_string(pass)) {
                const auto [seconds, flop] = time_of(pass, documents, gpus);
                sum.seconds += seconds;
                sum.flop += flop;
            }
        return sum;
    }

    PassTime time_of(Pass pass, const Documents& documents, int gpus) const {
        const auto lengths = fmt::format("documents:{}", fmt::join(documents, ","));
        const auto spec = figure_.mask == "varlen_full"     ? lengths
                          : figure_.mask == "varlen_causal" ? "causal+" + lengths
                                                            : figure_.mask;
        const auto of_ring = problem(gpus);
        const auto mask = layouts::make_mask(spec, of_ring.tokens);
        const auto& name = figure_.is_packed()      ? system_.packed_policy
                           : pass == Pass::backward ? system_.backward_policy
                                                    : system_.policy;
        const auto policy = policy_from(gpus > 1 ? name : "carry", of_ring.dtype);  // one GPU has nothing to merge
        const auto schedule = layouts::make_schedule(
            of_ring, mask, layout_of(system_.layout(figure_.mask), mask, documents, gpus, figure_.tokens_per_gpu),
            {figure_.is_packed() ? system_.packed_schedule : system_.schedule, pass, policy.accumulation,
             policy.gradient_dtype});
        return {layouts::to_seconds(sim::simulate(*schedule, machine_).makespan), pass_flop(*schedule) / gpus};
    }

    /// Time in which the ranks of a group exchange tokens of Q, K and V for heads: a forward pass whose attends take no
    /// time exchanges these and the output, and nothing hides any of it.
    double exchange_seconds() const {
        const auto spec = layouts::Spec::parse(system_.schedule);
        const auto members = group_of(spec, figure_.gpus);
        const auto of_group = problem(members);
        const auto mask = layouts::make_mask("full", of_group.tokens);
        const auto schedule = layouts::make_schedule(of_group, mask, layouts::make_layout("contiguous", mask, members),
                                                     {.schedule = spec.name});
        sim::SimOptions options;
        options.free = sim::Cause::attends;
        const auto kv_heads = static_cast<double>(std::max<std::int64_t>(of_group.kv_heads, members));
        const auto query_heads = static_cast<double>(of_group.query_heads);
        return layouts::to_seconds(sim::simulate(*schedule, machine_, options).makespan) *
               (query_heads + 2 * kv_heads) / (2 * query_heads + 2 * kv_heads);
    }

    const PublishedTable& table_;
    const PublishedSystem& system_;
    const PublishedFigure& figure_;
    sim::Machine machine_;
};

std::string key_of(const PublishedFigure& figure) {
    return fmt::format("{} {} {} {} {}", figure.mask, figure.passes, figure.gpus, figure.tokens_per_gpu, figure.system);
}

/// What is compared with the published figures: its name, and the guess.
using Guess = std::pair<std::string, double (*)(const PublishedFigure&)>;

std::vector<Guess> guesses_of(const PublishedTable& table) {
    std::vector<Guess> guesses{{"prediction", [](const PublishedFigure& figure) { return figure.predicted(); }}};
    if (table.fitted_gpus == 0) return guesses;
    guesses.emplace_back("model without scales", [](const PublishedFigure& figure) { return figure.model; });
    guesses.emplace_back(fmt::format("figure of {} GPUs", table.fitted_gpus),
                         [](const PublishedFigure& figure) { return figure.copied; });
    return guesses;
}

}  // namespace

void predict_published(PublishedTable& table) {
    std::map<std::string, double> models;
    const auto model_of = [&](const PublishedFigure& figure) {
        const auto [entry, is_new] = models.try_emplace(key_of(figure));
        if (is_new) entry->second = SystemModel(table, figure).value();
        return entry->second;
    };
    for (auto& figure : table.figures) {
        figure.model = model_of(figure);
        if (table.fitted_gpus == 0) continue;
        auto anchor = figure;
        anchor.gpus = table.fitted_gpus;
        const auto found =
            std::ranges::find(table.anchors, key_of(anchor), [](const auto& one) { return key_of(one); });
        require(found != table.anchors.end(),
                "there is no figure of {} for {}, {}, on {} GPUs, which is what is fitted to", figure.system,
                figure.mask, figure.passes, table.fitted_gpus);
        figure.copied = found->published;
        figure.scale = found->published / model_of(*found);
    }
}

PublishedScore score_published(const PublishedTable& table, double (*guess)(const PublishedFigure&)) {
    PublishedScore score;
    for (std::size_t i = 0; i < table.figures.size(); ++i) {
        const auto& a = table.figures[i];
        if (!a.is_scored()) continue;
        const auto kind = table.fitted_gpus == 0 ? fmt::format("{} tokens per GPU", a.tokens_per_gpu)
                                                 : std::string(a.is_packed() ? "packed" : "causal, full");
        score.errors[kind].push_back(a.error(guess(a)));
        for (std::size_t j = 0; j < i; ++j) {
            const auto& b = table.figures[j];
            auto same = b;
            same.system = a.system;
            const auto [less, more] = std::minmax(a.published, b.published);
            if (!b.is_scored() || key_of(same) != key_of(a) || more / less - 1 <= least_difference) continue;
            ++score.pairs;
            const auto ahead = guess(a) - guess(b);
            score.right += a.published > b.published ? ahead > 0 : ahead < 0;
        }
    }
    return score;
}

void describe_published(RunWriter& run, const PublishedTable& table, const PublishedFigure& figure) {
    const auto& system = table.system(figure.system);
    const auto text = [&](const char* name, const std::string& value, const char* description) {
        run.attribute(name, value, "1", description);
    };
    text("table", table.name, "what was published");
    text("source", table.source, "where, or by whom");
    text("machine", table.machine, "file of the machine");
    text("implementation", system.implementation, "file of what the machine runs");
    text("system", figure.system, "what ran");
    text("schedule", figure.is_packed() ? system.packed_schedule : system.schedule, "who sends what to whom, and when");
    text("layout", system.layout(figure.mask), "who owns which tokens");
    text("mask", figure.mask, "who sees whom; varlen: packed documents");
    text("pass", figure.passes, "forward, backward or both");
    text("shape", table.shape, "heads, dims and arithmetic");
    text("unit", table.unit, "of what is published and predicted");
    run.attribute("ranks", figure.gpus, "1", "GPUs");
    run.attribute("tokens", figure.gpus * figure.tokens_per_gpu, "1", "of the whole sequence");
    run.attribute("fitted", figure.fitted ? 1 : 0, "1", "1: something was fitted to it");
    const auto number = [&](const char* name, double value, const char* description) {
        run.attribute(name, value, "1", description);
    };
    number("published", figure.published, "in the run's unit");
    number("model", figure.model, "as simulated, in the run's unit; packed: mean of the packings");
    number("scale", figure.scale, "published over model on the number of GPUs fitted to");
    number("predicted", figure.predicted(), "model times scale");
    number("copied", figure.copied, "published on the number of GPUs fitted to; 0: no scale is fitted");
    number("error", figure.error(figure.predicted()), "predicted over published, less 1");
}

std::string published_text(const PublishedTable& table) {
    const bool scaled = table.fitted_gpus > 0;
    const auto percent = [](double share) {
        return std::isnan(share) ? std::string() : fmt::format("{:+.1f} %", 100 * share);
    };
    Table figures, scores;
    for (const auto& figure : table.figures) {
        figures.start().cell("mask", figure.mask).cell("pass", figure.passes).cell("system", figure.system);
        figures.cell("GPUs", figure.gpus).cell("tokens per GPU", figure.tokens_per_gpu);
        figures.cell("published", figure.published, "{:.4g}");
        if (scaled)
            figures.cell("model", figure.model, "{:.4g}")
                .cell("error", percent(figure.error(figure.model)))
                .cell("scale", figure.scale, "{:.3f}");
        figures.cell("predicted", figure.predicted(), "{:.4g}");
        figures.cell("error", percent(figure.error(figure.predicted()))).cell("", figure.fitted ? "fitted" : "");
    }
    for (const auto& [name, guess] : guesses_of(table)) {
        const auto found = score_published(table, guess);
        scores.start().cell("guess", name);
        for (const auto& [kind, errors] : found.errors)
            scores.cell(fmt::format("{} ({})", kind, errors.size()),
                        fmt::format("{:.1f} / {:.1f} %", 100 * score(errors).mean, 100 * score(errors).most));
        scores.cell(fmt::format("pairs right of {}", found.pairs), found.right);
    }
    return fmt::format(
        "{} ({}), {}:\n{}\nMean / largest error of figures that were not fitted to, and their number; a pair is two "
        "systems that differ by more than {:.0f} %:\n{}",
        table.name, table.source, table.unit, figures.text(), 100 * least_difference, scores.text());
}

}  // namespace ringlab::experiments
