#include "experiments/calibration/samples.hpp"

#include "experiments/options/source.hpp"
#include "experiments/record/record.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using AttendPosition = sim::TileModel::AttendPosition;

const char* const run_name = "samples";

constexpr std::array kind_names{"attend",  "sustained", "pass",    "period", "operation", "few_rows", "dropout",
                                "product", "rotation",  "message", "alone",  "beside",    "unknown"};

SampleKind kind_named(std::string name) {
    std::ranges::replace(name, ' ',
                         '_');  // in older records a kind may be several words, and other kernels have their own
    if (name == "kernel") return SampleKind::attend;
    if (name == "kernel_without_rests") return SampleKind::sustained;
    const auto found = std::ranges::find(kind_names, name);
    return found == kind_names.end() ? SampleKind::unknown : static_cast<SampleKind>(found - kind_names.begin());
}

/// All columns of the table but the kind, in one place for writing and reading: visit(name, unit, description, field).
template <class Visit>
void for_each_column(const Visit& visit) {
    visit("call", "1", "of a kernel, or the pass", &GpuSample::call);
    visit("mask", "1", "who sees whom", &GpuSample::mask);
    visit("layout", "1", "which rank owns which tokens", &GpuSample::layout);
    visit("schedule", "1", "schedule of a pass", &GpuSample::schedule_name);
    visit("transport", "1", "of a pass or message", &GpuSample::transport);
    visit("ranks", "1", "P", &GpuSample::ranks);
    visit("rank", "1", "whose rows", &GpuSample::rank);
    visit("block", "1", "whose keys", &GpuSample::block);
    visit("tokens_per_rank", "1", "of each rank", &GpuSample::tokens_per_rank);
    visit("queries", "1", "tokens that have a query row; 0: all", &GpuSample::queries);
    visit("op", "1", "index in the rank's schedule; -1: no operation", &GpuSample::op);
    visit("bytes", "B", "of a message", &GpuSample::bytes);
    visit("seconds", "s", "median", &GpuSample::seconds);
    visit("spread", "1", "distance of the quartiles over the median", &GpuSample::spread);
    visit("posted", "s", "of an operation: when its own side had come to it, since the start of the pass",
          &GpuSample::posted);
    visit("begin", "s", "of an operation: when both sides had", &GpuSample::begin);
    visit("clock", "Hz", "of the multiprocessors, on average; 0: not known", &GpuSample::clock_hertz);
    visit("head_dim", "1", "of another kernel; 0: of the machine's own", &GpuSample::head_dim);
    visit("value_dim", "1", "likewise", &GpuSample::value_dim);
    visit("soft_cap", "1", "of scores; 0: none", &GpuSample::soft_cap);
}

std::string bare_machine_text(sim::Machine machine) {
    machine.description = "what kernels take up at a time";
    std::map<std::string, std::string> sources;
    for (const auto* section :
         {"topology", "gpu", "cache", "host", "attention", "kernels", "split_kv", "accumulate", "inside_host"})
        sources[section] = "the device; times are not fitted yet";
    return sim::machine_text(machine, sources, "Before the fit.");
}

const std::map<std::string, AttendPosition> forward_calls{{"forward_kept", {true, true}},
                                                          {"forward_first", {true, false}},
                                                          {"forward_carried", {false, false}},
                                                          {"forward_last_kept", {false, true}}};

/// Whether an attend judges the fit and is not used for it. Used are windows of half and of an eighth of the tokens. Of
/// all timed attends, only these have idle work tiles whose time is not hidden by longer ones.
bool is_held_out(const GpuSample& sample) {
    return sample.ranks == 4 || sample.mask == fmt::format("window:{},0", sample.tokens_per_rank / 4) ||
           sample.mask.find("documents") != std::string::npos;
}

std::vector<layouts::Op> ops_of(const layouts::Schedule& schedule, int rank) {
    std::vector<layouts::Op> ops;
    auto stream = schedule.ops(rank);
    while (const auto* op = stream.next()) ops.push_back(*op);
    return ops;
}

}  // namespace

const char* to_string(SampleKind kind) { return kind_names[static_cast<std::size_t>(kind)]; }

