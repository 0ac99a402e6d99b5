// Which gradients must be summed, and which averaged? Takes the gradients of a layer's parameters, which each rank has
// for its own tokens, over several rings side by side. Combines them by the right rule, and by wrong rules that are
// easily mistaken for it.

#include "experiments/console/table.hpp"
#include "experiments/main/run_study.hpp"
#include "experiments/models/layer.hpp"
#include "experiments/study/study.hpp"
#include "reference/attention/blocked.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "layer_gradients",
    "Gradients of a layer's parameters (projections before attention, w_q, w_k, w_v, and after it, w_o) "
    "over --replicas\n"
    "rings side by side, combined from what each rank has for its own tokens. The right rule sums a "
    "ring's ranks and\n"
    "averages replicas, each weighted by its number of tokens in the loss (--loss-tokens). It is "
    "compared with one device\n"
    "that has all sequences, beside what wrong rules give. The exit status is 2 if the right rule is off "
    "by more than\n"
    "roundings can cause.",
    "layer_gradients --replicas 2 --loss-tokens 512 384 --ranks 4 --layouts zigzag",
    {.measures = true, .policies = true, .gate = true, .layer = true}};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal"};
    config.sweep.tokens = {512};
    config.problem.heads = "4:2";
    config.problem.head_dim = 32;
    config.sweep.layouts = {"contiguous", "zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {2, 4};
    config.execution.replicas = 2;
    config.problem.arithmetic = "fp64";
    config.execution.repeats = 1;
    config.output.path = "layer_gradients.h5";
    return config;
}

struct Rule {
    const char* name;
    const char* meaning;
};
constexpr std::array<Rule, 5> rules{
    {{"right", "a ring's ranks summed, replicas averaged by their tokens in the loss"},
     {"ring averaged", "a ring's ranks averaged, as replicas are: 1/P of the gradient"},
     {"replicas summed", "replicas summed, as a ring's ranks are: R times the gradient"},
     {"replicas alike", "replicas averaged as if all had as many tokens in the loss"},
     {"ranks' own means", "each rank's loss the mean over its own tokens, ranks averaged"}}};

/// Number of tokens that count in the loss of each replica. These are its first tokens; the rest is padding.
std::vector<std::int64_t> loss_tokens(const Config& config, std::int64_t tokens) {
    if (config.loss_tokens.empty()) {
        std::vector<std::int64_t> counts;
        for (int r = 0; r < config.execution.replicas; ++r)
            counts.push_back(tokens - r * tokens / (2 * config.execution.replicas));
        return counts;
    }
    require(std::ssize(config.loss_tokens) == config.execution.replicas,
            "--loss-tokens gives {} numbers for {} replicas; give one for each", config.loss_tokens.size(),
            config.execution.replicas);
    for (const auto count : config.loss_tokens)
        require(count >= 1 && count <= tokens, "--loss-tokens {}: a replica has 1 to {} tokens in its loss", count,
                tokens);
    return config.loss_tokens;
}

std::vector<double> first_ones(std::int64_t count, std::int64_t tokens) {
    std::vector<double> weight(static_cast<std::size_t>(tokens));
    std::fill_n(weight.begin(), count, 1.0);
    return weight;
}

/// Weights with which the loss is the mean over ranks of each rank's own mean: 1 / (number of the rank's tokens that
/// count * P).
std::vector<double> means_of_ranks(const layouts::Layout& layout, std::int64_t count, std::int64_t tokens) {
    std::vector<double> weight(static_cast<std::size_t>(tokens));
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        const auto own = layout.positions(rank);
        const auto counting = std::count_if(own.begin(), own.end(), [&](std::int64_t t) { return t < count; });
        for (const auto t : own)
            if (t < count) weight[static_cast<std::size_t>(t)] = 1.0 / (static_cast<double>(counting) * layout.ranks());
    }
    return weight;
}

double norm(std::span<const double> values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

/// The divisor of relative errors. If all gradients are 0 (in a loss whose tokens see nothing) errors are absolute.
double unit_of(double norm) { return norm > 0 ? norm : 1; }

double relative(const std::vector<double>& found, const std::vector<double>& expected) {
    double square = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) square += (found[i] - expected[i]) * (found[i] - expected[i]);
    return std::sqrt(square) / unit_of(norm(expected));
}

using ByParameter = std::array<double, layer_parameters.size()>;

struct Errors {
    std::array<ByParameter, rules.size()> of_rule{};
    ByParameter tolerance{}, norm{};  // norm: of the expected gradients
};

/// The worse of two errors of one rule for this experiment: the larger one if the rule is right, the smaller one if it
/// is wrong.
double further(std::size_t rule, double a, double b) { return rule == 0 ? worse(a, b) : std::min(a, b); }

Errors further(Errors a, const Errors& b) {
    for (std::size_t rule = 0; rule < rules.size(); ++rule)
        for (std::size_t p = 0; p < layer_parameters.size(); ++p)
            a.of_rule[rule][p] = further(rule, a.of_rule[rule][p], b.of_rule[rule][p]);
    return a;
}

