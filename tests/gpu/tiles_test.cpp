// The tiles of work lists, in host memory. Needs no device.

#include "gpu/kernels/work_list.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>

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
BOOST_DATA_TEST_CASE(a_work_tile_lists_every_tile_with_a_visible_pair,
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
            std::set<std::pair<std::int64_t, std::int64_t>> seen, listed;  // query tile, key tile
            for (std::size_t row = 0; row < rows.size(); ++row)
                for (std::size_t key = 0; key < keys.size(); ++key)
                    if (mask.visible(rows[row], keys[key]))
                        seen.emplace(static_cast<std::int64_t>(row) / shape.rows,
                                     static_cast<std::int64_t>(key) / shape.keys);
            const auto tiles =
                gpu::find_tiles(mask, of_rows.runs, of_keys.runs, shape, major, gpu::EqualEntries::shared);
            for (const auto& [tile, begin, end, partial_end] : tiles.items)
                for (auto entry = begin; entry < end; ++entry) {
                    const auto other = tiles.entries[static_cast<std::size_t>(entry)] / 2;
                    listed.insert(major == Major::queries ? std::pair<std::int64_t, std::int64_t>(tile, other)
                                                          : std::pair<std::int64_t, std::int64_t>(other, tile));
                }
            BOOST_TEST(std::ranges::includes(listed, seen), "rows of rank " << owner << ", keys of rank " << keys_of);
        }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
