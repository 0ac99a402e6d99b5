// What does attention of a whole model take, whose layers differ? Every kind of layer predicted at full size, and,
// scaled down, executed, measured, predicted again and judged against fp64; then all layers of the model one by one.

#include "experiments/command_line/command_line.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/table.hpp"
#include "experiments/main/run_main.hpp"
#include "experiments/memory/memory.hpp"
#include "experiments/models/stack.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "model_stack",
    "Time and memory of the attention of a whole model, layer by layer. Each kind of layer, local or "
    "global, has its own\n"
    "mask, soft cap, sinks and heads (--stack names a model). Each kind is predicted at full size. It is "
    "also executed,\n"
    "measured, predicted again and judged against fp64 in a smaller size: --scale-down N has N times "
    "fewer tokens, windows\n"
    "and chunks N times shorter, and one kv head. Of several --schedules each kind of layer takes its fastest one, "
    "forward\n"
    "and backward.",
    "model_stack --stack gemma-3-27b --tokens 131072 --ranks 8 --machines h200_nvswitch_copy_engine",
    {.measures = true, .predicts = true, .stacks = true}};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal"};
    config.sweep.layouts = {"contiguous", "zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.tokens = {131072};
    config.sweep.ranks = {8};
    config.problem.arithmetic = "bf16";
    config.prediction.machines = {"h200_nvswitch_copy_engine", "2cpus_calibrated"};
    config.output.path = "model_stack.h5";
    return config;
}

/// A kind of layer, as its preset and the command line have it.
struct Kind {
    std::string name;
    Config config;
    std::int64_t layers = 0;
};

/// One kind in one layout by one schedule: at full size, or of so much less.
struct Laid {
    Case which;
    Plan plan;
};

Laid laid_out(const Kind& kind, const std::string& layout, const std::string& schedule, std::int64_t factor) {
    const auto& config = kind.config;
    Case which{.input = config.sweep.inputs[0],
               .mask = factor == 1 ? config.sweep.masks[0] : scaled_down(config.sweep.masks[0], factor),
               .layout = layout,
               .schedule = schedule,
               .policy = {},
               .ranks = config.sweep.ranks[0],
               .tokens = std::max<std::int64_t>(1, config.sweep.tokens[0] / factor),
               .pad = config.sweep.pad};
    auto problem = problem_from(config.problem);
    require(!problem.latent.is_given(), "preset {} has a latent; a stack supports only layers that send K and V",
            kind.name);
    if (factor > 1) problem = one_kv_head(problem);
    auto plan = make_plan(which, problem);
    return {std::move(which), std::move(plan)};
}

/// Seconds of both passes of a layer, by what tells of them: "measured", or machines.
using Seconds = std::array<std::map<std::string, double>, both_passes.size()>;

/// What a layer takes by one schedule.
struct LayerTimes {
    Seconds full, scaled;
    std::int64_t kept = 0, scratch = 0;  // bytes on the rank with most
};

class StackStudy {
public:
    StackStudy(std::vector<Kind> kinds, Stack stack, const Config& config, int argc, char** argv)
        : kinds_(std::move(kinds)),
          stack_(std::move(stack)),
          config_(config),
          predictor_(config),
          judge_(judge_limits(config)) {
        Forecast forecast(config);
        forecast.require_ranks_to_execute();
        for (const auto& layout : config.sweep.layouts)
            for (const auto& kind : kinds_)
                for (const auto& schedule : config.sweep.schedules) {
                    const auto small = laid_out(kind, layout, schedule, config.stack.scale_down);
                    laid_out(kind, layout, schedule, 1);  // refuse now, not midway
                    forecast.add_executed(small.which, small.plan);
                }
        backend_ = make_backend(config.execution, config.problem.arithmetic, config.sweep.ranks[0]);
        say_notes(config.notes);
        forecast.announce();
        auto provenance = provenance_of(config, *backend_, argc, argv);
        predictor_.add_provenance(provenance);
        record_ = make_record(experiment, config, std::move(provenance));
    }

