#include "experiments/validation/score.hpp"

#include "experiments/console/table.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace ringlab::experiments {
namespace {

std::string signed_percent(double value) { return fmt::format("{:+.1f} %", 100 * value); }

/// Counts how many sets of rings that differ only in their layout are ranked right. A set is ranked right if no layout
/// that is predicted to be faster than another was slower by more than the measurement noise.
struct Ranking {
    int right = 0, all = 0;
};

struct Ring {
    double measured, predicted, spread;
};

Ranking ranking(const std::map<std::string, std::vector<Ring>>& sets) {
    Ranking ranking;
    for (const auto& [name, rings] : sets)
        for (std::size_t i = 0; i < rings.size(); ++i)
            for (std::size_t j = i + 1; j < rings.size(); ++j) {
                const auto &a = rings[i], &b = rings[j];
                if (std::abs(a.measured / b.measured - 1) <= a.spread + b.spread) continue;
                ++ranking.all;
                ranking.right += (a.measured < b.measured) == (a.predicted < b.predicted);
            }
    return ranking;
}

}  // namespace

Score score(std::vector<double> errors) {
    require(!errors.empty(), "there is nothing to score");
    double sum = 0;
    for (auto& error : errors) sum += error = std::abs(error);
    std::sort(errors.begin(), errors.end());
    const auto at = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(errors.size()))) - 1;
    return {sum / static_cast<double>(errors.size()), errors[at], errors.back()};
}

std::string score_text(const Record& record, const std::vector<ThroughputCase>& rings, const std::string& machine) {
    Table runs({"transport", "mask", "schedule", "layout", "tokens", "pass", "measured ms", "spread", "predicted ms",
                "error", "max(c,t)", "c+t"});
    std::map<std::string, std::map<std::string, std::vector<double>>> errors;  // by transport, then predictor
    std::map<std::string, std::map<std::string, std::vector<Ring>>> sets;      // by transport
    for (const auto& ring : rings)
        for (const auto* pass : {"forward", "backward"}) {
            const auto name = ring.name();
            const auto number = [&](const std::string& column) { return record.number(name, column); };
            const auto predicted = [&](const char* what) {
                return number(fmt::format("{}_{}_{}", what, pass, machine));
            };
            const auto seconds = number(fmt::format("rate_{}_seconds", pass)),
                       spread = number(fmt::format("rate_{}_spread", pass));
            auto& kinds = errors[ring.transport];
            kinds["predicted"].push_back(predicted("error"));
            kinds["predicted compute of the busiest rank"].push_back(predicted("error_compute"));
            kinds["predicted balance, difference"].push_back(predicted("error_balance"));
            kinds["max(compute, transfer)"].push_back(predicted("error_overlapped"));
            kinds["compute + transfer"].push_back(predicted("error_serial"));
            kinds["spread of the measurements"].push_back(spread);
            auto others = ring;
            others.which.layout = "";
            sets[ring.transport][others.name() + pass].push_back({seconds, predicted("seconds_predicted"), spread});
            runs.add({ring.transport, ring.which.mask, ring.which.schedule, ring.which.layout,
                      fmt::format("{}", ring.which.tokens), pass, fmt::format("{:.4g}", seconds * 1e3),
                      fmt::format("{:.1f} %", 100 * spread),
                      fmt::format("{:.4g}", predicted("seconds_predicted") * 1e3), signed_percent(predicted("error")),
                      signed_percent(predicted("error_overlapped")), signed_percent(predicted("error_serial"))});
        }
    Table scores({"transport", "", "mean", "95th", "largest"});
    std::string rankings;
    for (const auto& [transport, kinds] : errors) {
        for (const auto& [kind, values] : kinds) {
            const auto found = score(values);
            scores.add({transport, kind, fmt::format("{:.1f} %", 100 * found.mean),
                        fmt::format("{:.1f} %", 100 * found.p95), fmt::format("{:.1f} %", 100 * found.most)});
        }
        const auto ranked = ranking(sets[transport]);
        rankings += fmt::format("{}: {} of {} pairs of layouts that differ by more than the spread are ranked right.\n",
                                transport, ranked.right, ranked.all);
    }
    return fmt::format("{}\nPredicted on {}:\n{}\n{}", runs.text(), machine, scores.text(), rankings);
}

}  // namespace ringlab::experiments
