#include "gpu/kernels/work_list.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/hopper/few_rows/few_rows.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/tiling/work_tile_order.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace ringlab::gpu {
namespace {

using layouts::KeyTile;
using layouts::Mask;
using layouts::RowHull;
using layouts::Run;
using layouts::TileKind;

// A position that no row's interval reaches.
constexpr std::int32_t unseen = std::numeric_limits<std::int32_t>::max();

// Arrays per row or key go on for this many after the last, at least every tile side, so that kernels need no bounds
// check.
constexpr std::int64_t padding = 256;

constexpr std::size_t counters = 16;

void require_small_enough(const Mask& mask) {
    require(mask.tokens() < unseen, "mask {} over {} tokens: the kernels hold positions in 32 bits, so fewer than {}",
            mask.name(), mask.tokens(), unseen);
}

/// As layouts::classify, but a key tile that ends before the tile's width counts as partial: its last columns are not
/// keys.
TileKind classify(const RowHull& rows, const KeyTile& keys, std::int64_t tile_keys) {
    const auto kind = layouts::classify(rows, keys);
    return kind == TileKind::full && keys.end - keys.begin < tile_keys ? TileKind::partial : kind;
}

WorkList::Options resolved(WorkList::Options options) {
    options.family = resolve(options.family, options.head_dim, options.value_dim);
    return options;
}

bool has_few_rows(const WorkList::Options& options, const RowBounds& rows) {
    return options.pass == layouts::Pass::forward && options.family == KernelFamily::hopper &&
           rows.tokens() <= hopper::few_rows;
}

/// Of the kernel that does the pass, or most of it.
TileShape tile_of(const WorkList::Options& options, const RowBounds& rows) {
    const auto dims = dim_class(options.head_dim, options.value_dim);
    if (has_few_rows(options, rows)) return hopper::few_rows_tile(dims);
    return options.pass == layouts::Pass::forward ? forward_tile(dims, options.family)
                                                  : backward_tile(dims, options.family);
}

/// Points `item` at the entries of `before`, if they are the same.
bool share_entries(std::array<std::int32_t, 4>& item, const std::array<std::int32_t, 4>& before,
                   std::span<const std::int32_t> entries) {
    const auto of = [&](const auto& which) {
        return entries.subspan(static_cast<std::size_t>(which[1]), static_cast<std::size_t>(which[2] - which[1]));
    };
    if (!std::ranges::equal(of(item), of(before))) return false;
    std::copy(before.begin() + 1, before.end(), item.begin() + 1);
    return true;
}

}  // namespace

std::int64_t count_tokens(std::span<const Run> runs) {
    std::int64_t tokens = 0;
    for (const auto& run : runs) tokens += run.count;
    return tokens;
}

RowBounds::RowBounds(const Mask& mask, std::span<const Run> queries)
    : runs_(queries.begin(), queries.end()), tokens_(count_tokens(queries)) {
    require_small_enough(mask);
    std::vector<std::array<std::int32_t, 4>> bounds(static_cast<std::size_t>(tokens_ + padding));
    auto next = bounds.begin();
    for (const auto& run : runs_)
        for (std::int64_t i = 0; i < run.count; ++i) {
            const auto row = mask.row(run.at(i));
            if (!row.earlier.empty())
                fail(
                    "mask {}: row {} sees keys {} to {} and {} to {}, and none between; kernels of GPUs know one "
                    "interval of keys and the first keys: say --backend cpu, or leave out one of the joined masks",
                    mask.name(), run.at(i), row.earlier.back().begin, row.earlier.back().end - 1, row.begin,
                    row.end - 1);
            *next++ = {static_cast<std::int32_t>(row.begin), static_cast<std::int32_t>(row.end),
                       static_cast<std::int32_t>(row.sink), static_cast<std::int32_t>(run.at(i))};
        }
    device_ = uploaded(bounds);
}

std::vector<std::int32_t> key_positions(const Mask& mask, std::span<const Run> keys, std::int64_t places) {
    require_small_enough(mask);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(places), unseen);
    auto next = positions.begin();
    for (const auto& run : keys)
        for (std::int64_t i = 0; i < run.count; ++i) {
            const auto key = run.at(i);
            *next++ = mask.key_is_valid(key) ? static_cast<std::int32_t>(key) : unseen;
        }
    return positions;
}

KeyPositions::KeyPositions(const Mask& mask, std::span<const Run> keys)
    : runs_(keys.begin(), keys.end()),
      tokens_(count_tokens(keys)),
      device_(uploaded(key_positions(mask, keys, tokens_ + padding))) {}

