// The tiles of work lists, in host memory. Needs no device.

#include "gpu/kernels/work_list.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::Major;

constexpr std::int64_t sequence = 1536;
constexpr int ring = 3;

/// A rank's positions, in ascending order or with the later runs first.
struct Shard {
    Shard(std::span<const layouts::Run> of_rank, bool backwards) : runs(of_rank.begin(), of_rank.end()) {
        if (backwards) std::ranges::reverse(runs);
        for (const auto& run : runs)
            for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.at(i));
    }

    std::vector<layouts::Run> runs;
    std::vector<std::int64_t> positions;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(tiles)

// Among them tiles whose rows see nothing, and tiles that are not in the order of their positions.
BOOST_DATA_TEST_CASE(a_work_tile_lists_once_every_tile_with_a_visible_pair_and_as_full_those_with_all,
                     data::make({"full", "causal", "window:31,17", "window:40,0+sink:4", "causal+valid:0-300,733-1201",
                                 "causal+documents:500,3,1,2,790,240", "documents:20x70,136"}) *
                         data::make({"contiguous", "zigzag", "striped", "balanced:4"}) *
                         data::make({Major::queries, Major::keys}) * data::make({false, true}),
                     mask_name, layout_name, major, backwards) {
    const auto mask = layouts::make_mask(mask_name, sequence);
    const auto layout = layouts::make_layout(layout_name, mask, ring);
    const gpu::TileShape shape{.rows = 32, .keys = 48};
    for (int owner = 0; owner < ring; ++owner)
        for (int keys_of = 0; keys_of < ring; ++keys_of) {
            const Shard of_rows(layout.shard(owner), backwards), of_keys(layout.shard(keys_of), backwards);
            const auto &rows = of_rows.positions, &keys = of_keys.positions;
            const auto columns = (keys.size() + 47) / 48;
            std::vector<int> seen((rows.size() + 31) / 32 * columns);  // visible pairs, by query tile and key tile
            for (std::size_t row = 0; row < rows.size(); ++row)
                for (std::size_t key = 0; key < keys.size(); ++key)
                    seen[row / 32 * columns + key / 48] += mask.visible(rows[row], keys[key]);
            auto tiles = gpu::find_tiles(mask, of_rows.runs, of_keys.runs, shape, major, gpu::EqualEntries::shared);
            gpu::longest_first(tiles.items);
            int wrong = 0, longest = std::numeric_limits<int>::max();
            constexpr int listed = -1;
            for (const auto& [tile, begin, end, partial_end] : tiles.items) {
                wrong += end - begin > std::exchange(longest, end - begin);
                for (auto at = begin; at < end; ++at) {
                    const auto entry = tiles.entries[static_cast<std::size_t>(at)];
                    const auto row = static_cast<std::size_t>(major == Major::queries ? tile : entry / 2);
                    const auto column = static_cast<std::size_t>(major == Major::queries ? entry / 2 : tile);
                    const auto pairs = std::exchange(seen.at(row * columns + column), listed);
                    const auto all = 48 * static_cast<int>(std::min<std::size_t>(32, rows.size() - 32 * row));
                    wrong += pairs == listed || (entry % 2 == 0 && pairs != all);
                }
            }
            wrong += static_cast<int>(std::ranges::count_if(seen, [](int pairs) { return pairs > 0; }));
            BOOST_TEST(wrong == 0, "rows of rank " << owner << ", keys of rank " << keys_of);
        }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