std::vector<const GpuSample*> GpuSamples::of(SampleKind kind, const std::string& call) const {
    std::vector<const GpuSample*> found;
    for (const auto& sample : samples)
        if (sample.kind == kind && (call.empty() || sample.call == call) && sample.head_dim == 0)
            found.push_back(&sample);
    return found;
}

std::shared_ptr<const Plan> GpuSamples::plan(const GpuSample& sample) const {
    const bool rotates = sample.kind == SampleKind::rotation, drops = sample.kind == SampleKind::dropout;
    auto& known = plans_[fmt::format("{} {} {} {} {} {} {} {} {} {} {}", rotates, drops, sample.mask, sample.layout,
                                     sample.schedule_name, sample.ranks, sample.tokens_per_rank, sample.queries,
                                     sample.head_dim, sample.value_dim, sample.soft_cap)];
    if (known) return known;
    ProblemConfig config;
    config.heads = heads;
    config.head_dim = sample.head_dim > 0 ? sample.head_dim : head_dim;
    config.value_dim = sample.head_dim > 0 ? sample.value_dim : value_dim;
    config.soft_cap = sample.soft_cap;
    config.arithmetic = arithmetic;
    if (rotates) config.rotary.base = 10000;
    if (drops) config.dropout = {0.1, 1};
    const Case setup{"normal",
                     sample.mask,
                     sample.layout,
                     sample.schedule_name.empty() ? "ring" : sample.schedule_name,
                     "carry",
                     sample.ranks,
                     sample.ranks * sample.tokens_per_rank,
                     sample.queries};
    return known = std::make_shared<Plan>(make_plan(setup, problem_from(config)));
}

WrittenFile write_samples(const WrittenFile& file, const GpuSamples& all, const std::string& configuration,
                          const Provenance& provenance) {
    Record record(
        file, RecordMode::overwrite,
        {"calibrate", "Parts of passes on GPUs, none of them a ring, to which a machine file is fitted", configuration},
        provenance);
    RunWriter run;
    run.attribute("device", all.device, "1", "GPU");
    run.attribute("gpus", all.gpus, "1", "that took part");
    run.attribute("kernels", all.kernels, "1", "family");
    run.attribute("heads", all.heads, "1", "query heads : kv heads");
    run.attribute("arithmetic", all.arithmetic, "1", "of q, k, v and do");
    run.attribute("head_dim", all.head_dim, "1", "size of a query or key");
    run.attribute("value_dim", all.value_dim, "1", "size of a value");
    run.attribute("machine_file", bare_machine_text(all.machine), "1", "what kernels take up at a time, and on what");
    std::vector<std::string> kinds;
    for (const auto& sample : all.samples) kinds.emplace_back(to_string(sample.kind));
    run.dataset("samples/kind", std::move(kinds), {{"sample"}}, "1",
                "what was timed: see experiments/calibration/samples.hpp");
    for_each_column([&](const char* name, const char* unit, const char* description, auto field) {
        using Value = std::remove_cvref_t<decltype(all.samples.front().*field)>;
        using Stored = std::conditional_t<std::is_same_v<Value, int>, std::int64_t, Value>;
        std::vector<Stored> values;
        for (const auto& sample : all.samples) values.push_back(sample.*field);
        run.dataset(std::string("samples/") + name, std::move(values), {{"sample"}}, unit, description);
    });
    record.commit(run_name, run);
    record.finish();
    return record.place();
}

