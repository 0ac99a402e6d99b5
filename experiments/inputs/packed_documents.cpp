#include "experiments/inputs/packed_documents.hpp"

#include "experiments/inputs/inputs_random.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/text_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <sstream>

namespace ringlab::experiments {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

}  // namespace

std::vector<std::int64_t> drawn_packing(const std::vector<std::int64_t>& lengths, std::int64_t tokens,
                                        std::uint64_t seed, std::uint32_t number) {
    constexpr std::uint32_t stream = 64;  // apart from those of inputs
    std::vector<std::int64_t> drawn;
    for (std::uint32_t i = 0; tokens > 0; ++i) {
        const auto place = random_bits(seed, {stream, number, 0, i, 0}) % lengths.size();
        drawn.push_back(std::min(lengths[place], tokens));
        tokens -= drawn.back();
    }
    return drawn;
}

std::int64_t Batch::tokens_per_packing() const { return packings.empty() ? 0 : sum_of(packings.front()); }

std::vector<std::int64_t> Batch::lengths() const {
    std::vector<std::int64_t> all;
    for (const auto& packing : packings) all.insert(all.end(), packing.begin(), packing.end());
    return all;
}

Batch read_batch(const std::string& path) {
    constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
    Batch batch;
    std::istringstream lines(layouts::read_text(path, "batch file"));
    for (std::string line; std::getline(lines, line);) {
        const auto where = fmt::format("batch file '{}' line {}", path, batch.packings.size() + 1);
        require(line.find_first_not_of(", \t\r") != std::string::npos,
                "{} is empty; each line has the lengths of a packing's documents, such as 512,300,128x4", where);
        require(line.find('@') == std::string::npos, "{} names another file by '@'; write the lengths themselves",
                where);
        batch.packings.push_back(layouts::parse_lengths(line, where + ": document length"));
        const auto& lengths = batch.packings.back();
        require(std::ranges::max(lengths) <= most_tokens && sum_of(lengths) <= most_tokens,
                "{} has more than 2^31 tokens", where);
        require(sum_of(lengths) == batch.tokens_per_packing(),
                "{} has {} tokens, line 1 has {}; all packings of a batch have equally many", where, sum_of(lengths),
                batch.tokens_per_packing());
    }
    require(!batch.packings.empty(), "batch file '{}' is empty; give a line with document lengths for each packing",
            path);
    return batch;
}

Batch drawn_batch(const std::vector<std::int64_t>& lengths, std::int64_t tokens, int packings, std::uint64_t seed,
                  std::uint32_t number) {
    Batch batch;
    for (int i = 0; i < packings; ++i)
        batch.packings.push_back(drawn_packing(
            lengths, tokens, seed, number * static_cast<std::uint32_t>(packings) + static_cast<std::uint32_t>(i)));
    return batch;
}

std::string packed_mask(const std::string& mask, const std::vector<std::int64_t>& lengths) {
    return fmt::format("{}+documents:{}", mask, fmt::join(lengths, ","));
}

}  // namespace ringlab::experiments
