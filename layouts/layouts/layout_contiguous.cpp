#include "layouts/layouts/layout.hpp"

namespace ringlab::layouts {
namespace {

Layout contiguous(const std::string&, std::int64_t tokens, int ranks) {
    const auto per_rank = tokens / ranks;
    std::vector<std::vector<Run>> shards;
    for (std::int64_t rank = 0; rank < ranks; ++rank) shards.push_back({{rank * per_rank, 1, per_rank}});
    return {"contiguous", tokens, shards};
}

std::int64_t granularity_of_contiguous(const std::string& arguments, int ranks) {
    require(arguments.empty(), "layout contiguous takes no arguments, got '{}'", arguments);
    return ranks;
}

const LayoutRegistration registered_contiguous("contiguous", "contiguous", "rank r owns one block of S/P tokens",
                                               {"contiguous"}, {granularity_of_contiguous, contiguous});

}  // namespace
}  // namespace ringlab::layouts