GpuSamples read_samples(const std::filesystem::path& path) {
    const auto file = open_record(path);
    require(file.has("experiment") && file.text("experiment") == "calibrate" && file.contains("samples/seconds"),
            "{}: it is no record of calibrate", path.string());
    GpuSamples all;
    const auto text = [&](const char* column) { return file.dataset(std::string("runs/") + column).texts().at(0); };
    const auto count = [&](const char* column) { return file.dataset(std::string("runs/") + column).integers().at(0); };
    all.device = text("device");
    all.kernels = text("kernels");
    all.heads = text("heads");
    all.arithmetic = text("arithmetic");
    all.gpus = static_cast<int>(count("gpus"));
    all.head_dim = count("head_dim");
    all.value_dim = count("value_dim");
    all.machine = sim::parse_machine(text("machine_file"), path.string());
    all.samples.resize(static_cast<std::size_t>(file.dataset("samples/seconds").shape().at(1)));
    const auto put = [&](const std::string& name, const auto& values, const auto& set) {
        require(values.size() == all.samples.size(), "{}: samples/{} has {} values, others {}", path.string(), name,
                values.size(), all.samples.size());
        for (std::size_t i = 0; i < values.size(); ++i) set(all.samples[i], values[i]);
    };
    put("kind", file.dataset("samples/kind").texts(),
        [](GpuSample& sample, const std::string& name) { sample.kind = kind_named(name); });
    for_each_column([&](const char* name, const char*, const char*, auto field) {
        using Value = std::remove_cvref_t<decltype(all.samples.front().*field)>;
        if (!file.contains(std::string("samples/") + name)) return;  // a record from before this column existed
        const auto dataset = file.dataset(std::string("samples/") + name);
        const auto set = [&](GpuSample& sample, const auto& value) { sample.*field = static_cast<Value>(value); };
        if constexpr (std::is_same_v<Value, std::string>)
            put(name, dataset.texts(), set);
        else if constexpr (std::is_same_v<Value, double>)
            put(name, dataset.doubles(), set);
        else
            put(name, dataset.integers(), set);
    });
    return all;
}

std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan) {
    const auto forward = forward_calls.find(sample.call);
    const bool is_backward = sample.call == "backward_block";
    if (forward == forward_calls.end() && !is_backward) return std::nullopt;
    return SampledAttend{is_backward ? Pass::backward : Pass::forward,
                         {std::move(plan), sample.rank, sample.block, is_backward ? AttendPosition{} : forward->second,
                          sample.seconds, is_held_out(sample), sample.call}};
}

ExecutedPass::Issued ExecutedPass::issued(int rank) const {
    Issued found;
    for (const auto& one : operations) {
        if (one.rank != rank) continue;
        found.transfers += one.op.transfers();
        found.launches += !one.op.transfers() && !one.op.fused;
    }
    return found;
}

std::vector<ExecutedOperation> executed_operations(const layouts::Schedule& schedule, const PassRun& pass) {
    std::vector<std::vector<layouts::Op>> ops;
    for (int rank = 0; rank < schedule.ranks(); ++rank) ops.push_back(ops_of(schedule, rank));
    std::vector<ExecutedOperation> operations;
    for (std::size_t i = 0; i < pass.timelines.front().spans.size(); ++i) {
        std::vector<double> posted, begins, seconds;
        for (const auto& timeline : pass.timelines) {
            posted.push_back(layouts::to_seconds(timeline.spans[i].posted));
            begins.push_back(layouts::to_seconds(timeline.spans[i].begin));
            seconds.push_back(layouts::to_seconds(timeline.spans[i].busy));
        }
        const auto& span = pass.timelines.front().spans[i];
        operations.push_back({ops.at(static_cast<std::size_t>(span.rank)).at(static_cast<std::size_t>(span.op)),
                              span.rank, span.op, typical(posted).median, typical(begins).median, typical(seconds)});
    }
    return operations;
}

std::vector<ExecutedPass> executed_passes(const GpuSamples& all) {
    std::vector<ExecutedPass> passes;
    std::vector<layouts::Op> ops;  // of the rank that is being read
    for (const auto& sample : all.samples) {
        if (sample.kind == SampleKind::pass) {
            const auto before = passes.empty() ? 0 : passes.back().seconds;
            auto& pass = passes.emplace_back();
            pass.plan = all.plan(sample);
            pass.pass = sample.call == "forward" ? Pass::forward : Pass::backward;
            pass.transport = sample.transport;
            pass.seconds = sample.seconds;
            pass.forward_before = pass.pass == Pass::backward ? before : 0;
        }
        if (passes.empty()) continue;
        auto& pass = passes.back();
        if (sample.kind == SampleKind::period) pass.period = sample.seconds;
        if (sample.kind != SampleKind::operation) continue;
        if (sample.op == 0) ops = ops_of(pass.schedule(), sample.rank);
        pass.operations.push_back({ops.at(static_cast<std::size_t>(sample.op)),
                                   sample.rank,
                                   static_cast<layouts::OpIndex>(sample.op),
                                   sample.posted,
                                   sample.begin,
                                   {sample.seconds, sample.spread}});
    }
    return passes;
}

}  // namespace ringlab::experiments
