#include "experiments/execution/machine_fault.hpp"

#include "experiments/options/values.hpp"
#include "layouts/basics/require.hpp"
#include "processes/session.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <thread>

namespace ringlab::experiments {
namespace {

/// Seconds of the shortest attend that is compared: in shorter ones cold caches are a large part.
constexpr double shortest = 2e-4;

/// Seconds of the quickest attend to so many pairs.
using Quickest = std::map<std::int64_t, double>;

void note_attends(const layouts::Timeline& timeline, std::vector<Quickest>& of_rank) {
    of_rank.resize(static_cast<std::size_t>(timeline.ranks));
    for (const auto& span : timeline.spans) {
        if (span.kind != layouts::OpKind::attend || span.busy <= 0) continue;
        const auto seconds = layouts::to_seconds(span.busy);
        const auto [known, is_new] = of_rank[static_cast<std::size_t>(span.rank)].try_emplace(span.pair_count, seconds);
        if (!is_new) known->second = std::min(known->second, seconds);
    }
}

/// The smallest factor by which a rank is slower than the median of the others, over all attends that they have in
/// common; 0 if there are none.
double slowness(const std::vector<Quickest>& of_rank, std::size_t rank) {
    double least = 0;
    for (const auto& [pair_count, seconds] : of_rank[rank]) {
        std::vector<double> others;
        for (std::size_t other = 0; other < of_rank.size(); ++other)
            if (const auto found = of_rank[other].find(pair_count); other != rank && found != of_rank[other].end())
                others.push_back(found->second);
        // The half of the others at least.
        if (others.empty() || 2 * others.size() < of_rank.size() - 1) continue;
        const auto typical = median(std::move(others));
        if (typical < shortest) continue;
        const auto factor = seconds / typical;
        least = least == 0 ? factor : std::min(least, factor);
    }
    return least;
}

}  // namespace

std::optional<MachineFault> parse_machine_fault(const std::string& text, int world) {
    if (text.empty()) return {};
    using Kind = MachineFault::Kind;
    static const std::map<std::string, Kind> kinds{{"slow", Kind::slow}, {"stop", Kind::stop}, {"kill", Kind::kill}};
    const auto spec = layouts::Spec::parse(text);
    const auto kind = kinds.find(spec.name);
    require(kind != kinds.end(), "--fault {}: there are slow:RANK, stop:RANK and kill:RANK", text);
    const auto rank = layouts::parse_count(spec.arguments, "the rank of --fault", 0);
    require(rank < world, "--fault {}: ranks are 0..{}", text, world - 1);
    return MachineFault{kind->second, static_cast<int>(rank)};
}

void strike_soon(const MachineFault& fault) {
    if (processes::Session::current().rank() != fault.rank) return;
    std::thread([fault] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const bool stops = fault.kind == MachineFault::Kind::stop;
        const auto text = fmt::format("{}rank {} {} itself\n", struck_text, fault.rank, stops ? "stops" : "kills");
        [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
        raise(stops ? SIGSTOP : SIGKILL);
    }).detach();
}

std::optional<SlowRank> slow_rank(const std::vector<RingRun>& rings) {
    constexpr double least = 2;
    SlowRank slowest;
    for (std::size_t replica = 0; replica < rings.size(); ++replica)
        for (const auto* pass : {&rings[replica].forward, &rings[replica].backward}) {
            std::vector<Quickest> of_rank;
            for (const auto& timeline : pass->timelines) note_attends(timeline, of_rank);
            for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
                if (const auto factor = slowness(of_rank, rank); factor > slowest.factor)
                    slowest = {static_cast<int>(replica), static_cast<int>(rank), factor};
        }
    return slowest.factor >= least ? std::optional(slowest) : std::nullopt;
}

}  // namespace ringlab::experiments
