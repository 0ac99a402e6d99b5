#include "experiments/options/planned.hpp"
#include "experiments/planning/advice.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {

std::string Advised::name() const { return fmt::format("{} on {}", which.name(), machine->name); }

std::optional<double> Advised::margin() const {
    return machine->uncertainty.margin_of(which.ranks, which.tokens, density);
}

std::string Advised::margin_is_of() const {
    const auto& rings = machine->uncertainty.rings;
    if (rings.empty() || !margin()) return "";
    const bool knows_layout = std::ranges::any_of(rings, [&](const ScoredRing& ring) {
        return ring.layout == which.layout || (is_planned(ring.layout) && is_planned(which.layout));
    });
    const bool knows_schedule =
        std::ranges::any_of(rings, [&](const ScoredRing& ring) { return ring.schedule == which.schedule; });
    if (!knows_layout && !knows_schedule) return " of others";
    return !knows_layout ? " of other layouts" : !knows_schedule ? " of other schedules" : "";
}

const char* to_string(Advised::Verdict verdict) {
    switch (verdict) {
        case Advised::Verdict::ranked: return "ranked";
        case Advised::Verdict::estimated: return "estimated";
        case Advised::Verdict::outrun: return "outrun";
        case Advised::Verdict::too_large: return "does not fit";
        case Advised::Verdict::impossible: return "impossible";
    }
    return "?";
}

const char* to_string(Advised::Method method) {
    switch (method) {
        case Advised::Method::none: return "none";
        case Advised::Method::events: return "events";
        case Advised::Method::unshared: return "unshared";
        case Advised::Method::one_rank: return "one rank";
    }
    return "?";
}

std::vector<const Advised*> Advice::with(Advised::Verdict verdict) const {
    std::vector<const Advised*> some;
    for (const auto& one : all)
        if (one.verdict == verdict) some.push_back(&one);
    return some;
}

}  // namespace ringlab::experiments
