#include "experiments/prediction/uncertainty.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/files/files_read.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

namespace ringlab::experiments {
namespace {

const std::string scores_name = "scores";

/// Sorted.
std::vector<double> deviations(const std::vector<ScoredRing>& rings, auto&& counts) {
    std::vector<double> found;
    for (const auto& ring : rings)
        if (counts(ring)) found.push_back(ring.deviation());
    std::ranges::sort(found);
    return found;
}

/// The ceil(0.9 (n + 1))-th of n >= enough_rings sorted numbers, in whole numbers.
double quantile(const std::vector<double>& sorted) { return sorted[(9 * (sorted.size() + 1) + 9) / 10 - 1]; }

std::vector<ScoredRing> rings_of(const std::vector<ScoredRing>& rings, auto&& counts) {
    std::vector<ScoredRing> some;
    std::ranges::copy_if(rings, std::back_inserter(some), counts);
    return some;
}

/// An uncertainty without scored rings; `why` is the reason.
Uncertainty not_scored(const sim::Machine& machine, std::string why) {
    if (machine.assumed_margin <= 0) return {{}, std::move(why)};
    return {{}, fmt::format("not measured by us: +- {:.3g} %", 100 * machine.assumed_margin), machine.assumed_margin};
}

/// Whether `calibrate` fitted the whole file to one host of GPUs: nothing in it is assumed.
bool is_fitted_to_gpus(const sim::Machine& machine) {
    const auto any = [&](const char* how) {
        return std::ranges::any_of(machine.figures, [&](const auto& figure) { return figure.source.starts_with(how); });
    };
    return machine.has_gpus() && machine.hosts == 1 && any("fitted") && !any("assumed");
}

}  // namespace

double ScoredRing::deviation() const {
    double measured = 0, predicted = 0;
    for (const auto& pass : passes) {
        measured += pass.measured;
        predicted += pass.predicted;
    }
    return std::abs(measured / predicted - 1);
}

Scores load_scores(const std::string& path) {
    note_read(path);
    const auto file = hdf5::File::open(path);
    require(file.contains("runs/measured_record"),
            "{}: not a record of scores, which `validate --measured all` writes: it has no column measured_record",
            path);
    const auto texts = [&](const char* column) { return file.dataset(std::string("runs/") + column).texts(); };
    const auto numbers = [&](const std::string& column) { return file.dataset("runs/" + column).doubles(); };
    const auto machines = texts("machine");
    std::vector<ScoredRing> all(machines.size());
    const auto put = [&](const auto& values, auto ScoredRing::*field) {
        for (std::size_t i = 0; i < all.size(); ++i) all[i].*field = values[i];
    };
    put(machines, &ScoredRing::machine);
    put(texts("name"), &ScoredRing::run);
    put(texts("measured_record"), &ScoredRing::record);
    put(texts("transport"), &ScoredRing::transport);
    put(texts("shape"), &ScoredRing::shape);
    put(texts("mask"), &ScoredRing::mask);
    put(texts("layout"), &ScoredRing::layout);
    put(texts("schedule"), &ScoredRing::schedule);
    put(numbers("density"), &ScoredRing::density);
    const auto put_of_passes = [&](const std::string& column, double ScoredPass::*field) {
        for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
            if (!file.contains("runs/" + column + "_" + to_string(pass))) continue;  // scores from before it was kept
            const auto values = numbers(column + "_" + to_string(pass));
            for (std::size_t i = 0; i < all.size(); ++i)
                all[i].passes[static_cast<std::size_t>(pass)].*field = values[i];
        }
    };
    put_of_passes("seconds_measured", &ScoredPass::measured);
    put_of_passes("spread_measured", &ScoredPass::spread);
    put_of_passes("seconds_predicted", &ScoredPass::predicted);
    put_of_passes("error_overlapped", &ScoredPass::overlapped);
    put_of_passes("error_serial", &ScoredPass::serial);
    put_of_passes("error_recorded", &ScoredPass::recorded);
    put_of_passes("error_compute", &ScoredPass::compute);
    put_of_passes("error_balance", &ScoredPass::balance);
    const auto tokens = numbers("tokens"), ranks = numbers("ranks"), warm = numbers("warm");
    Scores scores;
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].tokens_per_rank = std::llround(tokens[i]) / std::llround(ranks[i]);
        (warm[i] == 0 ? scores.rings : scores.warm).push_back(std::move(all[i]));
    }
    for (const auto& name : std::set(machines.begin(), machines.end()))
        scores.machine_digests[name] = file.group("provenance/0").text(fmt::format("machine_{}_sha256", name));
    return scores;
}

double density(const layouts::Mask& mask) {
    const layouts::Run all{0, 1, mask.tokens()};
    const auto pairs = static_cast<double>(layouts::visible_pairs(mask, {&all, 1}, layouts::KeyCounter({&all, 1})));
    const auto tokens = static_cast<double>(mask.tokens());
    return pairs / (tokens * (tokens + 1) / 2);
}

