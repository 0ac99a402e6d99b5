#include "experiments/validation/ablation.hpp"

#include "experiments/console/table.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "experiments/validation/scores.hpp"
#include "sim/machine/terms.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace ringlab::experiments {
namespace {

const std::string whole_model = "none";

/// Transport, and the least tokens per rank of the length bin.
using SetKey = std::tuple<std::string, std::int64_t>;
using ErrorSets = std::map<SetKey, std::vector<double>>;

}  // namespace

std::vector<std::string> terms_named(const std::vector<std::string>& names) {
    std::vector<std::string> found;
    for (const auto& name : names) {
        if (name == "each")
            for (const auto& term : sim::terms_to_remove()) found.emplace_back(term.name);
        else
            found.emplace_back(sim::find_term(name).name);
    }
    return found;
}

std::string score_without(Record& scores, const std::vector<ScoredRecord>& records,
                          const std::vector<std::string>& terms) {
    std::vector<std::string> variants{whole_model};
    variants.insert(variants.end(), terms.begin(), terms.end());
    std::map<std::string, ErrorSets> errors;
    for_each_ring(records, false, [&](const auto&, const auto& ring, const auto& plan, const auto& machine) {
        const auto& timed = ring.timed;
        const SetKey key{timed.transport, length_bin(plan.problem.tokens / timed.setup.ranks).least};
        for (const auto& term : variants) {
            auto changed = machine;
            if (term != whole_model) sim::find_term(term).remove(changed);
            for (const auto pass : both_passes) {
                const auto measured = measured_pass(ring.run, pass);
                const auto predicted = sim::simulate(*plan.schedule(pass), changed, measured.options());
                errors[term][key].push_back(layouts::to_seconds(predicted.makespan) / measured.seconds - 1);
            }
        }
    });

    Table table;
    for (const auto& variant : variants) {
        table.start().cell("without", variant);
        for (const auto& [key, values] : errors.at(variant)) {
            const auto found = score(values);
            const auto& [transport, least] = key;
            table.cell(fmt::format("{} {} ({})", transport, length_bin(least).name, values.size()),
                       fmt::format("{:.2f} / {:.1f} / {:.1f}", 100 * found.mean, 100 * found.p95, 100 * found.most));
            RunWriter run;
            run.attribute("without", variant, "1", "term of the cost model that costs nothing; none: the whole model");
            run.attribute("effect",
                          variant == whole_model ? std::string("none") : std::string(sim::find_term(variant).effect),
                          "1", "what the term models");
            run.attribute("transport", transport, "1", "what carries messages");
            run.attribute("tokens_from", least, "1", "the least tokens per rank of these rings");
            run.attribute("length", std::string(length_bin(least).name), "1", "the same, for people");
            run.attribute("passes", static_cast<std::int64_t>(values.size()), "1", "that were predicted");
            run.attribute("error_mean", found.mean, "1", "mean of the relative errors of a pass's time, without sign");
            run.attribute("error_p95", found.p95, "1", "their 95th percentile");
            run.attribute("error_most", found.most, "1", "the largest of them");
            scores.commit(fmt::format("without {}: {} {}", variant, transport, length_bin(least).name), run);
        }
    }
    return fmt::format(
        "\nErrors of a pass's time without a term of the cost model, %: mean / 95 of 100 / largest, by transport and\n"
        "tokens per rank; in brackets: passes. The other terms were not fitted again, so what is lost is an upper\n"
        "bound of what a term is worth.\n\n{}",
        table.text());
}

}  // namespace ringlab::experiments