    /// The exit status.
    int run() {
        const auto runs = config_.sweep.layouts.size() * (kinds_.size() * config_.sweep.schedules.size() + 1);
        const auto say_how_far = [&] {
            say_when_interrupted(interrupted_text(*record_, record_->runs().size(), runs));
        };
        say_how_far();
        for (const auto& layout : config_.sweep.layouts) {
            for (const auto& kind : kinds_)
                for (const auto& schedule : config_.sweep.schedules) {
                    const auto name = run_name(kind, layout, schedule);
                    if (!record_->has(name)) commit(kind, layout, schedule, name);
                    say_how_far();
                }
            if (!record_->has("stack " + layout)) commit_stack(layout, times_in(layout));
            say_how_far();
        }
        record_->finish();
        predictor_.write_trace();
        return print();
    }

private:
    using Times = std::vector<std::vector<LayerTimes>>;  // by kind and schedule

    std::string run_name(const Kind& kind, const std::string& layout, const std::string& schedule) const {
        const auto name = fmt::format("{} {}", kind.name, layout);
        return config_.sweep.schedules.size() == 1 ? name : fmt::format("{} {}", name, schedule);
    }

    void commit(const Kind& kind, const std::string& layout, const std::string& schedule, const std::string& name) {
        RunWriter run;
        const auto full = laid_out(kind, layout, schedule, 1),
                   small = laid_out(kind, layout, schedule, config_.stack.scale_down);
        run.attribute("layers", kind.layers, "1", "of the model, that are of this kind");
        run.attribute("kind", kind.name, "1", "preset of the layer");
        run.attribute("scaled_mask", small.plan.mask().name(), "1", "of what was executed");
        run.attribute("scaled_tokens", small.plan.problem.tokens, "1", "of what was executed");
        run.attribute("scaled_query_heads", small.plan.problem.query_heads, "1",
                      "of what was executed, on one kv head");
        describe_case(run, full.which, full.plan);
        predictor_.predict(run, name, full.plan);
        const auto policy = policy_from("", full.plan.problem.dtype);
        const auto need =
            describe_predicted_memory(run, full.plan, memory_model(config_.execution.backend, policy, false));
        run.attribute("kept_bytes", kept_bytes(full.plan.problem, full.plan.layout().largest_shard()), "B",
                      "q, k, v, o and lse that a layer leaves for its backward pass, on the rank with most tokens");
        run.attribute("scratch_bytes", need.scratch(), "B", "of the layer at work, on the rank with most");
        predict_scaled(run, small.plan);
        measure_scaled(run, kind, small, policy);
        record_->commit(name, run);
    }

    void predict_scaled(RunWriter& run, const Plan& plan) const {
        for (std::size_t i = 0; i < predictor_.machines().size(); ++i)
            for (const auto pass : both_passes) {
                const auto predicted =
                    sim::simulate(*plan.schedule(pass), predictor_.descriptions()[i], predictor_.options());
                layouts::Picoseconds busiest = 0;
                for (const auto& rank : predicted.ranks) busiest = std::max(busiest, rank.compute);
                run.attribute(fmt::format("scaled_compute_predicted_{}_{}", to_string(pass), predictor_.machines()[i]),
                              layouts::to_seconds(busiest), "s",
                              "of what was executed: predicted compute time of the busiest rank");
            }
    }

    void measure_scaled(RunWriter& run, const Kind& kind, const Laid& small, const Policy& policy) {
        const auto inputs = generate_inputs(small.which.input, small.plan.problem, config_.problem.seed).inputs;
        const auto repeats = backend_->run(small.plan, policy, std::span(&inputs, 1), kind.config.execution.repeats);
        describe_measurements(run, repeats);
        const auto& last = repeats.back().front();
        if (config_.judging.judge) {
            const auto verdict = judge_(small.plan.problem, small.plan.mask(), inputs, small.which.input, last.outputs,
                                        last.o_unrounded);
            describe_verdicts(run, {verdict}, judge_.extent());
            const auto allowed = judge_.tolerance(*small.plan.forward, *small.plan.backward, inputs, small.which.input,
                                                  policy.running_output_rounded);
            double share = 0;
            for (std::size_t i = 0; i < verdict.size(); ++i)
                if (verdict[i].relative_rms != 0)
                    share = worse(share, verdict[i].relative_rms / allowed.relative_rms[i]);
            run.attribute("share_of_tolerance", share, "1",
                          "largest relative RMS error of any result over the largest that passes");
        }
        for (const auto pass : both_passes) {
            // What every rank's own processor or GPU was busy with, the slowest of them.
            const auto seconds = median_attend_seconds(repeats, pass);
            run.attribute(fmt::format("scaled_compute_measured_{}", to_string(pass)),
                          *std::max_element(seconds.begin(), seconds.end()), "s",
                          "of what was executed: the busiest rank's attends, median of the repeats");
        }
    }

