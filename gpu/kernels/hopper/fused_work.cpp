#include "gpu/kernels/hopper/fused_work.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/driver.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/hopper/common/tensor_map.hpp"
#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "layouts/basics/counts.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

namespace ringlab::gpu::hopper {
namespace {

using layouts::Mask;
using layouts::Pass;

Elements gradient(const View& view) {
    const auto is_even = [](std::int64_t number) { return number % 2 == 0; };
    const auto elements = reinterpret_cast<std::intptr_t>(view.data) / layouts::bytes_of(view.dtype);
    return {
        view.data, view.dtype, view.strides,
        is_even(elements) && is_even(view.strides.batch) && is_even(view.strides.token) && is_even(view.strides.head)};
}

}  // namespace

/// The keys of all blocks, one segment after the other. Blocks of several head groups with the same keys share a
/// segment.
struct HopperFusedWork::KeySegments {
    TileShape tile;
    std::vector<int> owners;                          // by segment
    std::vector<std::span<const layouts::Run>> keys;  // by segment
    std::vector<std::int32_t> first_tile;             // by segment
    std::vector<std::size_t> of_block;                // segment by block
    std::vector<std::int32_t> positions;              // of all keys, each segment filled up to whole tiles

    KeySegments(const Mask& mask, std::span<const FusedBlock> blocks, TileShape shape) : tile(shape) {
        for (const auto& block : blocks) {
            const auto segment = size(std::find(owners.begin(), owners.end(), block.owner) - owners.begin());
            of_block.push_back(segment);
            if (segment < owners.size()) continue;
            owners.push_back(block.owner);
            keys.push_back(block.keys);
            first_tile.push_back(static_cast<std::int32_t>(positions.size()) / tile.keys);
            const auto tiles = (count_tokens(block.keys) + tile.keys - 1) / tile.keys;
            const auto own = key_positions(mask, block.keys, tiles * tile.keys);
            positions.insert(positions.end(), own.begin(), own.end());
        }
    }
};

HopperFusedWork::HopperFusedWork(const Mask& mask, std::shared_ptr<const RowBounds> rows,
                                 std::span<const FusedBlock> blocks, const FusedOptions& options)
    : rows_(std::move(rows)), options_(options), blocks_(blocks.begin(), blocks.end()) {
    const auto& list = options_.list;
    const auto& family = resolve(list.family, list.head_dim, list.value_dim);
    require(family.can_fuse(), "fused attends with kernels {}: they cannot do several blocks in one launch",
            family.name());
    require(!blocks_.empty(), "a fused launch of no block");
    require(options_.block_heads >= 1 && options_.shape.kv_heads % options_.block_heads == 0,
            "blocks of {} kv heads each do not make {}", options_.block_heads, options_.shape.kv_heads);
    groups_ = static_cast<int>(options_.shape.kv_heads / options_.block_heads);
    const bool forward = list.pass == Pass::forward;
    const KeySegments segments(mask, blocks_, family.work_tiles(list.pass, list.head_dim, list.value_dim).tile);
    positions_ = uploaded(segments.positions, *options_.list.memory);
    late_block_ = options_.list.memory->host_word();
    late_ = uploaded(std::vector<std::uint32_t>(1), *options_.list.memory);
    ready_ = uploaded(std::vector<std::uint32_t>(2 * blocks_.size()),
                      *options_.list.memory);  // blocks, then their gradients
    ended_ = uploaded(std::vector<std::uint32_t>(blocks_.size()), *options_.list.memory);
    counter_ = uploaded(std::vector<std::uint32_t>(1), *options_.list.memory);
    forward ? list_query_tiles(mask, segments) : list_key_tiles(mask, segments);
    make_table(segments);
    for (const auto* buffer :
         {&positions_, &items_device_, &first_parts_, &entries_device_, &semaphore_values_, &table_})
        device_bytes_ += static_cast<std::int64_t>(buffer->bytes());
}

/// Forward: each query tile has an item for each block of which it sees something, in the order of the blocks.
void HopperFusedWork::list_query_tiles(const Mask& mask, const KeySegments& segments) {
    std::vector<Tiles> of_segment;
    for (const auto& keys : segments.keys)
        of_segment.push_back(
            find_tiles(mask, rows_->runs(), keys, segments.tile, Major::queries, EqualEntries::shared));
    // The segments of each head group's blocks, in order: the same for all groups.
    std::map<int, std::vector<std::size_t>> order;
    for (std::size_t i = 0; i < blocks_.size(); ++i) order[blocks_[i].first_head].push_back(segments.of_block[i]);
    require(static_cast<int>(order.size()) == groups_ &&
                std::all_of(order.begin(), order.end(),
                            [&](const auto& group) { return group.second == order.begin()->second; }),
            "a fused forward launch wants the same blocks in the same order for each of {} head groups", groups_);
    const auto& sequence = order.begin()->second;
    table_row_.resize(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i)
        table_row_[i] =
            size(std::find(sequence.begin(), sequence.end(), segments.of_block[i]) - sequence.begin()) * size(groups_) +
            size(blocks_[i].first_head / options_.block_heads);

    const auto tiles = of_segment.front().items.size();
    constexpr std::size_t most = 65536;
    require(tiles < most && sequence.size() < most / 2, "{} query tiles and {} blocks in a fused launch: at most {}",
            tiles, sequence.size(), most / 2);
    std::vector<std::int64_t> total(tiles);
    for (const auto& part : of_segment)
        for (std::size_t tile = 0; tile < tiles; ++tile) total[tile] += part.items[tile][2] - part.items[tile][1];
    std::vector<std::size_t> longest_first(tiles);
    std::iota(longest_first.begin(), longest_first.end(), 0u);
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](std::size_t a, std::size_t b) { return total[a] > total[b]; });

    std::vector<std::array<std::int32_t, 4>> items;
    std::vector<std::int32_t> entries, first_parts{0};
    struct Copied {
        std::int32_t from = -1, end = -1, to = 0;
    };
    std::vector<Copied> copied(sequence.size());  // entries that items share stay shared
    for (const auto tile : longest_first) {
        for (std::size_t place = 0; place < sequence.size(); ++place) {  // of a block in the sequence
            const auto& part = of_segment[sequence[place]];
            const auto& item = part.items[tile];
            // A query tile that sees nothing at all has one item without entries.
            if (item[1] == item[2] && (total[tile] > 0 || place > 0)) continue;
            auto& [from, end, begin] = copied[place];
            if (from != item[1] || end != item[2]) {
                from = item[1];
                end = item[2];
                begin = static_cast<std::int32_t>(entries.size());
                for (auto e = item[1]; e < item[2]; ++e)
                    entries.push_back(part.entries[size(e)] + 2 * segments.first_tile[sequence[place]]);
            }
            entries_ += item[2] - item[1];
            items.push_back({static_cast<std::int32_t>(tile + most * place), begin, begin + item[2] - item[1],
                             begin + item[3] - item[1]});
        }
        first_parts.push_back(static_cast<std::int32_t>(items.size()));
    }
    work_tiles_ = static_cast<std::int64_t>(tiles);
    if (tiles > 0) longest_ = total[longest_first.front()];
    items_device_ = uploaded(items, *options_.list.memory);
    first_parts_ = uploaded(first_parts, *options_.list.memory);
    entries_device_ = uploaded(entries, *options_.list.memory);
}

