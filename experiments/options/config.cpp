#include "experiments/options/config.hpp"

#include "experiments/options/values.hpp"
#include "layouts/basics/text_file.hpp"

#include <fmt/format.h>

#include <sstream>

namespace ringlab::experiments {

void say_notes(const std::vector<std::string>& notes) {
    for (const auto& note : notes) fmt::print(stderr, "[note] {}\n", note);
}

layouts::RingGroup ring_group(const ExecutionConfig& config, int ranks) {
    using Placement = layouts::RingGroup::Placement;
    return {ranks, config.replicas, config.placement == "consecutive" ? Placement::consecutive : Placement::strided};
}

std::vector<int> gpu_placement(const ExecutionConfig& config, int ranks) {
    const auto spec = layouts::Spec::parse(config.placement);
    if (spec.name != "file") {
        if (parse_choice(config.placement, "--placement", {"consecutive", "strided", "file:PATH"}) == 0) return {};
        const auto group = ring_group(config, ranks);
        std::vector<int> gpus;
        for (int replica = 0; replica < group.replicas; ++replica)
            for (int rank = 0; rank < ranks; ++rank) gpus.push_back(group.global_rank(replica, rank));
        return gpus;
    }
    std::istringstream file(layouts::read_text(spec.arguments, "a placement from file"));
    std::vector<int> gpus;
    const auto wanted = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(config.replicas);
    for (std::string word; file >> word && gpus.size() <= wanted;) {
        const auto gpu = layouts::parse_count(word, "a GPU in '" + spec.arguments + "'", 0);
        require(gpu < 1 << 30, "placement '{}' holds GPU {}; numbers must be below 2^30", spec.arguments, gpu);
        gpus.push_back(static_cast<int>(gpu));
    }
    require(gpus.size() == wanted, "placement '{}' holds {} GPUs; {} rings of {} ranks need {}", spec.arguments,
            gpus.size() > wanted ? "more" : fmt::format("{}", gpus.size()), config.replicas, ranks, wanted);
    return gpus;
}

bool PredictionConfig::disturbs() const {
    return jitter.slow_gpus > 0 || jitter.slow_links > 0 || jitter.compute_noise > 0 || jitter.transfer_noise > 0 ||
           start_skew_us > 0;
}

sim::Jitter PredictionConfig::disturbance(std::uint64_t seed) const {
    auto all = jitter;
    all.seed = seed;
    all.start_skew_seconds = start_skew_us * 1e-6;
    return all;
}

}  // namespace ringlab::experiments
