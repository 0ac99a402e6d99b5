#include "experiments/calibration/fit/gpu_samples.hpp"

#include "experiments/record/record.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace ringlab::experiments {
namespace {

const char* const run_name = "samples";

// All columns of the table, in one place for writing and reading.
template <class Samples, class Visit>
void for_each_sample_column(Samples& all, Visit visit) {
    visit(
        "kind", "1", "what was timed: see experiments/calibration/fit/gpu_samples.hpp",
        [](auto& sample) -> auto& { return sample.kind; });
    visit(
        "call", "1", "of a kernel, or the pass", [](auto& sample) -> auto& { return sample.call; });
    visit(
        "mask", "1", "who sees whom", [](auto& sample) -> auto& { return sample.mask; });
    visit(
        "layout", "1", "which rank owns which tokens", [](auto& sample) -> auto& { return sample.layout; });
    visit(
        "algorithm", "1", "schedule of a pass", [](auto& sample) -> auto& { return sample.algorithm; });
    visit(
        "transport", "1", "of a pass or message", [](auto& sample) -> auto& { return sample.transport; });
    visit(
        "ranks", "1", "P", [](auto& sample) -> auto& { return sample.ranks; });
    visit(
        "rank", "1", "whose rows", [](auto& sample) -> auto& { return sample.rank; });
    visit(
        "block", "1", "whose keys", [](auto& sample) -> auto& { return sample.block; });
    visit(
        "tokens_per_rank", "1", "of each rank", [](auto& sample) -> auto& { return sample.tokens_per_rank; });
    visit(
        "queries", "1", "tokens that have a query row; 0: all", [](auto& sample) -> auto& { return sample.queries; });
    visit(
        "op", "1", "index in the rank's schedule; -1: no operation", [](auto& sample) -> auto& { return sample.op; });
    visit(
        "bytes", "B", "of a message", [](auto& sample) -> auto& { return sample.bytes; });
    visit(
        "seconds", "s", "median", [](auto& sample) -> auto& { return sample.seconds; });
    visit(
        "spread", "1", "distance of the quartiles over the median",
        [](auto& sample) -> auto& { return sample.spread; });
    visit(
        "posted", "s", "of an operation: when its own side had come to it, since the start of the pass",
        [](auto& sample) -> auto& { return sample.posted; });
    visit(
        "begin", "s", "of an operation: when both sides had", [](auto& sample) -> auto& { return sample.begin; });
    visit(
        "clock", "Hz", "of the multiprocessors, on average; 0: not known",
        [](auto& sample) -> auto& { return sample.clock_hertz; });
    visit(
        "head_dim", "1", "of another kernel; 0: of the machine's own",
        [](auto& sample) -> auto& { return sample.head_dim; });
    visit(
        "value_dim", "1", "likewise", [](auto& sample) -> auto& { return sample.value_dim; });
    visit(
        "soft_cap", "1", "of scores; 0: none", [](auto& sample) -> auto& { return sample.soft_cap; });
    (void)all;
}

template <class T>
struct ColumnOf {
    using type = T;
};
template <>
struct ColumnOf<int> {
    using type = std::int64_t;
};

std::string bare_machine_text(sim::Machine machine) {
    machine.description = "what kernels take up at a time";
    std::map<std::string, std::string> sources;
    for (const auto* section :
         {"topology", "gpu", "cache", "host", "attention", "kernels", "split_kv", "accumulate", "inside_host"})
        sources[section] = "the device; times are not fitted yet";
    return sim::machine_text(machine, sources, "Before the fit.");
}

}  // namespace

std::vector<const GpuSample*> GpuSamples::of(const std::string& kind, const std::string& call) const {
    std::vector<const GpuSample*> found;
    for (const auto& sample : samples)
        if (sample.kind == kind && (call.empty() || sample.call == call)) found.push_back(&sample);
    return found;
}

SamplesFile write_samples(const SamplesFile& file, const GpuSamples& all, const std::string& configuration,
                          const Provenance& provenance) {
    RecordOpening opening = RecordMode::overwrite;
    opening.found = file.state;
    Record record(
        file.path, opening,
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
    for_each_sample_column(all, [&](const char* name, const char* unit, const char* description, auto field) {
        using Value = std::remove_cvref_t<decltype(field(all.samples.front()))>;
        std::vector<typename ColumnOf<Value>::type> values;
        for (const auto& sample : all.samples) values.push_back(field(sample));
        const auto path = std::string("samples/") + name;
        if constexpr (std::is_same_v<Value, std::string>) {
            std::set<std::string> different(values.begin(), values.end());
            different.erase("");
            const bool are_words = std::none_of(different.begin(), different.end(),
                                                [](const auto& value) { return value.find(' ') != value.npos; });
            if (are_words && !different.empty() && different.size() < 128)
                return run.enumeration(path, values, {different.begin(), different.end()}, {{"sample"}}, unit,
                                       description);
        }
        run.dataset(path, std::move(values), {{"sample"}}, unit, description);
    });
    record.commit(run_name, run);
    record.finish();
    return {record.name(), record.state()};
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
    for_each_sample_column(all, [&](const char* name, const char*, const char*, auto field) {
        using Value = std::remove_cvref_t<decltype(field(all.samples.front()))>;
        if (!file.contains(std::string("samples/") + name)) return;  // a record from before this column existed
        const auto dataset = file.dataset(std::string("samples/") + name);
        const auto put = [&](const auto& values) {
            require(values.size() == all.samples.size(), "{}: samples/{} has {} values, others {}", path.string(), name,
                    values.size(), all.samples.size());
            for (std::size_t i = 0; i < values.size(); ++i) field(all.samples[i]) = static_cast<Value>(values[i]);
        };
        if constexpr (std::is_same_v<Value, std::string>)
            put(dataset.texts());
        else if constexpr (std::is_same_v<Value, double>)
            put(dataset.doubles());
        else
            put(dataset.integers());
    });
    for (auto& sample : all.samples)  // in older records a kind may be several words
        std::replace(sample.kind.begin(), sample.kind.end(), ' ', '_');
    return all;
}

}  // namespace ringlab::experiments
