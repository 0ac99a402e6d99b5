// Which gate sees which mistake, and by how much? Mistakes that other systems shipped with, each made on purpose and
// judged as right runs are; and faults of the machine, each met by a run of its own.

#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/faults/machine_trials.hpp"
#include "experiments/faults/mistakes.hpp"
#include "experiments/main/run_study.hpp"
#include "experiments/study/study.hpp"
#include "processes/session.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "faults",
    "Makes mistakes on purpose that other systems of ring attention shipped with, one at a time. Says "
    "which check sees\n"
    "each, and by how much: the error divided by what the roundings of a correct run can cause. Then "
    "makes faults of the\n"
    "machine (a slow, a stopped and a dead rank, a corrupted message), each in processes of its own, and "
    "says after how\n"
    "many seconds each was named. The exit status is 2 if a check misses its mistake, or reports one in "
    "a correct run.",
    "faults --ranks 4 --tokens 512",
    {.measures = true, .breaks = true}};

Config defaults() {
    Config config;
    config.sweep.inputs = {"real"};
    config.sweep.tokens = {512};
    config.sweep.layouts = {"zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {4};
    config.problem.arithmetic = "fp64";
    config.execution.timeout_seconds = 5;
    config.execution.repeats = 1;
    config.output.path = "faults.h5";
    return config;
}

constexpr std::size_t judged_count = judged_tensors.size();
using ByTensor = std::array<double, judged_count>;

/// Error over tolerance, by norm or by the largest element.
ByTensor shares(const Verdict& verdict, const Tolerance& tolerance) {
    ByTensor all{};
    const auto over = [](double error, double bound) { return error == 0 ? 0 : error / bound; };
    for (std::size_t i = 0; i < judged_count; ++i)
        all[i] = worse(over(verdict[i].relative_rms, tolerance.relative_rms[i]),
                       over(verdict[i].max_to_largest, tolerance.max_relative[i]));
    return all;
}

template <class Values>
double cosine(const Values& a, const Values& b) {
    const auto dot = [](const auto& x, const auto& y) {
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
    };
    return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

/// NaN of what there is none of.
ByTensor cosines(const Measurement& a, const Measurement& b) {
    const std::array<double, 6> of_all{cosine(a.outputs.o, b.outputs.o),     cosine(a.o_unrounded, b.o_unrounded),
                                       cosine(a.outputs.lse, b.outputs.lse), cosine(a.outputs.dq, b.outputs.dq),
                                       cosine(a.outputs.dk, b.outputs.dk),   cosine(a.outputs.dv, b.outputs.dv)};
    ByTensor cosines;
    cosines.fill(std::numeric_limits<double>::quiet_NaN());
    std::ranges::copy(of_all, cosines.begin());
    return cosines;
}

template <class Values>
std::vector<double> list_of(const Values& values) {
    return {values.begin(), values.end()};
}

void describe_tensors(RunWriter& run) {
    run.dimension("tensor", std::vector<std::string>(judged_tensors.begin(), judged_tensors.end()), "1",
                  "result that is judged against the fp64 reference");
}

/// What is said of mistakes and machine faults alike.
void describe_gate(RunWriter& run, const std::string& kind, const std::string& name, const std::string& gate,
                   bool caught, const std::string& said) {
    run.attribute("kind", kind, "1", "mistake (in the program) or machine (a fault of it)");
    run.attribute("name", name, "1", "what was made on purpose");
    run.attribute("gate", gate, "1", "what has to see it; empty: nothing can");
    run.attribute("caught", caught ? 1 : 0, "1", "whether it did, and was silent about the right run");
    run.attribute("said", said, "1", "what the gate said, where it speaks");
}

/// Makes one mistake, judges it, and keeps what came of it.
RunWriter made(const Config& config, const Mistake& mistake, int ranks, Source& source, Judge& judge) {
    auto asked = config.problem;
    asked.rotary.base = mistake.rotary;
    asked.dropout = {mistake.dropout, config.problem.seed};
    if (mistake.sinks) asked.sinks = {"normal"};
    Case which{config.sweep.inputs.front(), mistake.mask, mistake.layout, "ring", mistake.policy, ranks,
               config.sweep.tokens.front()};
    which.queries = mistake.decodes ? 1 : 0;
    const auto plan = make_plan(which, Source(asked, config.sweep.inputs, 1).inspect(which.input).problem);
    const auto policy = policy_from(mistake.policy, plan.problem.dtype);
    const auto& inputs = source.get(which, plan.problem).front().inputs;
    const auto backend = make_backend(config.execution, config.problem.arithmetic, ranks);
    const auto right = std::move(backend->run(plan, policy, std::span(&inputs, 1), 1).front().front());
    const auto name = fmt::format("{} {} {}", which.input, mistake.rotary, mistake.dropout);
    const auto judged = [&](const Measurement& one) {
        return judge(plan.problem, plan.mask(), inputs, name, one.outputs, one.o_unrounded);
    };
    const auto right_verdict = judged(right);
    const auto tolerance = judge.tolerance(*plan.forward, *plan.backward, inputs, name, false);
    const auto of_right = shares(right_verdict, tolerance);
    const auto consequence = mistake.make({config.execution, which, plan, policy, inputs, *backend, right});

    RunWriter run;
    describe_case(run, which, plan);
    describe_tensors(run);
    backend->describe(run);
    bool caught = std::ranges::all_of(of_right, [](double share) { return share <= 1; });
    double factor = std::numeric_limits<double>::quiet_NaN();
    auto gate = consequence.gate;
    if (consequence.results) {
        const auto of_wrong = shares(judged(*consequence.results), tolerance);
        const auto worst = static_cast<std::size_t>(std::ranges::max_element(of_wrong) - of_wrong.begin());
        factor = of_wrong[worst];
        gate = fmt::format("fp64, {}", judged_tensors[worst]);
        auto both = list_of(of_right);
        both.insert(both.end(), of_wrong.begin(), of_wrong.end());
        run.dimension("made", std::vector<std::string>{"right", "wrong"}, "1", "run without and with the mistake");
        run.dataset("judged/error_over_tolerance", both, {"made", "tensor"}, "1",
                    "error against fp64 over what the roundings leave; the larger of that by norm and by element");
        run.dataset("judged/cosine", list_of(cosines(*consequence.results, right)), {"tensor"}, "1",
                    "cosine similarity of the wrong and the right result: what a gate of cosines would judge");
    } else if (consequence.bound > 0) {
        factor = consequence.measured / consequence.bound;
    }
    caught &= factor > 1;
    describe_gate(run, "mistake", mistake.name, gate, caught, consequence.said);
    run.attribute("mistake", mistake.number, "1", "number in the list of docs/explanation/mistakes.md");
    run.attribute("factor", factor, "1",
                  "what the gate measures over what it lets pass; NaN: the mistake was not made");
    run.attribute("right_factor", *std::ranges::max_element(of_right), "1", "of the right run against fp64");
    return run;
}

RunWriter met(const Config& config, const MachineTrial& trial, int ranks) {
    const auto outcome = run_machine_trial(config, ranks, trial);
    RunWriter run;
    describe_gate(run, "machine", trial.name, trial.gate, outcome.named, outcome.said);
    run.attribute("ranks", ranks, "1", "ring size P");
    run.attribute("fault", trial.fault, "1", "as --fault says it");
    run.attribute(
        "seconds", outcome.seconds, "s",
        "from the fault to the end of all processes; of a slow rank and a corrupted message, of the whole run");
    run.attribute("limit", outcome.limit, "s", "that they must keep");
    return run;
}

std::string run_name(int number, const std::string& name, int ranks) {
    return (number > 0 ? fmt::format("{} ", number) : std::string()) + fmt::format("{} P={}", name, ranks);
}

/// What a run is called, how it is made, and whether a gate must see it.
struct Fault {
    std::string name;
    std::function<RunWriter()> make;
    bool must_be_seen = true;
};

bool launches(const std::string& launcher) { return launcher != "none" && processes::built_with_mpi(); }

std::vector<Fault> faults_of(const Config& config, Source& source, Judge& judge) {
    std::vector<Fault> all;
    for (const int ranks : config.sweep.ranks) {
        for (const auto& mistake : mistakes(config.sweep.tokens.front(), ranks))
            all.push_back({run_name(mistake.number, mistake.name, ranks),
                           [&, ranks, mistake] { return made(config, mistake, ranks, source, judge); }});
        if (!launches(config.launcher)) continue;
        for (const auto& trial : machine_trials(config.execution.backend))
            all.push_back({run_name(0, trial.name, ranks), [&, ranks, trial] { return met(config, trial, ranks); },
                           !trial.gate.empty()});
    }
    return all;
}

std::string factor_text(double factor) {
    if (std::isnan(factor)) return "-";
    if (std::isinf(factor)) return "infinite";
    return factor < 100 ? fmt::format("{:.2g}", factor) : fmt::format("{:.0e}", factor);
}

/// Prints the tables; whether all that must be seen was.
bool report(const Record& record, const std::vector<Fault>& faults) {
    Table mistakes_table({"mistake", "P", "gate", "factor", "right run", "least cosine"});
    Table machine_table({"fault of the machine", "P", "gate", "seconds", "said"});
    bool all_seen = true;
    for (const auto& fault : faults) {
        const auto& name = fault.name;
        const bool caught = record.number(name, "caught") == 1;
        const auto gate = record.text(name, "gate"), ranks = fmt::format("{}", record.number(name, "ranks"));
        const bool is_mistake = record.text(name, "kind") == "mistake";
        const bool was_made = !is_mistake || !std::isnan(record.number(name, "factor"));
        all_seen &= caught || !fault.must_be_seen || !was_made;
        const auto seen = gate.empty() ? "none" : !was_made ? "not made here" : caught ? gate : gate + ": NOT SEEN";
        if (is_mistake) {
            const auto cosines = record.has(name, "judged/cosine") && was_made ? record.numbers(name, "judged/cosine")
                                                                               : std::vector<double>{};
            mistakes_table.add({fault.name.substr(0, fault.name.rfind(" P=")), ranks, seen,
                                factor_text(record.number(name, "factor")),
                                fmt::format("{:.2f}", record.number(name, "right_factor")),
                                cosines.empty() ? "-" : fmt::format("{:.4f}", *std::ranges::min_element(cosines))});
        } else {
            machine_table.add({record.text(name, "name"), ranks, seen,
                               fmt::format("{:.2f}", record.number(name, "seconds")),
                               fault.must_be_seen ? record.text(name, "said") : "nothing: every result passes"});
        }
    }
    fmt::print(
        "{}\n"
        "factor: what the gate (the check) measures divided by its limit; right run: the same without the "
        "mistake.\n"
        "\n",
        mistakes_table.text());
    if (std::ranges::any_of(faults, [&](const auto& fault) { return record.text(fault.name, "kind") == "machine"; }))
        fmt::print(
            "{}\n"
            "seconds: from the fault to the end of the run if a process stopped or died, else of the whole run.\n"
            "\n",
            machine_table.text());
    return all_seen;
}

int study(const Config& config, int argc, char** argv) {
    // 1. What there is to make, and where it is kept.
    require(config.sweep.tokens.size() == 1 && config.sweep.inputs.size() == 1,
            "faults makes mistakes on one input and one number of tokens at a time");
    for (const int ranks : config.sweep.ranks)
        require(
            ranks >= 2 && config.sweep.tokens.front() % (2 * ranks) == 0 && config.sweep.tokens.front() >= 16 * ranks,
            "--ranks {}, --tokens {}: mistakes show on 2 ranks or more, each with a multiple of 2 tokens, at least 16",
            ranks, config.sweep.tokens.front());
    require(config.sweep.tokens.front() <= config.judging.limit, "--tokens {}: every result is judged whole, up to {}",
            config.sweep.tokens.front(), config.judging.limit);
    Source source(config.problem, config.sweep.inputs, config.execution.replicas);
    Judge judge(judge_limits(config));
    const auto faults = faults_of(config, source, judge);
    if (launches(config.launcher))
        run_machine_trial(config, config.sweep.ranks.front(), {"none", "", {}, ""});
    else
        fmt::print(stderr, "[note] faults of the machine are left out: {}\n",
                   config.launcher == "none" ? "no launcher" : "this program was built without MPI");
    say_notes(config.notes);
    // This backend ends at once: each mistake makes its own, and processes of their own use the same devices.
    auto provenance = provenance_of(
        config, *make_backend(config.execution, config.problem.arithmetic, config.sweep.ranks.front()), argc, argv);
    for (const auto& [name, path] : source.files()) provenance.set_file("input_" + name, path);
    const auto record = make_record(experiment, config, std::move(provenance));

    // 2. One after another.
    Progress progress(faults.size(), false);
    for (std::size_t i = 0; i < faults.size(); ++i) {
        say_when_interrupted(interrupted_text(*record, i, faults.size()));
        progress.start(faults[i].name);
        if (!record->has(faults[i].name)) record->commit(faults[i].name, faults[i].make());
        progress.finish();
    }
    record->finish();

    // 3. The tables.
    const bool all_seen = report(*record, faults);
    fmt::print("{}\nRecord: {}\n", all_seen ? "All are seen, and nothing else." : "NOT ALL ARE SEEN.", record->name());
    return all_seen ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_study(experiment, defaults, study, argc, argv);
}
