#include "experiments/memory/longest.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

// Kernels hold positions in 32 bits, one of which stands for none; plans hold up to 2^31 tokens.
constexpr std::int64_t most_positions = (std::int64_t{1} << 31) - 2;

}  // namespace

std::int64_t longest_that(std::int64_t granularity, std::int64_t most, const std::function<bool(std::int64_t)>& fits) {
    const auto largest = most / granularity;
    if (largest < 1 || !fits(granularity)) return 0;
    std::int64_t good = 1, bad = 2;
    for (; bad <= largest && fits(bad * granularity); bad *= 2) good = bad;
    bad = std::min(bad, largest + 1);
    while (bad - good > 1) {
        const auto middle = good + (bad - good) / 2;
        (fits(middle * granularity) ? good : bad) = middle;
    }
    return good * granularity;
}

Longest longest_context(Case which, const layouts::Problem& problem, const MemoryConfig& config, const Keeping& keeping,
                        const Capacity& capacity) {
    const auto granularity = layouts::layout_granularity(which.layout, which.ranks);
    const auto footprint_of = [&](std::int64_t tokens) {
        which.tokens = tokens;
        const auto plan = make_plan(which, problem);
        return footprint(*plan.forward, plan.backward.get(), keeping, config.model_layers, capacity);
    };
    const auto fits = [&](std::int64_t tokens) { return footprint_of(tokens).total() <= capacity.device; };
    Longest found;
    found.tokens = longest_that(granularity, most_positions, fits);
    found.footprint = footprint_of(std::max(found.tokens, granularity));
    if (found.tokens + granularity > most_positions)
        found.limit = "positions of 32 bits";
    else if (found.tokens == 0)
        found.limit = fmt::format("{} tokens need {}: {}", granularity, memory_text(found.footprint.total()),
                                  found.footprint.largest_part());
    else
        found.limit = fmt::format("memory: {}", found.footprint.largest_part());
    return found;
}

int refuted(const Record& record, const std::vector<std::string>& runs) {
    const auto failed = [&](const std::string& run) {
        return record.has(run, "runs/confirmed") && record.text(run, "confirmed") != "ran" &&
               record.text(run, "confirmed") != "";
    };
    return static_cast<int>(std::count_if(runs.begin(), runs.end(), failed));
}

}  // namespace ringlab::experiments
