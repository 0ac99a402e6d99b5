#include "experiments/planning/advice.hpp"

#include "experiments/console/table.hpp"
#include "experiments/options/file_guard.hpp"
#include "experiments/options/source.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/machines.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace ringlab::experiments {
namespace {

using Json = nlohmann::ordered_json;

constexpr int advice_schema = 5;

const char* to_string(Advised::Method method) {
    constexpr std::array names{"none", "events", "one rank"};
    return names[static_cast<std::size_t>(method)];
}

std::string milliseconds(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

std::string percent(std::optional<double> margin) { return margin ? fmt::format("{:.0f} %", 100 * *margin) : "?"; }

/// How many from the first on are not told apart by figures of these margins.
std::size_t alike_at_top(const std::vector<const Advised*>& ranked) {
    if (ranked.empty()) return 0;
    const auto& first = *ranked.front();
    std::size_t count = 0;
    for (const auto* one : ranked) {
        const auto doubt = std::max(first.margin().value_or(0), one->margin().value_or(0));
        if (one->seconds() > (1 + doubt) * first.seconds()) break;
        ++count;
    }
    return count;
}

std::string trust_text(const Advice& advice, const Question& question) {
    std::string text;
    for (const auto& machine : question.machines)
        text += trust_line(machine.name, machine.machine, machine.uncertainty);
    const auto ranked = advice.ranked();
    if (const auto alike = alike_at_top(ranked); alike > 1)
        text += fmt::format("The first {} differ by no more than +-: any of them may be the best.\n", alike);
    return text;
}

constexpr const char* row_definitions =
    "Ranked by total ms, a forward and a backward pass, each simulated. P: ranks of a ring; rings: side by side.\n"
    "+-: nine of ten measured rings took no more or less than so much of their predicted total; rings of that machine\n"
    "with about as many tokens per rank and as dense a mask. Of other layouts or schedules, or of others: no ring of\n"
    "this layout or schedule was measured on that machine. On machines that were not measured: what their file "
    "assumes\n"
    "or, if calibrate fitted it to GPUs, the margin of all such files. ?: no such ring was measured.\n"
    "Memory: of the fullest GPU. Attention: the part of it that `predict` prints too; the rest is what --keep, "
    "--layers\n"
    "and --resident say, and what the machine file reserves.\n";

void add_row(Table& table, const Advised& one, std::size_t place, const std::string& margin) {
    table.start().cell("", static_cast<std::int64_t>(place)).cell("machine", one.machine->name);
    table.cell("layout", one.setup.layout).cell("schedule", one.setup.schedule).cell("P", one.setup.ranks);
    table.cell("rings", one.rings).cell("forward ms", milliseconds(one.forward_seconds));
    table.cell("backward ms", milliseconds(one.backward_seconds)).cell("total ms", milliseconds(one.seconds()));
    table.cell("+-", margin).cell("memory", memory_text(one.memory));
    table.cell("attention", memory_text(one.attention_memory));
}

void add_causes(Table& table, const Advised& one, std::size_t place) {
    table.start().cell("", static_cast<std::int64_t>(place)).cell("layout", one.setup.layout);
    table.cell("schedule", one.setup.schedule).cell("P", one.setup.ranks);
    add_cause_cells(table, shares_of(*one.causes), layouts::to_seconds(one.causes->pass));
}

/// A table of the candidates that may be among the first and were not simulated.
std::string estimates_text(const Advice& advice, const Question& question) {
    const auto estimated = advice.with(Advised::Verdict::estimated);
    if (estimated.empty()) return "";
    Table table;
    const auto margin =
        fmt::format("{:+.0f} to {:+.0f} %", 100 * (estimate_error.low - 1), 100 * (estimate_error.high - 1));
    for (std::size_t i = 0; i < std::min(question.rows, estimated.size()); ++i) {
        const auto& one = *estimated[i];
        add_row(table, one, i + 1, margin);
        table.cell("where it goes", one.causes ? causes_in_words(*one.causes) : "-");
    }
    return fmt::format(
        "\nEstimates: {} may be among the first {}, but would take the simulator longer than {} s.\n{}\n"
        "A few ranks are played, each as if all did the same. +-: where the simulator's time lay in 9 of 10 cases that "
        "had both;\nat the most it was {} to {} times the estimate.\n",
        estimated.size(), question.rows, question.config.advice.budget_seconds, table.text(), estimate_error.least,
        estimate_error.most);
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
        text +=
            fmt::format("{}: {}, for example {} ({})\n", to_string(verdict), counts[verdict], one.name(), one.reason);
    }
    return text;
}

/// Names machines with the memory that the candidate with the least need of it has, as far as machines say.
std::string nothing_fits_text(const Advice& advice, const Question& question) {
    const auto too_large = advice.with(Advised::Verdict::too_large);
    if (too_large.empty() || question.config.memory.device_gigabytes > 0) return "Nothing fits.\n";
    const auto& least = **std::ranges::min_element(too_large, {}, [](const auto* one) { return one->memory; });
    const auto gpus = std::int64_t{least.setup.ranks} * least.rings;
    return fmt::format("Nothing fits. {} needs {} on each GPU; {}.\n", least.name(), memory_text(least.memory),
                       machines_with_room(gpus, static_cast<double>(least.memory)));
}

/// Calls visit(name, value, unit, description) for all that the record and JSON say of a candidate. NaN: not known.
template <class Visit>
void for_each_field(const Advised& one, const Visit& visit) {
    visit("verdict", to_string(one.verdict), "1",
          "ranked: by the simulator; estimated: not simulated, may be among the first; outrun: cannot be among the "
          "first; does not fit; impossible");
    visit("machine", one.machine->name, "1", "machine file");
    visit("mask", one.setup.mask, "1", "who sees whom, as given");
    visit("layout", one.setup.layout, "1", "which rank owns which tokens");
    visit("schedule", one.setup.schedule, "1", "what brings queries and keys together");
    visit("ranks", one.setup.ranks, "1", "ring size P");
    visit("rings", one.rings, "1", "side by side on the GPUs");
    visit("batch", one.batch, "1", "sequences that each ring takes");
    visit("tokens", one.setup.tokens, "1", "of a sequence");
    visit("method", to_string(one.method), "1", "events: simulated; one rank: as if all did the same");
    const auto seconds = [&](const char* name, double value, const char* description) {
        visit(name, value > 0 ? value : NAN, "s", description);
    };
    seconds("seconds_predicted_forward", one.forward_seconds, "predicted time of the forward pass");
    seconds("seconds_predicted_backward", one.backward_seconds, "predicted time of the backward pass");
    seconds("seconds_estimated", one.estimated_seconds, "both passes by one rank, as if all did the same");
    visit("memory", one.memory, "B", "of the fullest rank; 0: not looked at");
    visit("memory_attention", one.attention_memory, "B", "the part of it that one attention takes");
    visit("memory_device", one.machine->capacity.device, "B", "of one device");
    visit("uncertainty", one.margin().value_or(NAN), "1",
          "nine of ten measured rings took within this share of the predicted time, or what the machine file assumes; "
          "NaN: none were measured");
    visit("reason", one.reason, "1", "in words: where its time goes, or why it is not ranked");
}

Json json_of(const Advised& one) {
    Json entry;
    for_each_field(one, [&](const char* name, const auto& value, const char*, const char*) { entry[name] = value; });
    if (one.causes)
        for (const auto& [name, seconds] : shares_of(*one.causes))
            if (one.verdict == Advised::Verdict::ranked || seconds != 0) entry["seconds_by_cause"][name] = seconds;
    return entry;
}

}  // namespace

