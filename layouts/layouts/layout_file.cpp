#include "layouts/basics/text_file.hpp"
#include "layouts/layouts/layout.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <functional>
#include <sstream>

namespace ringlab::layouts {
namespace {

/// Reads a permutation of 0..tokens-1, separated by blanks, from a text file. Rank 0 owns the positions given by the
/// first tokens/ranks numbers, in this local order, rank 1 the next ones, and so on. Lines mean nothing, but as many of
/// them as there are ranks were meant as shards, so they must be equally long.
Layout from_file(const std::string& path, std::int64_t tokens, int ranks) {
    std::istringstream file(read_text(path, "a permutation from file"));
    std::vector<std::int64_t> line_lengths;
    std::vector<std::int64_t> positions;
    std::vector<bool> seen(static_cast<std::size_t>(tokens));
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        const auto before = positions.size();
        for (std::string word; words >> word;) {
            positions.push_back(parse_count(word, "a position in '" + path + "'", 0));
            require(static_cast<std::int64_t>(positions.size()) <= tokens && positions.back() < tokens,
                    "permutation '{}' holds position {} as number {}; it must be a permutation of 0..{}", path,
                    positions.back(), positions.size(), tokens - 1);
            auto&& seen_before = seen[static_cast<std::size_t>(positions.back())];
            require(!seen_before, "permutation '{}' holds position {} twice; it must be a permutation of 0..{}", path,
                    positions.back(), tokens - 1);
            seen_before = true;
        }
        if (positions.size() > before) line_lengths.push_back(static_cast<std::int64_t>(positions.size() - before));
    }
    require(static_cast<std::int64_t>(positions.size()) == tokens,
            "permutation '{}' holds {} positions; the sequence has {} tokens", path, positions.size(), tokens);
    require(static_cast<int>(line_lengths.size()) != ranks ||
                std::ranges::adjacent_find(line_lengths, std::not_equal_to{}) == line_lengths.end(),
            "permutation '{}' has lines of {} positions for {} ranks; every rank owns {}", path,
            fmt::join(line_lengths, ", "), ranks, tokens / ranks);
    const auto per_rank = static_cast<std::size_t>(tokens / ranks);
    std::vector<std::vector<Run>> shards;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
        shards.push_back(runs_of(std::span(positions).subspan(rank * per_rank, per_rank)));
    return {"file:" + path, tokens, shards};
}

std::int64_t granularity_of_file(const std::string& arguments, int ranks) {
    require(!arguments.empty(), "layout file needs a path, as in file:permutation.txt");
    return ranks;
}

const LayoutRegistration registered_file({"file:PATH",
                                          "any permutation of the tokens, from a text file",
                                          {.make = from_file, .granularity = granularity_of_file}});

}  // namespace
}  // namespace ringlab::layouts
