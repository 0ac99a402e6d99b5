#include "experiments/study/study.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/execution/hosts.hpp"
#include "experiments/execution/machine_fault.hpp"
#include "experiments/record/tensors_file.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>

namespace ringlab::experiments {
namespace {

/// To a person and to the record.
void say_slow_rank(RunWriter& run, const std::vector<RingRun>& rings) {
    const auto slow = slow_rank(rings);
    run.attribute("slow_rank", slow ? slow->rank : -1, "1",
                  "rank that computes at half the others' speed or less; -1: none");
    run.attribute("slow_rank_factor", slow ? slow->factor : 1.0, "1",
                  "its time over the others' median for as many visible pairs");
    if (slow)
        fmt::print(stderr, "[note] rank {}{} is slow: {:.1f} times the others' time for as many visible pairs\n",
                   slow->rank, rings.size() > 1 ? fmt::format(" of replica {}", slow->replica) : "", slow->factor);
}

}  // namespace

bool Trial::measure(int count) {
    // Inputs can be most of the machine's memory: one replica's are not copied.
    std::vector<reference::Inputs> copies;
    if (inputs.size() > 1)
        for (const auto& replica : inputs) copies.push_back(replica.inputs);
    const auto values =
        copies.empty() ? std::span(&inputs.front().inputs, 1) : std::span<const reference::Inputs>(copies);
    rings = backend.run(plan, ring_group(execution, setup.ranks), judged_options(execution, policy, values, count));
    return backend.is_root();
}

std::vector<Verdict> Trial::judge(Judge& judge) const {
    std::vector<Verdict> verdicts;
    for (std::size_t replica = 0; replica < rings.size(); ++replica)
        verdicts.push_back(judge(plan.problem, plan.mask(), inputs[replica].inputs,
                                 fmt::format("{} {}", setup.input, replica), rings[replica].outputs,
                                 rings[replica].o_unrounded));
    return verdicts;
}

std::vector<Verdict> Trial::judge_repeats(Judge& judge, int count) {
    require(execution.keeps_results, "--judge-limit none: this program judges all that it executes; leave it out");
    std::vector<Verdict> worst;
    for (int repeat = 0; repeat < count; ++repeat) {
        if (!measure(1)) continue;
        const auto verdicts = this->judge(judge);
        if (worst.empty()) worst = verdicts;
        for (std::size_t replica = 0; replica < worst.size(); ++replica)
            for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor) {
                auto& so_far = worst[replica][tensor];
                const auto& now = verdicts[replica][tensor];
                so_far = {worse(so_far.relative_rms, now.relative_rms), worse(so_far.max_abs, now.max_abs),
                          worse(so_far.max_to_largest, now.max_to_largest)};
            }
    }
    run.attribute("repeats", count, "1", "times that both passes were executed and judged; errors are the worst");
    return worst;
}

std::vector<Tolerance> Trial::tolerances(Judge& judge) const {
    std::vector<Tolerance> all;
    for (std::size_t replica = 0; replica < inputs.size(); ++replica)
        all.push_back(judge.tolerance(*plan.forward, *plan.backward, inputs[replica].inputs,
                                      fmt::format("{} {}", setup.input, replica), policy.running_output_rounded));
    return all;
}

std::unique_ptr<Record> make_record(const Experiment& experiment, const Config& config, Provenance provenance) {
    const auto& output = config.output;
    const auto mode = output.resume      ? RecordMode::resume
                      : output.overwrite ? RecordMode::overwrite
                                         : RecordMode::create;
    return std::make_unique<Record>(output.files.file(output.path), mode,
                                    RecordHeader{experiment.name, experiment.purpose, output.text},
                                    std::move(provenance));
}

Provenance provenance_of(const Config& config, const Backend& backend, int argc, const char* const* argv) {
    auto provenance = collect_provenance(argc, argv);
    provenance.set("seed", static_cast<std::int64_t>(config.problem.seed));
    provenance.set("backend", config.execution.backend);
    backend.add_provenance(provenance);
    return provenance;
}

std::string interrupted_text(const Record& record, std::size_t done, std::size_t runs) {
    return fmt::format(
        "interrupted; {} of {} runs are in '{}', and the same command with -o '{}' --resume does the rest", done, runs,
        record.name(), record.name());
}