    LayerTimes times_of(const std::string& name) const {
        LayerTimes times;
        const auto number = [&](const std::string& column) { return record_->number(name, column); };
        for (const auto pass : both_passes) {
            const auto at = static_cast<std::size_t>(pass);
            for (const auto& machine : predictor_.machines()) {
                times.full[at][machine] = number(fmt::format("seconds_predicted_{}_{}", to_string(pass), machine));
                times.scaled[at][machine] =
                    number(fmt::format("scaled_compute_predicted_{}_{}", to_string(pass), machine));
            }
            times.scaled[at]["measured"] = number(fmt::format("scaled_compute_measured_{}", to_string(pass)));
        }
        times.kept = static_cast<std::int64_t>(number("kept_bytes"));
        times.scratch = static_cast<std::int64_t>(number("scratch_bytes"));
        return times;
    }

    /// Of every kind and schedule, from the record.
    Times times_in(const std::string& layout) const {
        Times times(kinds_.size());
        for (std::size_t i = 0; i < kinds_.size(); ++i)
            for (const auto& schedule : config_.sweep.schedules)
                times[i].push_back(times_of(run_name(kinds_[i], layout, schedule)));
        return times;
    }

    StackSchedules schedules_on(const std::string& machine, const Times& times) const {
        std::vector<std::vector<PassSeconds>> seconds(times.size());
        for (std::size_t kind = 0; kind < times.size(); ++kind)
            for (const auto& one : times[kind])
                seconds[kind].push_back({one.full[0].at(machine), one.full[1].at(machine)});
        return choose_schedules(stack_, seconds);
    }

    /// The kind of each layer, and the memory that they leave.
    void describe_layers(RunWriter& run, const Times& times, const StackSchedules& schedules) const {
        const auto size = static_cast<std::int64_t>(stack_.layers.size());
        std::vector<std::string> kinds;
        std::vector<double> memory;
        std::int64_t kept = 0, scratch = 0;
        for (const auto kind : stack_.layers) {
            kinds.push_back(kinds_[kind].name);
            kept += times[kind][0].kept;
            for (const auto schedule : schedules.chosen[kind])
                scratch = std::max(scratch, times[kind][schedule].scratch);
            memory.push_back(static_cast<double>(kept));
        }
        run.dataset("stack/kind", kinds, {{"layer", size}}, "1", "preset of each layer");
        run.dataset("stack/kept_memory", std::move(memory), {{"layer", size}}, "B",
                    "what all layers so far leave for their backward passes, on the rank with most tokens");
        run.attribute("stack_memory", kept + scratch, "B", "what all layers leave, and the scratch of the largest");
    }