/// Backward: block after block, the key tiles of each in the order of a launch over it alone. In a fixed order of sums
/// (deterministic) the longest come first: they are done sooner than in groups, whose work tiles wait for each other.
void HopperFusedWork::list_key_tiles(const Mask& mask, const KeySegments& segments) {
    std::vector<std::array<std::int32_t, 4>> items;
    std::vector<std::int32_t> entries, semaphore_values;
    std::map<int, std::vector<std::int32_t>> taken;  // by group and query tile
    bool in_lockstep = true;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const auto segment = segments.of_block[i];
        auto tiles = find_tiles(mask, rows_->runs(), segments.keys[segment], segments.tile, Major::keys,
                                options_.list.deterministic ? EqualEntries::apart : EqualEntries::shared);
        longest_first(tiles.items);
        const auto idle = std::ranges::find_if(tiles.items, [](const auto& item) { return item[1] == item[2]; });
        const auto busy = std::span(tiles.items.begin(), idle);
        if (!fall_linearly(busy, tiles.entries)) {
            in_lockstep = false;
            if (!options_.list.deterministic) group_by_last_entry(busy, tiles.entries);
        }
        auto& group_taken = taken[blocks_[i].first_head];
        group_taken.resize(size(tiles.other_side));
        const auto offset = static_cast<std::int32_t>(entries.size());
        entries_ += tiles.full + tiles.partial;
        semaphore_values.resize(entries.size() + tiles.entries.size());
        for (const auto& [tile, begin, end, partial_end] : tiles.items) {
            items.push_back({tile + segments.first_tile[segment], offset + begin, offset + end, static_cast<int>(i)});
            longest_ = std::max<std::int64_t>(longest_, end - begin);
            for (auto e = begin; e < end; ++e)
                semaphore_values[size(offset + e)] = group_taken[size(tiles.entries[size(e)] / 2)]++;
        }
        entries.insert(entries.end(), tiles.entries.begin(), tiles.entries.end());
        block_tiles_.push_back(static_cast<std::uint32_t>(tiles.items.size()));
        table_row_.push_back(i);
    }
    work_tiles_ = static_cast<std::int64_t>(items.size());
    items_device_ = uploaded(items, *options_.list.memory);
    entries_device_ = uploaded(entries, *options_.list.memory);
    if (options_.list.deterministic) semaphore_values_ = uploaded(semaphore_values, *options_.list.memory);
    const auto heads = options_.shape.batch * options_.block_heads;
    blocks_per_work_tile_ = blocks_per_work_tile({.work_tiles = work_tiles_ * heads,
                                                  .entries = entries_ * heads,
                                                  .longest = longest_,
                                                  .steps_per_row_tile = options_.shape.query_heads_per_kv_head});
    if (!in_lockstep || options_.list.deterministic) return;
    const auto at_a_time = sms_of_device() / blocks_per_work_tile_;
    order_ = layouts::fused_lockstep_order(block_tiles_, heads, at_a_time).value_or(layouts::WorkTileOrder{});
}

