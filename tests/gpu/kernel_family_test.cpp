#include "gpu/kernels/kernel_family.hpp"

#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/portable/shared_memory.hpp"
#include "gpu/kernels/work_list.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/unit_test.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::tests {
namespace {

using gpu::kernel_family;

BOOST_AUTO_TEST_SUITE(kernel_families)

BOOST_AUTO_TEST_CASE(families_have_their_names) {
    for (const auto* family : gpu::kernel_families()) BOOST_TEST((kernel_family(family->name()) == family));
    BOOST_TEST((kernel_family("auto") == nullptr));
    BOOST_CHECK_EXCEPTION(kernel_family("fast"), Error, [](const Error& error) {
        return std::string(error.what()) == "no kernels 'fast'; known: auto, hopper, portable";
    });
}

BOOST_AUTO_TEST_CASE(the_hopper_family_is_preferred_to_the_portable_one) {
    BOOST_TEST((gpu::kernel_families() == std::vector{kernel_family("hopper"), kernel_family("portable")}));
}

BOOST_AUTO_TEST_CASE(portable_kernels_take_every_dim_up_to_256) {
    for (const std::int64_t dim : {1, 64, 130, 256})
        BOOST_TEST(kernel_family("portable")->takes_dims(dim, 256 - dim + 1));
    BOOST_CHECK_THROW(kernel_family("portable")->takes_dims(257, 64), Error);
}

BOOST_AUTO_TEST_CASE(a_device_with_little_shared_memory_uses_the_next_class_of_dims_that_fits) {
    using gpu::DimClass;
    using gpu::portable::Kernel, gpu::portable::smallest_class;
    constexpr int a100 = 163 << 10, rtx = 99 << 10;
    BOOST_TEST((smallest_class(Kernel::backward, 128, 128, a100) == DimClass::d128));
    BOOST_TEST((smallest_class(Kernel::backward, 64, 64, rtx) == DimClass::d64));
    BOOST_TEST((smallest_class(Kernel::backward, 128, 128, rtx) == DimClass::d192_128));
    BOOST_TEST((smallest_class(Kernel::forward, 128, 128, rtx) == DimClass::d128));
    BOOST_TEST((smallest_class(Kernel::backward, 192, 192, rtx) == std::nullopt));
}

BOOST_AUTO_TEST_CASE(a_kernel_that_does_not_fit_is_refused_with_one_line) {
    BOOST_TEST(gpu::portable::refusal(gpu::portable::Kernel::backward, 256, 256, 99 << 10) ==
               "the portable backward kernel for head and value dims 256/256 needs 144.5 KiB of shared memory per "
               "thread block, and this device has 99 KiB: dims of at most 64/64 or 192/128 fit; or compute on CPUs");
}

BOOST_AUTO_TEST_CASE(hopper_kernels_take_dims_that_fill_16_bytes) {
    const auto has = [](std::int64_t head_dim, std::int64_t value_dim) {
        return kernel_family("hopper")->takes_dims(head_dim, value_dim);
    };
    for (const auto& [head, value] : {std::pair(64, 64), std::pair(8, 40), std::pair(128, 128), std::pair(192, 128),
                                      std::pair(200, 128), std::pair(256, 256)})
        BOOST_TEST(has(head, value));
    BOOST_TEST(!has(60, 64));
    BOOST_TEST(!has(64, 33));
}

// A row group is 16 rows of a kv head's query heads.
BOOST_AUTO_TEST_CASE(few_rows_and_batches_of_sequences_split_the_keys_and_long_suffixes_do_not) {
    const auto plan = [](std::int64_t tokens, double per_key, std::int64_t group,
                         layouts::Pass pass = layouts::Pass::forward) {
        return kernel_family("hopper")->plan({.pass = pass, .query_heads_per_kv_head = group}, {tokens, per_key});
    };
    BOOST_TEST(plan(16, 16, 4).splits_kv);
    BOOST_TEST(!plan(17, 17, 4).splits_kv);
    BOOST_TEST(plan(256, 4, 4).splits_kv);  // 64 sequences of 4 rows
    BOOST_TEST(!plan(257, 4, 4).splits_kv);
    BOOST_TEST(!plan(16, 16, 4, layouts::Pass::backward).splits_kv);
    BOOST_TEST(!kernel_family("hopper")->plan({.drops_out = true}, {1, 1}).splits_kv);
    for (const auto& [group, tile_tokens] : {std::pair(1, 16), {3, 5}, {4, 4}, {16, 1}, {128, 1}})
        BOOST_TEST(plan(16, 16, group).tile.rows == tile_tokens);
    // A work tile has rows of one sequence.
    for (const auto& [per_key, tile_tokens] : {std::pair(0.3, 1), {1.0, 1}, {1.99, 2}, {2.99, 3}, {4.0, 4}, {9.0, 4}})
        BOOST_TEST(plan(64, per_key, 4).tile.rows == tile_tokens);
}

// Two rows, of the first and the last of eight sequences of two key tiles each.
BOOST_AUTO_TEST_CASE(rows_compared_one_by_one_leave_out_the_sequences_between_them) {
    const auto mask = layouts::make_mask("causal+documents:256x8", 2048);
    const std::vector<layouts::Run> rows{{255, 1, 1}, {2047, 1, 1}}, keys{{0, 1, 2048}};
    const auto tiles_of = [&](std::span<const layouts::Run> queries, gpu::RowsOfTile compared) {
        return gpu::find_tiles(mask, queries, keys, {.rows = 4, .keys = 128}, gpu::Major::queries,
                               gpu::EqualEntries::shared, compared);
    };
    BOOST_TEST(tiles_of(rows, gpu::RowsOfTile::together).partial == 16);
    const auto apart = tiles_of(rows, gpu::RowsOfTile::apart);
    BOOST_TEST(apart.items.size() == 1u);
    BOOST_TEST(apart.entries == (std::vector<std::int32_t>{1, 3, 29, 31}), boost::test_tools::per_element());
    BOOST_TEST(apart.partial == 4);
    // Rows that see all of the same tiles.
    const std::vector<layouts::Run> of_one{{254, 1, 2}};
    BOOST_TEST(tiles_of(of_one, gpu::RowsOfTile::apart).full == 1);  // row 254 does not see key 255
    BOOST_TEST(tiles_of(of_one, gpu::RowsOfTile::apart).partial == 1);
}

// An H200 has 132 SMs, of which clusters of 4 and 8 reach 120.
BOOST_AUTO_TEST_CASE(thread_blocks_share_row_groups_that_are_few_or_differ_in_length) {
    const auto blocks = [](std::int64_t row_groups, std::int64_t entries, std::int64_t longest) {
        const std::vector<layouts::SmGroup> choices{{1, 132}, {2, 66}, {4, 30}, {8, 15}};
        return gpu::hopper::blocks_per_row_group({row_groups, entries, longest}, choices);
    };
    BOOST_TEST(blocks(8, 8 * 512, 512) == 8);
    BOOST_TEST(blocks(16, 16 * 512, 512) == 4);    // one more than clusters of 8 at a time
    BOOST_TEST(blocks(128, 128 * 64, 64) == 1);    // 16 sequences of 8Ki tokens
    BOOST_TEST(blocks(128, 128 * 256, 512) == 8);  // half as long as the longest on average
    BOOST_TEST(blocks(1280, 1280 * 64, 64) == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
