#include "tests/layouts/cases.hpp"

#include "tests/layouts/mask_oracles.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>

namespace ringlab::layouts::testing {

const Names& mask_specs() {
    static const Names specs([] {
        auto all = mask_oracles::mask_examples(case_tokens);
        // What one of each does not show: windows at their limits, joins, ranks that are padding as a whole.
        for (const auto* more :
             {"window:5,0", "window:3,7", "window:0,0", "window:1000,1000", "causal+documents:7,20,13,1,30",
              "prefix:20+documents:5,30,36", "padded-segments:20/13,9/0,31,11/1", "window:6,0+sink:3",
              "causal+valid:0-50,60-70", "full+valid:5-20", "causal+valid:30-31",
              "causal+documents:10x7,1+window:4,0+sink:2+valid:1-70"})
            all.emplace_back(more);
        return all;
    });
    return specs;
}

const Names& layout_specs() {
    static const Names specs([] {
        auto all = ringlab::tests::layout_examples();
        all.insert(all.end(), {"shuffled", "sorted-shuffled"});
        return all;
    });
    return specs;
}

const std::vector<int>& rank_counts() {
    static const std::vector<int> counts{1, 2, 3, 4, 8};
    return counts;
}

Layout make_case_layout(const std::string& spec, const Mask& mask, int ranks) {
    const bool sorted = spec == "sorted-shuffled";
    if (spec != "shuffled" && !sorted) return make_layout(spec, mask, ranks);
    const auto tokens = mask.tokens();
    std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    std::mt19937_64 random(7);
    std::shuffle(positions.begin(), positions.end(), random);
    const auto per_rank = tokens / ranks;
    std::vector<std::vector<Run>> shards;
    for (int rank = 0; rank < ranks; ++rank) {
        const auto begin = positions.begin() + rank * per_rank;
        if (sorted) std::sort(begin, begin + per_rank);
        shards.push_back(runs_of({begin, begin + per_rank}));
    }
    return {spec, tokens, shards};
}

Case make_case(const std::string& mask_spec, const std::string& layout_spec, int ranks) {
    const bool shuffled = layout_spec.ends_with("shuffled");
    const auto tokens = ringlab::tests::padded_tokens(shuffled ? "contiguous" : layout_spec, case_tokens, ranks);
    auto mask = pad(make_mask(mask_spec, case_tokens), tokens);
    auto layout = make_case_layout(layout_spec, mask, ranks);
    return {std::move(mask), std::move(layout)};
}

Mask random_mask(std::mt19937_64& random, std::int64_t tokens) {
    const auto bound = [&] {
        return pick(random, 0, 1) ? Bound{pick(random, -tokens, 2 * tokens), 0}
                                  : Bound{pick(random, -tokens, tokens), 1};
    };
    std::vector<MaskSegment> segments;
    for (std::int64_t begin = 0; begin < tokens;) {
        const auto end = std::min(tokens, begin + pick(random, 1, tokens));
        const auto sink = pick(random, 0, 2) ? 0 : pick(random, 0, tokens + 3);
        segments.push_back({{begin, end}, bound(), bound(), sink});
        while (pick(random, 0, 2) == 0) segments.back().earlier.push_back({bound(), bound()});
        begin = end;
    }
    std::vector<Interval> valid;
    for (auto begin = pick(random, 0, 3) ? 0 : pick(random, 0, tokens - 1); begin < tokens;) {
        const auto end = std::min(tokens, begin + pick(random, 1, tokens));
        valid.push_back({begin, end});
        begin = end + pick(random, 0, 5);
    }
    return {"random", tokens, segments, valid};
}

std::int64_t row_that_breaks_the_invariants(const Mask& mask) {
    std::int64_t next_row = 0;
    for (const auto& segment : mask.segments()) {
        if (segment.rows.begin != next_row || segment.rows.size() == 0 || segment.sink < 0) return segment.rows.begin;
        next_row = segment.rows.end;
        const bool first_empty = segment.at(segment.rows.begin) == RowKeys{};
        for (auto row = segment.rows.begin; row < segment.rows.end; ++row) {
            const auto begin = segment.begin.at(row), end = segment.end.at(row);
            if (begin < 0 || begin > end || end > mask.tokens()) return row;
            const auto seen = mask.row(row);
            if (seen != segment.at(row)) return row;
            const bool empty = seen == RowKeys{};
            if (!empty && (seen.begin >= seen.end || seen.sink < 0 || seen.sink > seen.begin)) return row;
            auto behind = seen.sink;
            for (const auto& interval : seen.earlier) {
                if (interval.begin <= behind || interval.size() == 0) return row;
                behind = interval.end;
            }
            if (!seen.earlier.empty() && behind >= seen.begin) return row;
            for (const auto& range : segment.earlier)
                if (range.at(row).size() == 0) return row;
            if (empty != first_empty) return row;  // rows of a segment all see something or all see nothing
        }
    }
    return next_row == mask.tokens() ? -1 : next_row;
}

std::int64_t count_visible(const Mask& mask, const std::vector<std::int64_t>& rows,
                           const std::vector<std::int64_t>& keys) {
    std::int64_t count = 0;
    for (const auto row : rows)
        for (const auto key : keys) count += mask.visible(row, key);
    return count;
}

TextFile::TextFile(std::string_view text) {
    auto name = (std::filesystem::temp_directory_path() / "ringlab_test_XXXXXX").string();
    const int descriptor = mkstemp(name.data());
    if (descriptor < 0) throw std::runtime_error("cannot make a temporary file like " + name);
    close(descriptor);
    path_ = name;
    std::ofstream(path_, std::ios::binary) << text;
}

TextFile::~TextFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "(no error)";
}

std::int64_t pick(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

}  // namespace ringlab::layouts::testing