void HopperFusedWork::make_table(const KeySegments& segments) {
    const auto& shape = options_.shape;
    std::vector<FusedLaunchBlock> table(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const auto& block = blocks_[i];
        for (const auto* view : {&block.dk, &block.dv})
            require(gradient(*view).pairs_fit, "a gradient at {}: data and strides must be multiples of two elements",
                    view->data);
        const auto tokens = count_tokens(block.keys);
        const auto map = [&](const ConstView& view, std::int64_t dim) {
            return make_tensor_map(view, {shape.batch, tokens, options_.block_heads, dim}, segments.tile.keys);
        };
        table[table_row_[i]] = {.k = map(block.k, shape.head_dim),
                                .v = map(block.v, shape.value_dim),
                                .ready = !block.arrives       ? nullptr
                                         : block.arrival_flag ? block.arrival_flag
                                                              : ready_.as<std::uint32_t>() + i,
                                .gradient_ready = !block.gradient_arrives ? nullptr
                                                  : block.gradient_flag   ? block.gradient_flag
                                                                          : gradient_flag(i),
                                .ended = block.is_awaited ? ended_.as<std::uint32_t>() + i : nullptr,
                                .dk = gradient(block.dk),
                                .dv = gradient(block.dv),
                                .first_tile = segments.first_tile[segments.of_block[i]],
                                .tokens = static_cast<int>(tokens),
                                .first_head = block.first_head,
                                .adds = block.adds};
    }
    table_ = uploaded(table, *options_.list.memory);
}