    /// All layers one by one, and their sums.
    void commit_stack(const std::string& layout, const Times& times) {
        RunWriter run;
        const auto layers = static_cast<std::int64_t>(stack_.layers.size());
        run.attribute("kind", config_.stack.name, "1", "the whole model");
        run.attribute("layers", layers, "1", "of the model");
        run.attribute("layout", layout, "1", "which rank owns which tokens");
        // What was measured, and memory, are by the schedules that the first machine chooses.
        const auto& schedules = config_.sweep.schedules;
        std::map<std::string, StackSchedules> by_source;
        for (const auto& machine : predictor_.machines()) by_source[machine] = schedules_on(machine, times);
        by_source["measured"] = by_source.at(predictor_.machines().front());
        describe_layers(run, times, by_source.at("measured"));
        for (const auto& machine : predictor_.machines()) {
            const auto& best = by_source.at(machine);
            run.dataset("stack/single_schedule", std::vector{schedules[best.single]},
                        {Dimension::at("source", machine)}, "1",
                        "the fastest one if all layers take the same, forward and backward");
            run.dataset("stack/single_seconds", std::vector{best.single_seconds}, {Dimension::at("source", machine)},
                        "s", "both passes of all layers by it, predicted");
        }
        for (const auto pass : both_passes) {
            const auto at = static_cast<std::size_t>(pass);
            for (const auto& machine : predictor_.machines()) {
                std::vector<std::string> names;
                for (const auto kind : stack_.layers)
                    names.push_back(schedules[by_source.at(machine).chosen[kind][at]]);
                run.dataset(
                    "stack/schedule", names,
                    {Dimension::at("source", machine), Dimension::at("pass", to_string(pass)), {"layer", layers}}, "1",
                    "the fastest one for each layer, by the machine's prediction");
            }
            const auto by_layer = [&](const char* dataset, const Seconds LayerTimes::*size, const std::string& source,
                                      const std::string& column, const char* what) {
                std::vector<double> seconds;
                double sum = 0;
                for (const auto kind : stack_.layers) {
                    const auto& chosen = times[kind][by_source.at(source).chosen[kind][at]];
                    seconds.push_back((chosen.*size)[at].at(source));
                    sum += seconds.back();
                }
                run.dataset(
                    dataset, std::move(seconds),
                    {Dimension::at("source", source), Dimension::at("pass", to_string(pass)), {"layer", layers}}, "s",
                    what);
                run.attribute(column, sum, "s", fmt::format("{}: sum of all layers", what));
            };
            for (const auto& machine : predictor_.machines()) {
                by_layer("stack/seconds", &LayerTimes::full, machine,
                         fmt::format("stack_seconds_predicted_{}_{}", to_string(pass), machine),
                         "a layer's attention at full size, predicted");
                by_layer("stack/scaled_compute", &LayerTimes::scaled, machine,
                         fmt::format("scaled_stack_compute_predicted_{}_{}", to_string(pass), machine),
                         "the busiest rank's attends of a layer scaled down, predicted on machines and measured");
            }
            by_layer("stack/scaled_compute", &LayerTimes::scaled, "measured",
                     fmt::format("scaled_stack_compute_measured_{}", to_string(pass)),
                     "the busiest rank's attends of a layer scaled down, predicted on machines and measured");
        }
        record_->commit("stack " + layout, run);
    }

    /// Which schedules the layers take, and what that gains; empty if there is no choice.
    std::string choices_text() const {
        const auto& schedules = config_.sweep.schedules;
        if (schedules.size() == 1) return "";
        std::string text = "\nThe fastest schedule of each kind of layer, forward / backward:\n";
        for (const auto& layout : config_.sweep.layouts) {
            const auto times = times_in(layout);
            for (const auto& machine : predictor_.machines()) {
                const auto best = schedules_on(machine, times);
                text += fmt::format("{}, {}: ", layout, machine);
                for (std::size_t kind = 0; kind < kinds_.size(); ++kind)
                    text += fmt::format("{} {} / {}, ", kinds_[kind].name, schedules[best.chosen[kind][0]],
                                        schedules[best.chosen[kind][1]]);
                const double all = best.seconds[0] + best.seconds[1];
                text +=
                    fmt::format("{:.4g} ms; {} everywhere {:.4g} ms (+{:.1f} %)\n", 1e3 * all, schedules[best.single],
                                1e3 * best.single_seconds, 100 * (best.single_seconds / all - 1));
            }
        }
        return text;
    }