Tiles find_tiles(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, TileShape shape,
                 Major major, EqualEntries equal) {
    const auto rows = layouts::row_hulls(mask, queries, shape.rows);
    const auto columns = layouts::key_tiles(mask, keys, shape.keys);
    const bool by_query = major == Major::queries;
    const auto own = by_query ? rows.size() : columns.size();
    const auto other = by_query ? columns.size() : rows.size();

    Tiles tiles;
    tiles.other_side = static_cast<std::int64_t>(other);
    auto& entries = tiles.entries;
    for (std::size_t i = 0; i < own; ++i) {
        const auto begin = entries.size();
        for (std::size_t j = 0; j < other; ++j) {
            const auto kind = classify(rows[by_query ? i : j], columns[by_query ? j : i], shape.keys);
            if (kind == TileKind::empty) continue;
            const bool is_partial = kind == TileKind::partial;
            (is_partial ? tiles.partial : tiles.full) += 1;
            entries.push_back(static_cast<std::int32_t>(2 * j + is_partial));
        }
        require(entries.size() < static_cast<std::size_t>(unseen),
                "a work list of more than {} tile pairs: use fewer tokens per rank", unseen);
        auto partial_end = entries.begin() + static_cast<std::ptrdiff_t>(begin);
        if (by_query)
            partial_end =
                std::stable_partition(partial_end, entries.end(), [](std::int32_t entry) { return entry % 2 != 0; });
        std::array<std::int32_t, 4> item{static_cast<std::int32_t>(i), static_cast<std::int32_t>(begin),
                                         static_cast<std::int32_t>(entries.size()),
                                         static_cast<std::int32_t>(partial_end - entries.begin())};
        if (equal == EqualEntries::shared && !tiles.items.empty() && share_entries(item, tiles.items.back(), entries))
            entries.resize(begin);
        tiles.items.push_back(item);
    }
    return tiles;
}

void longest_first(std::span<std::array<std::int32_t, 4>> items) {
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return a[2] - a[1] > b[2] - b[1]; });
}

bool fall_linearly(std::span<const std::array<std::int32_t, 4>> items, std::span<const std::int32_t> entries) {
    std::vector<layouts::WorkTileReach> reaches;
    for (const auto& [tile, begin, end, partial_end] : items)
        reaches.push_back({end - begin, entries[static_cast<std::size_t>(end) - 1] / 2});
    return layouts::fall_linearly(reaches);
}

/// A cluster of blocks needs multiprocessors that lie together, so a few stay idle beside larger ones, and a launch
/// that just does not fit takes twice as long.
int blocks_per_item(const layouts::BackwardLoad& load) {
    int device = 0, multiprocessors = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    std::vector<layouts::SmGroup> groups;
    for (const int blocks : {2, 4, 8})
        if (const int clusters = clusters_at_a_time(blocks)) groups.push_back({blocks, clusters});
    return static_cast<int>(layouts::choose_sm_group(load, multiprocessors, groups).sms);
}

TileList::TileList(const Mask& mask, std::span<const Run> queries, std::span<const Run> keys, TileShape shape,
                   Major major, bool with_turns) {
    auto [items, entries, full, partial, other] =
        find_tiles(mask, queries, keys, shape, major, with_turns ? EqualEntries::apart : EqualEntries::shared);
    full_ = full;
    partial_ = partial;
    longest_first(items);
    items_ = static_cast<std::int64_t>(items.size());
    if (!items.empty()) longest_ = items.front()[2] - items.front()[1];
    busy_items_ = std::count_if(items.begin(), items.end(), [](const auto& item) { return item[2] > item[1]; });
    fall_evenly_ = gpu::fall_linearly(std::span(items).first(static_cast<std::size_t>(busy_items_)), entries);
    items_device_ = uploaded(items);
    entries_device_ = uploaded(entries);
    if (!with_turns) return;
    std::vector<std::int32_t> turns(entries.size()), taken(static_cast<std::size_t>(other));
    for (const auto& item : items)
        for (auto e = item[1]; e < item[2]; ++e)
            turns[static_cast<std::size_t>(e)] =
                taken[static_cast<std::size_t>(entries[static_cast<std::size_t>(e)] / 2)]++;
    turns_device_ = uploaded(turns);
}

std::int64_t TileList::device_bytes() const {
    std::size_t bytes = 0;
    for (const auto* buffer : {&items_device_, &entries_device_, &turns_device_}) bytes += buffer->bytes();
    return static_cast<std::int64_t>(bytes);
}

WorkList::WorkList(const Mask& mask, std::shared_ptr<const RowBounds> rows, std::shared_ptr<const KeyPositions> keys,
                   const Options& options)
    : rows_(std::move(rows)),
      keys_(std::move(keys)),
      options_(resolved(options)),
      tiles_(
          mask, rows_->runs(), keys_->runs(), tile_of(options_, *rows_),
          options.pass == layouts::Pass::forward ? TileList::Major::queries : TileList::Major::keys,
          options.pass == layouts::Pass::backward && options.deterministic && options_.family == KernelFamily::hopper) {
    if (options.pass == layouts::Pass::backward && options.deterministic && options_.family == KernelFamily::portable)
        query_tiles_ = std::make_unique<TileList>(mask, rows_->runs(), keys_->runs(),
                                                  backward_query_tile(dim_class(options.head_dim, options.value_dim)),
                                                  TileList::Major::queries);
    if (options_.family == KernelFamily::hopper) counters_ = uploaded(std::vector<std::uint32_t>(counters));
}

bool WorkList::has_few_rows() const { return gpu::has_few_rows(options_, *rows_); }

std::uint32_t* WorkList::next_counter() const {
    return counters_.as<std::uint32_t>() + launches_.fetch_add(1, std::memory_order_relaxed) % counters;
}

}  // namespace ringlab::gpu