/// How many query tiles the launch takes head by head, before the others tile by tile. All of them if the tiles of one
/// kv head fill the SMs several times: then L2 holds its K and V, and the tail of each head is short beside it.
/// Otherwise half of them if blocks arrive one after another, and none if all are there: the rest comes tile by tile,
/// where short work tiles fill the gaps at the end.
int HopperFusedWork::head_by_head() const {
    constexpr int several = 3;
    const auto of_kv_head = work_tiles_ * options_.shape.query_heads_per_kv_head * options_.shape.batch;
    if (of_kv_head >= several * sms_of_device()) return static_cast<int>(work_tiles_);
    const bool waits =
        std::any_of(blocks_.begin(), blocks_.end(), [](const FusedBlock& block) { return block.arrives; });
    return waits ? static_cast<int>(work_tiles_ / 2) : 0;
}

FusedLaunch HopperFusedWork::parameters() const {
    return {.blocks = table_.as<const FusedLaunchBlock>(),
            .first_parts = first_parts_.as<const int>(),
            .groups = groups_,
            .heads = static_cast<int>(options_.block_heads),
            .head_by_head = head_by_head(),
            .pass = pass_number_,
            .late = late_.as<std::uint32_t>(),
            .reported = late_block_.get(),
            .most_nanoseconds = static_cast<std::uint64_t>(options_.most_wait.count())};
}

void HopperFusedWork::arrived(std::size_t index, cudaStream_t stream) {
    write_value(stream, ready_.as<std::uint32_t>() + index, pass_number_);
}

void HopperFusedWork::gradient_arrived(std::size_t index, cudaStream_t stream) {
    write_value(stream, gradient_flag(index), pass_number_);
}

void HopperFusedWork::wait_until_done(std::size_t index, cudaStream_t stream) const {
    const auto each_pass = block_tiles_.at(index) * static_cast<std::uint32_t>(blocks_per_work_tile_) *
                           static_cast<std::uint32_t>(options_.shape.batch * options_.block_heads);
    wait_for_value(stream, ended_.as<const std::uint32_t>() + index, passes_ * each_pass);
}

std::optional<FusedWork::Late> HopperFusedWork::late() const {
    const auto late = *static_cast<volatile const std::uint32_t*>(late_block_.get());
    if (late == 0) return {};
    const bool gradient = late % 2 == 0;
    const auto row = (late - 1) / 2;
    return Late{size(std::find(table_row_.begin(), table_row_.end(), row) - table_row_.begin()), gradient};
}

void HopperFusedWork::give_up() noexcept {
    try {
        write_value(options_.give_up_stream, late_.as<std::uint32_t>(), 1);
    } catch (const Error&) {
        // Running launches then wait until their time is up.
    }
}

Items HopperFusedWork::items() const {
    return {items_device_.as<const int4>(), entries_device_.as<const int>(), static_cast<int>(work_tiles_)};
}

Geometry HopperFusedWork::geometry(const AttendShape& shape, Pass pass) const {
    require_fit(shape, options_.list, pass);
    const auto& made_for = options_.shape;
    require(shape.batch == made_for.batch && shape.kv_heads == made_for.kv_heads,
            "a fused launch made for batch {} and {} kv heads, called with {} and {}", made_for.batch,
            made_for.kv_heads, shape.batch, shape.kv_heads);
    return geometry_of(shape, *rows_, 0, positions_.as<const std::int32_t>());
}

void HopperFusedWork::attend_forward(const ForwardArgs& asked, cudaStream_t stream) {
    auto args = asked;
    args.k = blocks_.front().k;
    args.v = blocks_.front().v;
    const auto params = forward_params(args, geometry(args.shape, Pass::forward), items());
    enqueue(make_forward_launch(args, *this, params), args.shape, stream);
}

void HopperFusedWork::attend_backward(const BackwardArgs& asked, cudaStream_t stream) {
    auto args = asked;
    const auto& block = blocks_.front();
    args.k = block.k;
    args.v = block.v;
    args.dk = block.dk;
    args.dv = block.dv;
    const BackwardLaunch launch{.params = hopper_backward_params(args, geometry(args.shape, Pass::backward), items()),
                                .fused = parameters(),
                                .blocks_per_item = blocks_per_work_tile_,
                                .order = order_,
                                .turns = semaphore_values_.as<const int>(),
                                .semaphores = asked.semaphores};
    enqueue(launch, args.shape, stream);
}

}  // namespace ringlab::gpu::hopper
