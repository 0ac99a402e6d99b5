#include "experiments/planning/advice.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {

std::string Losses::reason(double seconds) const {
    std::vector<std::pair<double, const char*>> parts{
        {transfer, "exposed transfer"}, {imbalance, "imbalance"}, {tail, "tail"}, {launch, "launch"}};
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    constexpr double counts = 0.02;
    std::string text;
    for (const auto& [loss, name] : parts)
        if (loss >= counts * seconds)
            text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * loss / seconds);
    return text.empty() ? "nothing: compute at the machine's best rate" : text;
}

std::string Advised::name() const { return fmt::format("{} on {}", which.name(), machine->name); }

const char* to_string(Advised::Verdict verdict) {
    switch (verdict) {
        case Advised::Verdict::ranked: return "ranked";
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
        case Advised::Method::recurrence: return "recurrence";
        case Advised::Method::one_rank: return "one rank";
    }
    return "?";
}

std::vector<const Advised*> Advice::ranked() const {
    std::vector<const Advised*> some;
    for (const auto& one : all)
        if (one.verdict == Advised::Verdict::ranked) some.push_back(&one);
    return some;
}

}  // namespace ringlab::experiments