const LengthBin& length_bin(std::int64_t tokens_per_rank) {
    return *std::ranges::find_if(length_bins, [&](const LengthBin& bin) { return tokens_per_rank >= bin.least; });
}

std::optional<double> margin(const std::vector<ScoredRing>& rings, std::int64_t tokens_per_rank, double density) {
    const auto as_dense = [&](const ScoredRing& ring) {
        return (ring.density >= dense_from) == (density >= dense_from);
    };
    const auto in_bin = [&](const ScoredRing& ring) {
        return as_dense(ring) && length_bin(ring.tokens_per_rank).least == length_bin(tokens_per_rank).least;
    };
    const auto bin = deviations(rings, in_bin);
    if (bin.size() >= enough_rings) return quantile(bin);
    const auto wider = deviations(rings, as_dense), all = deviations(rings, [](const auto&) { return true; });
    if (wider.empty() || all.size() < enough_rings) return {};
    return std::max(bin.empty() ? 0 : bin.back(), quantile(wider.size() >= enough_rings ? wider : all));
}

Coverage coverage(const std::vector<ScoredRing>& rings, bool held_out) {
    Coverage found;
    for (const auto& ring : rings) {
        const auto others = rings_of(rings, [&](const auto& other) {
            return other.machine == ring.machine && !(held_out && other.record == ring.record);
        });
        if (const auto u = margin(others, ring.tokens_per_rank, ring.density)) {
            ++found.all;
            found.within += ring.deviation() <= *u;
        }
    }
    return found;
}

double Uncertainty::mean() const {
    double sum = 0;
    for (const auto& ring : rings) sum += ring.deviation();
    return rings.empty() ? 0 : sum / static_cast<double>(rings.size());
}

double Uncertainty::largest() const {
    double most = 0;
    for (const auto& ring : rings) most = std::max(most, ring.deviation());
    return most;
}

std::optional<double> Uncertainty::margin_of(int ranks, std::int64_t tokens, double density) const {
    if (!known() && assumed > 0) return assumed;
    if (ranks < 2) return {};
    return margin(rings, tokens / ranks, density);
}

Uncertainty uncertainty_of(const sim::Machine& machine, const std::string& name, sim::Clock clock) {
    if (clock != sim::Clock::sustained)
        return not_scored(machine, "not scored at --clock calibrated, as rings were measured at the sustained clock");
    const auto known = resources("results", ".h5");
    if (std::ranges::find(known, scores_name) == known.end())
        return not_scored(machine, "not scored, as there is no results/scores.h5");
    const auto scores = load_scores(find_resource(scores_name, "results", ".h5"));
    const auto source_of = [](const std::vector<ScoredRing>& rings) {
        const auto [shortest, longest] = std::ranges::minmax(rings, {}, &ScoredRing::tokens_per_rank);
        std::set<std::string> shapes;
        for (const auto& ring : rings) shapes.insert(ring.shape);
        return fmt::format("{} rings measured with {} to {} tokens per rank, heads {}", rings.size(),
                           shortest.tokens_per_rank, longest.tokens_per_rank, fmt::join(shapes, ", "));
    };
    const auto digest = digest_of(machine.text);
    const auto at = std::ranges::find(scores.machine_digests, digest, [](const auto& one) { return one.second; });
    if (at == scores.machine_digests.end()) {
        auto why = scores.machine_digests.contains(name)
                       ? fmt::format("not scored: {}.toml has changed since results/scores.h5 was made", name)
                       : std::string("not scored on measured rings");
        if (machine.assumed_margin > 0 || !is_fitted_to_gpus(machine)) return not_scored(machine, std::move(why));
        auto others = rings_of(scores.rings, [](const auto& ring) { return ring.transport != "threads"; });
        if (others.empty()) return not_scored(machine, std::move(why));
        why += fmt::format("; as other machine files that calibrate fitted: {}", source_of(others));
        return {std::move(others), std::move(why), 0, false};
    }
    Uncertainty found{rings_of(scores.rings, [&](const auto& ring) { return ring.machine == at->first; }), ""};
    found.source = source_of(found.rings);
    return found;
}

std::string trust_line(const std::string& name, const sim::Machine& machine, const Uncertainty& uncertainty) {
    auto text = fmt::format("On {}: {}.", name, uncertainty.source);
    if (uncertainty.known())
        text += fmt::format(" On average they took {:.1f} % more or less than predicted, {:.1f} % at most.",
                            100 * uncertainty.mean(), 100 * uncertainty.largest());
    if (const auto derived = sim::derived_figures(machine); derived > 0)
        text += fmt::format(" {} of its {} figures are derived from the others, by the rules of docs/reference/machine-files.md.",
                            derived, machine.figures.size());
    return text + "\n";
}

}  // namespace ringlab::experiments