/// Executes one case and combines the gradients of its replicas by every rule.
class LayerTrial {
public:
    LayerTrial(Trial& trial, const Config& config)
        : trial_(trial),
          layer_(trial.plan.problem, config.problem.seed + 1000),
          counts_(loss_tokens(config, trial.which.tokens)),
          total_(static_cast<double>(std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}))) {}

    /// Executes the passes twice, because the last rule gives tokens other weights. Returns whether this is the root
    /// process.
    bool run() {
        const auto& problem = trial_.plan.problem;
        std::vector<reference::Inputs> own;
        for (std::size_t r = 0; r < counts_.size(); ++r) {
            plain_weights_.push_back(first_ones(counts_[r], problem.tokens));
            mean_weights_.push_back(means_of_ranks(trial_.plan.layout(), counts_[r], problem.tokens));
            plain_.push_back(layer_.attention_inputs(trial_.inputs[r].inputs, plain_weights_[r]));
            own.push_back(layer_.attention_inputs(trial_.inputs[r].inputs, mean_weights_[r]));
        }
        runs_ = std::move(trial_.backend.run(trial_.plan, trial_.policy, plain_, 1).front());
        mean_runs_ = std::move(trial_.backend.run(trial_.plan, trial_.policy, own, 1).front());
        return trial_.backend.is_root();
    }

    Errors errors(Judge& judge) const {
        const auto replicas = static_cast<double>(counts_.size()), ranks = static_cast<double>(trial_.which.ranks);
        std::array<ParameterGradients, rules.size()> found;
        ParameterGradients expected;
        Errors errors;
        ByParameter allowed{};
        for (std::size_t r = 0; r < counts_.size(); ++r) {
            const auto& features = trial_.inputs[r].inputs;
            const auto count = static_cast<double>(counts_[r]);
            const auto own = ring_sum(features, plain_weights_[r], runs_[r].outputs);
            add(found[0], own, 1 / total_);
            add(found[1], own, 1 / total_ / ranks);
            add(found[2], own, 1 / count);
            add(found[3], own, 1 / count / replicas);
            add(found[4], ring_sum(features, mean_weights_[r], mean_runs_[r].outputs), 1 / replicas);
            const auto exact = reference::blocked_attention(trial_.plan.problem, trial_.plan.mask(), plain_[r]);
            add(expected, layer_.gradients(features, plain_weights_[r], exact, all()), 1 / total_);
            add_allowed(allowed, judge, r, exact);
        }
        for (std::size_t p = 0; p < layer_parameters.size(); ++p) {
            for (std::size_t rule = 0; rule < rules.size(); ++rule)
                errors.of_rule[rule][p] = relative(found[rule][p], expected[p]);
            errors.norm[p] = norm(expected[p]);
            errors.tolerance[p] = allowed[p] / total_ / unit_of(errors.norm[p]);
        }
        return errors;
    }

private:
    std::vector<std::int64_t> all() const {
        std::vector<std::int64_t> positions(static_cast<std::size_t>(trial_.plan.problem.tokens));
        std::iota(positions.begin(), positions.end(), std::int64_t{0});
        return positions;
    }

    /// The sum over the ring of each rank's gradient, which is computed from the rank's own tokens alone.
    ParameterGradients ring_sum(const reference::Inputs& features, std::span<const double> weight,
                                const reference::Outputs& outputs) const {
        ParameterGradients sum;
        for (int rank = 0; rank < trial_.which.ranks; ++rank)
            add(sum, layer_.gradients(features, weight, outputs, trial_.plan.layout().positions(rank)));
        return sum;
    }

    /// Adds the errors that the error model allows. A gradient is a product x^T y, and an error e of y changes it by
    /// |x^T e| <= |x| |e|.
    void add_allowed(ByParameter& allowed, Judge& judge, std::size_t r, const reference::Outputs& exact) const {
        const auto& features = trial_.inputs[r].inputs;
        const auto name = fmt::format("{} {}", trial_.which.input, r);
        judge(trial_.plan.problem, trial_.plan.mask(), plain_[r], name, runs_[r].outputs, runs_[r].o_unrounded);
        const auto tolerance = judge.tolerance(*trial_.plan.forward, *trial_.plan.backward, plain_[r], name,
                                               trial_.policy.running_output_rounded);
        const auto size = [](const reference::Tensor& tensor) { return norm(std::span(tensor.data(), tensor.size())); };
        allowed[0] += size(features.q) * tolerance.relative_rms[3] * size(exact.dq);
        allowed[1] += size(features.k) * tolerance.relative_rms[4] * size(exact.dk);
        allowed[2] += size(features.v) * tolerance.relative_rms[5] * size(exact.dv);
        allowed[3] += size(features.dout) * tolerance.relative_rms[0] * size(exact.o);
    }

    Trial& trial_;
    Layer layer_;
    std::vector<std::int64_t> counts_;
    double total_;
    std::vector<std::vector<double>> plain_weights_, mean_weights_;
    std::vector<reference::Inputs> plain_;
    std::vector<Measurement> runs_, mean_runs_;
};