std::string format_error(double error) { return fmt::format("{:.2e}", error); }

Study::Study(const Experiment& experiment, const Config& config, int argc, const char* const* argv,
             const std::function<void(Provenance&)>& add_provenance)
    : config_(config),
      source_(config.problem, config.sweep.inputs, config.execution.replicas),
      files_(config.output.files),
      forecast_(config) {
    require(config.output.save_tensors.empty() || !std::filesystem::exists(config.output.save_tensors) ||
                std::filesystem::is_directory(config.output.save_tensors),
            "--save-tensors '{}' is a file; give a folder", config.output.save_tensors);
    cases_ = all_cases(config.sweep, config.prediction.machines, source_.tokens());
    forecast_.require_ranks_to_execute();
    for (const auto& one : cases_) forecast_.add_executed(one, plan_of(one));
    std::set<int> sizes;
    for (const auto& one : cases_) sizes.insert(one.ranks);
    std::unique_ptr<Backend> backend;
    for (const int ranks : sizes) backend = make_backend(config.execution, {{ranks}, config.problem.arithmetic});
    if (!backend->is_root()) return;
    if (!config.output.save_tensors.empty())
        for (const auto& one : cases_)
            files_.writes("--save-tensors", tensors_path(config.output.save_tensors, one.name()), FileKind::tensors,
                          config.output.overwrite || config.output.resume ? IfThere::replace : IfThere::refuse);
    say_notes(config.notes);
    if (config.execution.mpi)
        for (const auto& note :
             host_notes(ring_group(config.execution, *sizes.begin()), processes::Session::current().hosts()))
            fmt::print(stderr, "[note] {}\n", note);
    forecast_.announce();
    provenance_ = provenance_of(config, *backend, argc, argv);
    for (const auto& [name, path] : source_.files()) provenance_.set_file("input_" + name, path);
    if (add_provenance) add_provenance(provenance_);
    record_ = make_record(experiment, config, provenance_);
}

Plan Study::plan_of(const Case& setup) const {
    const auto input = source_.inspect(setup.input);
    require(setup.tokens > 0, "the tokens of generated input '{}' are not given; say --tokens", setup.input);
    require(input.problem.tokens == 0 || setup.tokens <= input.problem.tokens,
            "input '{}' has {} tokens, {} are asked for; give at most as many, or say --input normal", setup.input,
            input.problem.tokens, setup.tokens);
    return make_plan(setup, input.problem, input.document_lengths);
}

void Study::run(const std::function<void(Trial&)>& one) {
    Progress progress(cases_.size(), !record_);
    if (record_) say_when_interrupted(interrupted_text(*record_, 0, cases_.size()));
    for (std::size_t i = 0; i < cases_.size(); ++i) {
        const auto& setup = cases_[i];
        progress.start(setup.name(), forecast_.seconds_of(i));
        const auto backend = make_backend(config_.execution, {{setup.ranks}, config_.problem.arithmetic});
        if (!is_recorded(config_.execution, *backend, record_ && record_->has(setup.name()))) {
            const auto plan = plan_of(setup);
            const auto& inputs = source_.get(setup, plan.problem);
            const auto policy = policy_from(setup.policy, plan.problem.dtype);
            Trial trial{setup, plan, policy, inputs, config_.execution, *backend};
            one(trial);
            if (record_) {
                describe_execution(trial.run, config_.execution, trial.rings);
                say_slow_rank(trial.run, trial.rings);
                if (config_.execution.mpi)
                    describe_hosts(trial.run, plan, ring_group(config_.execution, setup.ranks),
                                   processes::Session::current().hosts());
                if (!config_.output.save_tensors.empty())
                    save_tensors(files_.file(tensors_path(config_.output.save_tensors, setup.name())), setup.name(),
                                 plan.problem, plan.mask(), inputs.front().inputs, trial.rings.front().outputs,
                                 plan.problem.dtype, provenance_,
                                 {setup.input, setup.mask, setup.tokens, inputs.front().document_lengths});
                record_->commit(setup.name(), trial.run);
            }
        }
        progress.finish();
        if (record_) say_when_interrupted(interrupted_text(*record_, i + 1, cases_.size()));
    }
    if (record_) record_->finish();
}

}  // namespace ringlab::experiments
