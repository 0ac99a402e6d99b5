#include "layouts/layouts/layout.hpp"

namespace ringlab::layouts {
namespace {

/// The sequence is cut into 2P chunks; rank r owns chunk r and chunk 2P-1-r, an early one and a late one, so that under
/// a causal mask every rank has the same number of visible pairs at every ring step.
Layout zigzag(const std::string&, std::int64_t tokens, int ranks) {
    const auto chunk = tokens / (2 * ranks);
    std::vector<std::vector<Run>> shards;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
        shards.push_back({{rank * chunk, 1, chunk}, {(2 * ranks - 1 - rank) * chunk, 1, chunk}});
    return {"zigzag", tokens, shards};
}

std::int64_t granularity_of_zigzag(const std::string& arguments, int ranks) {
    require(arguments.empty(), "layout zigzag takes no arguments, got '{}'", arguments);
    return 2 * std::int64_t{ranks};
}

const LayoutRegistration registered_zigzag("zigzag", "zigzag", "rank r owns chunks r and 2P-1-r of 2P chunks",
                                           {"zigzag"}, {granularity_of_zigzag, zigzag});

}  // namespace
}  // namespace ringlab::layouts