void describe(RunWriter& run, const Errors& errors) {
    std::vector<std::string> names, parameters(layer_parameters.begin(), layer_parameters.end());
    std::vector<double> values;
    for (std::size_t rule = 0; rule < rules.size(); ++rule) {
        names.push_back(fmt::format("{}: {}", rules[rule].name, rules[rule].meaning));
        values.insert(values.end(), errors.of_rule[rule].begin(), errors.of_rule[rule].end());
    }
    run.dimension("rule", names, "1", "how gradients of ranks and replicas are put together");
    run.dimension("parameter", parameters, "1", "projections before attention, and after it");
    run.dataset("judged/parameter_error", values, {"rule", "parameter"}, "1",
                "norm of the difference to one device that has all sequences, over the norm of its gradient");
    run.dataset("judged/parameter_tolerance", std::vector<double>(errors.tolerance.begin(), errors.tolerance.end()),
                {"parameter"}, "1", "largest parameter_error of the right rule that roundings explain");
    run.dataset("judged/parameter_norm", std::vector<double>(errors.norm.begin(), errors.norm.end()), {"parameter"},
                "1", "norm of the gradient of one device; where it is 0, parameter_error is the difference as it is");
}

int study(const Config& config, int argc, char** argv) {
    require(!config.problem.rotary.rotates(),
            "--rotary: layer_gradients attends to q and k as projected; gradient_equivalence rotates them");
    for (const auto ranks : config.sweep.ranks)
        for (const auto tokens : sequence_lengths(config.sweep, ranks, config.judging.limit)) {
            require(tokens <= config.judging.limit,
                    "{} tokens: whole sequences are judged here, up to --judge-limit {}", tokens, config.judging.limit);
            if (!config.loss_tokens.empty()) loss_tokens(config, tokens);  // refuse now, not midway
        }

    // 1. Lay out every case; open the record.
    Study study(experiment, config, argc, argv);
    Judge judge(judge_limits(config));

    // 2. Execute each, put gradients together by every rule, keep how far they are off.
    study.run([&](Trial& trial) {
        std::optional<Errors> errors;
        for (int repeat = 0; repeat < config.execution.repeats; ++repeat) {
            LayerTrial layer(trial, config);
            if (layer.run()) errors = errors ? further(*errors, layer.errors(judge)) : layer.errors(judge);
        }
        if (!errors) return;
        describe_case(trial.run, trial.which, trial.plan);
        describe(trial.run, *errors);
        trial.run.attribute("repeats", config.execution.repeats, "1", "times that the passes were executed and judged");
    });
    if (!study.record()) return 0;

    // 3. A line for each rule.
    Table table({"rule", "w_q", "w_k", "w_v", "w_o", "of tolerance"});
    bool pass = true;
    for (std::size_t rule = 0; rule < rules.size(); ++rule) {
        std::optional<ByParameter> all;
        double share = rule == 0 ? 0 : std::numeric_limits<double>::infinity();
        for (const auto& which : study.cases()) {
            const auto errors = study.record()->numbers(which.name(), "judged/parameter_error");
            const auto bounds = study.record()->numbers(which.name(), "judged/parameter_tolerance");
            ByParameter here{};
            for (std::size_t p = 0; p < here.size(); ++p) {
                const double bound = config.judging.tolerance.value_or(bounds[p]);
                here[p] = errors[rule * here.size() + p];
                share = further(rule, share, here[p] == 0 ? 0 : here[p] / bound);
                if (rule == 0) pass &= passes(here[p], bound);
                if (all) here[p] = further(rule, (*all)[p], here[p]);
            }
            all = here;
        }
        table.add({rules[rule].name, format_error((*all)[0]), format_error((*all)[1]), format_error((*all)[2]),
                   format_error((*all)[3]),
                   share < 10 ? fmt::format("{:.0f} %", 100 * share) : fmt::format("{:.0e} times", share)});
    }
    fmt::print(
        "{}\nRelative error of a parameter's gradient over {} cases: the largest of the right rule, the smallest of "
        "the others.\n",
        table.text(), study.cases().size());
    for (const auto& rule : rules) fmt::print("{}: {}.\n", rule.name, rule.meaning);
    const auto all_zero = std::ranges::count_if(study.cases(), [&](const Case& which) {
        const auto norms = study.record()->numbers(which.name(), "judged/parameter_norm");
        return std::ranges::all_of(norms, [](double norm) { return norm == 0; });
    });
    if (all_zero > 0)
        fmt::print("In {} of them all gradients are 0, by every rule: no token of the loss sees a key.\n", all_zero);
    fmt::print("{}\nRecord: {}\n", pass ? "The right rule passes." : "The right rule EXCEEDS its tolerance.",
               study.record()->name());
    return pass ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_study(experiment, defaults, study, argc, argv);
}