std::string advice_text(const Advice& advice, const Question& question) {
    const auto ranked = advice.ranked();
    const auto rows = std::min(question.rows, ranked.size());
    Table table, causes;
    for (std::size_t i = 0; i < rows; ++i) {
        add_row(table, *ranked[i], i + 1, percent(ranked[i]->margin()) + ranked[i]->margin_is_of());
        if (ranked[i]->causes) add_causes(causes, *ranked[i], i + 1);
    }
    std::string text = ranked.empty() ? "" : fmt::format("{}\n{}", table.text(), row_definitions);
    if (advice.least_seconds)
        text += fmt::format(
            "Bound: the packing's work takes {} ms if it is spread evenly over the ranks, no document is cut and "
            "messages\n"
            "take no time; that is {:.0f} % of the first row.\n",
            milliseconds(*advice.least_seconds), 100 * *advice.least_seconds / ranked.front()->seconds());
    if (ranked.size() > rows) text += fmt::format("{} slower ones are in the record.\n", ranked.size() - rows);
    if (rows > 0 && ranked.front()->causes) text += "\n" + causes_text(causes);
    const auto estimates = estimates_text(advice, question);
    if (text.empty() && estimates.empty()) text = nothing_fits_text(advice, question);
    return fmt::format("{}{}\n{}\n{}", text, estimates, others_text(advice), trust_text(advice, question));
}

std::string advice_json(const Advice& advice, const Question& question) {
    const auto problem = problem_from(question.config.problem);
    Json json;
    json["ringlab_advice"] = advice_schema;
    json["question"] = {{"query_heads", problem.query_heads},
                        {"kv_heads", problem.kv_heads},
                        {"head_dim", problem.head_dim},
                        {"value_dim", problem.value_dim},
                        {"batch", problem.batch},
                        {"dtype", to_string(problem.dtype)},
                        {"layers", question.config.memory.model_layers},
                        {"keep", question.config.memory.keep.front()}};
    json["machines"] = Json::array();
    for (const auto& machine : question.machines) {
        const auto& u = machine.uncertainty;
        Json entry{{"name", machine.name}, {"gpus", machine.machine.gpus()}, {"uncertainty_source", u.source}};
        entry["scored_rings"] = u.rings.size();
        entry["mean_error"] = u.known() ? Json(u.mean()) : Json(nullptr);
        entry["largest_error"] = u.known() ? Json(u.largest()) : Json(nullptr);
        json["machines"].push_back(std::move(entry));
    }
    json["least_seconds"] = advice.least_seconds ? Json(*advice.least_seconds) : Json(nullptr);
    for (const auto verdict : {Advised::Verdict::ranked, Advised::Verdict::estimated, Advised::Verdict::too_large,
                               Advised::Verdict::outrun, Advised::Verdict::impossible}) {
        auto& list = json[to_string(verdict)] = Json::array();
        for (const auto& one : advice.all)
            if (one.verdict == verdict) list.push_back(json_of(one));
    }
    return json.dump(2) + "\n";
}

void describe_advised(RunWriter& run, const Advised& one, std::int64_t place) {
    run.attribute("place", place, "1", "1 is the quickest; 0: not ranked");
    for_each_field(one, [&](const char* name, const auto& value, const char* unit, const char* description) {
        run.attribute(name, value, unit, description);
    });
    if (one.causes && one.verdict == Advised::Verdict::ranked) describe_causes(run, {}, *one.causes);
}

}  // namespace ringlab::experiments
