#include "experiments/planning/advice_report.hpp"

#include "experiments/console/table.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/file_guard.hpp"
#include "layouts/require.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace ringlab::experiments {
namespace {

using Json = nlohmann::ordered_json;

constexpr int advice_schema = 1;

std::string milliseconds(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

std::string percent(const Uncertainty& uncertainty) {
    return uncertainty.known ? fmt::format("{:.0f} %", 100 * uncertainty.mean) : "?";
}

/// How many from the first on are not told apart by figures of this uncertainty.
std::size_t alike_at_top(const std::vector<const Advised*>& ranked) {
    if (ranked.empty()) return 0;
    const auto& first = *ranked.front();
    std::size_t count = 0;
    for (const auto* one : ranked) {
        const auto doubt = std::max(first.machine->uncertainty.mean, one->machine->uncertainty.mean);
        if (one->seconds() > (1 + doubt) * first.seconds()) break;
        ++count;
    }
    return count;
}

std::string trust_text(const Advice& advice, const Question& question) {
    std::string text;
    for (const auto& machine : question.machines) {
        const auto& u = machine.uncertainty;
        text += u.known ? fmt::format("Uncertainty on {}: {:.1f} % on average, {:.1f} % at most, by {}.\n",
                                      machine.name, 100 * u.mean, 100 * u.largest, u.source)
                        : fmt::format("Uncertainty on {}: {}.\n", machine.name, u.source);
    }
    const auto ranked = advice.ranked();
    if (const auto alike = alike_at_top(ranked); alike > 1)
        text += fmt::format("The first {} differ by no more than that: any of them may be the best.\n", alike);
    return text;
}

std::string others_text(const Advice& advice) {
    std::map<Advised::Verdict, std::size_t> counts;
    std::map<Advised::Verdict, const Advised*> nearest;
    for (const auto& one : advice.all) {
        ++counts[one.verdict];
        nearest.try_emplace(one.verdict, &one);
    }
    std::string text;
    for (const auto verdict : {Advised::Verdict::too_large, Advised::Verdict::outrun, Advised::Verdict::impossible}) {
        if (!counts.contains(verdict)) continue;
        const auto& one = *nearest[verdict];
        text += fmt::format("{}: {}, as {} ({})\n", to_string(verdict), counts[verdict], one.name(), one.reason);
    }
    return text;
}

Json json_of(const Advised& one) {
    Json entry;
    entry["machine"] = one.machine->name;
    entry["mask"] = one.which.mask;
    entry["layout"] = one.which.layout;
    entry["schedule"] = one.which.algorithm;
    entry["ranks"] = one.which.ranks;
    entry["rings"] = one.rings;
    entry["batch_of_ring"] = one.batch;
    entry["tokens"] = one.which.tokens;
    entry["reason"] = one.reason;
    if (one.memory > 0) entry["memory_bytes"] = one.memory;
    entry["device_memory_bytes"] = one.machine->capacity.device;
    if (one.verdict != Advised::Verdict::ranked) return entry;
    entry["forward_seconds"] = one.forward_seconds;
    entry["backward_seconds"] = one.backward_seconds;
    entry["total_seconds"] = one.seconds();
    entry["method"] = to_string(one.method);
    entry["losses_seconds"] = {{"exposed_transfer", one.losses.transfer},
                               {"imbalance", one.losses.imbalance},
                               {"tail", one.losses.tail},
                               {"launch", one.losses.launch}};
    entry["uncertainty"] = one.machine->uncertainty.known ? Json(one.machine->uncertainty.mean) : Json(nullptr);
    return entry;
}

}  // namespace

std::string advice_text(const Advice& advice, const Question& question, std::size_t rows) {
    Table table({"", "machine", "layout", "schedule", "P", "rings", "forward ms", "backward ms", "total ms", "+-",
                 "memory", "by", "lost to"});
    const auto ranked = advice.ranked();
    for (std::size_t i = 0; i < std::min(rows, ranked.size()); ++i) {
        const auto& one = *ranked[i];
        table.add({fmt::format("{}", i + 1), one.machine->name, one.which.layout, one.which.algorithm,
                   fmt::format("{}", one.which.ranks), fmt::format("{}", one.rings), milliseconds(one.forward_seconds),
                   milliseconds(one.backward_seconds), milliseconds(one.seconds()), percent(one.machine->uncertainty),
                   memory_text(one.memory), to_string(one.method), one.reason});
    }
    const auto hidden = ranked.size() - std::min(rows, ranked.size());
    return fmt::format("{}\n{}{}\n{}", ranked.empty() ? "Nothing fits.\n" : table.text(),
                       hidden > 0 ? fmt::format("{} slower ones are in the record.\n", hidden) : "",
                       others_text(advice), trust_text(advice, question));
}

std::string advice_json(const Advice& advice, const Question& question) {
    const auto problem = problem_from(question.config);
    Json json;
    json["ringlab_advice"] = advice_schema;
    json["question"] = {{"query_heads", problem.query_heads},
                        {"kv_heads", problem.kv_heads},
                        {"head_dim", problem.head_dim},
                        {"value_dim", problem.value_dim},
                        {"batch", problem.batch},
                        {"dtype", to_string(problem.dtype)},
                        {"layers", question.config.model_layers},
                        {"keep", question.config.keep.front()}};
    json["machines"] = Json::array();
    for (const auto& machine : question.machines) {
        const auto& u = machine.uncertainty;
        Json entry{{"name", machine.name}, {"gpus", machine.machine.gpus()}, {"uncertainty_source", u.source}};
        entry["mean_error"] = u.known ? Json(u.mean) : Json(nullptr);
        entry["largest_error"] = u.known ? Json(u.largest) : Json(nullptr);
        json["machines"].push_back(std::move(entry));
    }
    for (const auto verdict : {Advised::Verdict::ranked, Advised::Verdict::too_large, Advised::Verdict::outrun,
                               Advised::Verdict::impossible}) {
        auto& list = json[to_string(verdict)] = Json::array();
        for (const auto& one : advice.all)
            if (one.verdict == verdict) list.push_back(json_of(one));
    }
    return json.dump(2) + "\n";
}

void describe_advised(RunWriter& run, const Advised& one, const layouts::Problem& problem, std::int64_t place) {
    run.attribute("place", place, "1", "1 is the quickest; 0: without a time");
    run.attribute("verdict", std::string(to_string(one.verdict)), "1",
                  "ranked; outrun: its pairs alone take longer than the best; does not fit; impossible");
    run.attribute("machine", one.machine->name, "1", "machine file");
    run.attribute("mask", one.which.mask, "1", "who sees whom, as given");
    run.attribute("layout", one.which.layout, "1", "which rank owns which tokens");
    run.attribute("algorithm", one.which.algorithm, "1", "schedule that brings queries and keys together");
    run.attribute("ranks", one.which.ranks, "1", "ring size P");
    run.attribute("rings", one.rings, "1", "side by side on the GPUs");
    run.attribute("batch", one.batch, "1", "sequences that each ring takes");
    run.attribute("tokens", one.which.tokens, "1", "of a sequence");
    run.attribute("query_heads", problem.query_heads, "1", "heads of q and o");
    run.attribute("kv_heads", problem.kv_heads, "1", "heads of k and v");
    run.attribute("head_dim", problem.head_dim, "1", "size of a query or key");
    run.attribute("value_dim", problem.value_dim, "1", "size of a value");
    run.attribute("method", std::string(to_string(one.method)), "1",
                  "events: simulated; recurrence: one rank, set right by all; one rank: as if all did the same");
    const auto seconds = [&](const char* name, double value, const char* description) {
        run.attribute(name, one.verdict == Advised::Verdict::ranked ? value : NAN, "s", description);
    };
    seconds("seconds_predicted_forward", one.forward_seconds, "predicted time of the forward pass");
    seconds("seconds_predicted_backward", one.backward_seconds, "predicted time of the backward pass");
    seconds("lost_to_transfer", one.losses.transfer, "of both: nothing computes on the busiest rank");
    seconds("lost_to_imbalance", one.losses.imbalance, "of both: its pairs beyond the mean, at the best rate");
    seconds("lost_to_tail", one.losses.tail, "of both: tiles not full, processors out of them, ends of passes");
    seconds("lost_to_launch", one.losses.launch, "of both: launches, and waiting for the host");
    run.attribute("memory", one.memory, "B", "of the fullest rank; 0: not looked at");
    run.attribute("memory_device", one.machine->capacity.device, "B", "of one device");
    run.attribute("uncertainty", one.machine->uncertainty.known ? one.machine->uncertainty.mean : NAN, "1",
                  "mean error of predicted times where the machine was scored");
    run.attribute("reason", one.reason, "1", "in words: where its time goes, or why it has none");
}

}  // namespace ringlab::experiments
