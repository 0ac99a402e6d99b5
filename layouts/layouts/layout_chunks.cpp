#include "layouts/layouts/layout.hpp"

namespace ringlab::layouts {
namespace {

Layout contiguous(const std::string&, std::int64_t tokens, int ranks) {
    const auto per_rank = tokens / ranks;
    std::vector<std::vector<Run>> shards;
    for (std::int64_t rank = 0; rank < ranks; ++rank) shards.push_back({{rank * per_rank, 1, per_rank}});
    return {"contiguous", tokens, shards};
}

/// The sequence is cut into 2P chunks; rank r owns chunk r and chunk 2P-1-r, an early one and a late one, so that under
/// a causal mask every rank has the same number of visible pairs at every ring step.
Layout zigzag(const std::string&, std::int64_t tokens, int ranks) {
    const auto chunk = tokens / (2 * ranks);
    std::vector<std::vector<Run>> shards;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
        shards.push_back({{rank * chunk, 1, chunk}, {(2 * ranks - 1 - rank) * chunk, 1, chunk}});
    return {"zigzag", tokens, shards};
}

std::int64_t width_of(const std::string& arguments) {
    return arguments.empty() ? 1 : parse_count(arguments, "the stripe width", 1);
}

/// Rank r owns every token t with (t / width) % ranks == r (Brandon et al. 2023, arXiv 2311.09431, for width 1).
Layout striped(const std::string& arguments, std::int64_t tokens, int ranks) {
    const auto width = width_of(arguments), period = width * ranks;
    constexpr std::int64_t most_runs = std::int64_t{1} << 24;
    require(width == 1 || tokens / width <= most_runs,
            "stripes of width {} cut {} tokens into {} runs; at most {} are supported, use wider stripes (or width 1)",
            width, tokens, tokens / width, most_runs);
    std::vector<std::vector<Run>> shards(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        auto& runs = shards[static_cast<std::size_t>(rank)];
        if (width == 1)
            runs.push_back({rank, ranks, tokens / ranks});
        else
            for (auto first = rank * width; first < tokens; first += period) runs.push_back({first, 1, width});
    }
    return {"striped" + (width == 1 ? "" : ":" + std::to_string(width)), tokens, shards};
}

std::int64_t granularity_of_striped(const std::string& arguments, int ranks) {
    const auto width = width_of(arguments);
    require(width <= (std::int64_t{1} << 40) / ranks, "the stripe width {} is too large for {} ranks", width, ranks);
    return width * ranks;
}

const LayoutRegistration registered_contiguous(
    {"contiguous", "rank r owns one block of S/P tokens", {.make = contiguous}, {"contiguous"}});

const LayoutRegistration registered_zigzag(
    {"zigzag",
     "rank r owns chunks r and 2P-1-r of 2P chunks",
     {.make = zigzag, .granularity = [](const std::string&, int ranks) { return 2 * std::int64_t{ranks}; }},
     {"zigzag"}});

const LayoutRegistration registered_striped({"striped[:WIDTH]",
                                             "tokens go to the ranks in turn, WIDTH at a time (1)",
                                             {.make = striped, .granularity = granularity_of_striped},
                                             {"striped", "striped:3"}});

}  // namespace
}  // namespace ringlab::layouts