    int print() const {
        double worst = 0;  // share of its tolerance that any result needs
        std::vector<std::string> header{"layers", "kind", "layout", "schedule", "kept"};
        for (const auto& machine : predictor_.machines())
            header.insert(header.end(), {machine + ": fwd ms", "bwd ms", "scaled fwd", "bwd"});
        header.insert(header.end(), {"measured fwd", "bwd", "of tolerance"});
        Table table(header);
        const auto ms = [&](const std::string& run, const std::string& column) {
            return fmt::format("{:.4g}", 1e3 * record_->number(run, column));
        };
        for (const auto& layout : config_.sweep.layouts) {
            const auto add = [&](const std::string& run, const std::string& kind, const std::string& schedule) {
                const bool whole = schedule.empty();
                const auto* memory = whole ? "stack_memory" : "kept_bytes";
                std::vector<std::string> row{
                    fmt::format("{}", static_cast<std::int64_t>(record_->number(run, "layers"))), kind, layout,
                    whole ? "fastest" : schedule, memory_text(static_cast<std::int64_t>(record_->number(run, memory)))};
                const std::string stack = whole ? "stack_" : "";
                for (const auto& machine : predictor_.machines()) {
                    for (const auto pass : both_passes)
                        row.push_back(
                            ms(run, fmt::format("{}seconds_predicted_{}_{}", stack, to_string(pass), machine)));
                    for (const auto pass : both_passes)
                        row.push_back(
                            ms(run, fmt::format("scaled_{}compute_predicted_{}_{}", stack, to_string(pass), machine)));
                }
                for (const auto pass : both_passes)
                    row.push_back(ms(run, fmt::format("scaled_{}compute_measured_{}", stack, to_string(pass))));
                const bool judged = config_.judging.judge && !whole;
                const double share = judged ? record_->number(run, "share_of_tolerance") : 0;
                worst = worse(worst, share);
                row.push_back(judged ? fmt::format("{:.0f} %", 100 * share) : "-");
                table.add(row);
            };
            for (const auto& kind : kinds_)
                for (const auto& schedule : config_.sweep.schedules)
                    add(run_name(kind, layout, schedule), kind.name, schedule);
            add("stack " + layout, config_.stack.name, "");
        }
        fmt::print(
            "{}{}\nA layer of each kind, then all layers: ms of attention on {} ranks, predicted at full size ({} "
            "tokens) "
            "and scaled\ndown by {}, and there measured, median, backend {}; kept: q, k, v, o, lse of a layer on a "
            "rank, "
            "of all with scratch. {}\nRecord: {}\n",
            table.text(), choices_text(), config_.sweep.ranks[0], config_.sweep.tokens[0], config_.stack.scale_down,
            config_.execution.backend,
            !config_.judging.judge ? "Not judged."
            : passes(worst, 1.0)   ? "All pass."
                                   : "NOT ALL PASS.",
            record_->name());
        return passes(worst, 1.0) ? 0 : 2;
    }

    const std::vector<Kind> kinds_;
    const Stack stack_;
    const Config& config_;
    Predictor predictor_;
    Judge judge_;
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<Record> record_;
};

/// The configuration of each kind: as if its preset had been given.
std::vector<Kind> kinds_of(const Stack& stack, const Config& config, int argc, char** argv) {
    require(!config.given.contains("preset") && !config.given.contains("heads") &&
                config.sweep.masks == defaults().sweep.masks,
            "--stack names presets, which give heads and masks; leave out --preset, --heads and --masks");
    std::vector<Kind> kinds;
    for (const auto& name : stack.kinds) {
        std::vector<const char*> words(argv, argv + argc);
        words.insert(words.end(), {"--preset", name.c_str()});
        auto parsed = parse(experiment, defaults(), static_cast<int>(words.size()), words.data());
        require(parsed && parsed->sweep.masks.size() == 1, "preset {} of the stack has several masks; give one", name);
        parsed->sweep.tokens = config.sweep.tokens;  // of the stack, also where inputs are generated
        kinds.push_back({name, std::move(*parsed), 0});
    }
    for (const auto kind : stack.layers) ++kinds[kind].layers;
    return kinds;
}

int body(int argc, char** argv) {
    auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    require(!config->execution.mpi, "--mpi: model_stack runs in one process");
    if (!config->sweep.tokens_per_rank.empty())
        config->sweep.tokens = sequence_lengths(config->sweep, config->sweep.ranks[0], 0);
    require(config->sweep.tokens.size() == 1 && config->sweep.ranks.size() == 1 && config->sweep.inputs.size() == 1,
            "a stack has one number of tokens, ring size and input at a time");
    auto stack = load_stack(config->stack.name);
    auto kinds = kinds_of(stack, *config, argc, argv);
    return run_in_session(config->execution, config->output.text, argc, argv,
                          [&] { return StackStudy(std::move(kinds), std::move(stack), *config, argc, argv).run(); });
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
