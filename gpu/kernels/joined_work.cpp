#include "gpu/kernels/joined_work.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/driver.hpp"
#include "gpu/kernels/common/tile_shape.hpp"
#include "gpu/kernels/hopper/ptx/tensor_map.hpp"
#include "gpu/kernels/hopper/units/joined.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

namespace ringlab::gpu {
namespace {

using layouts::Mask;
using layouts::Pass;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

Elements gradient(const View& view) {
    const auto is_even = [](std::int64_t number) { return number % 2 == 0; };
    const auto elements = reinterpret_cast<std::intptr_t>(view.data) / layouts::bytes_of(view.dtype);
    return {
        view.data, view.dtype, view.strides,
        is_even(elements) && is_even(view.strides.batch) && is_even(view.strides.token) && is_even(view.strides.head)};
}

}  // namespace

/// Where the keys of blocks lie among all: the same keys of several head groups once.
struct JoinedWork::Places {
    TileShape tile;
    std::vector<int> owners;                          // by place
    std::vector<std::span<const layouts::Run>> keys;  // by place
    std::vector<std::int32_t> first_tile;             // by place
    std::vector<std::size_t> of_block;                // place by block
    std::vector<std::int32_t> positions;

    Places(const Mask& mask, std::span<const Block> blocks, TileShape shape) : tile(shape) {
        for (const auto& block : blocks) {
            const auto place = size(std::find(owners.begin(), owners.end(), block.owner) - owners.begin());
            of_block.push_back(place);
            if (place < owners.size()) continue;
            owners.push_back(block.owner);
            keys.push_back(block.keys);
            first_tile.push_back(static_cast<std::int32_t>(positions.size()) / tile.keys);
            const auto tiles = (count_tokens(block.keys) + tile.keys - 1) / tile.keys;
            const auto own = key_positions(mask, block.keys, tiles * tile.keys);
            positions.insert(positions.end(), own.begin(), own.end());
        }
    }
};

JoinedWork::JoinedWork(const Mask& mask, std::shared_ptr<const RowBounds> rows, std::span<const Block> blocks,
                       const Options& options)
    : rows_(std::move(rows)), options_(options), blocks_(blocks.begin(), blocks.end()) {
    const auto& list = options_.list;
    options_.list.family = resolve(list.family, list.head_dim, list.value_dim);
    require(options_.list.family == KernelFamily::hopper,
            "joined attends with kernels {}: the hopper kernels alone can do several blocks in one launch",
            to_string(options_.list.family));
    require(!blocks_.empty(), "a joined launch of no block");
    require(options_.block_heads >= 1 && options_.shape.kv_heads % options_.block_heads == 0,
            "blocks of {} kv heads each do not make {}", options_.block_heads, options_.shape.kv_heads);
    groups_ = static_cast<int>(options_.shape.kv_heads / options_.block_heads);
    const auto dims = dim_class(list.head_dim, list.value_dim);
    const bool forward = list.pass == Pass::forward;
    const Places places(mask, blocks_,
                        forward ? forward_tile(dims, KernelFamily::hopper) : backward_tile(dims, KernelFamily::hopper));
    positions_ = uploaded(places.positions);
    RINGLAB_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&told_), sizeof(*told_), cudaHostAllocMapped));
    *told_ = 0;
    late_ = uploaded(std::vector<std::uint32_t>(1));
    ready_ = uploaded(std::vector<std::uint32_t>(2 * blocks_.size()));  // blocks, then their gradients
    ended_ = uploaded(std::vector<std::uint32_t>(blocks_.size()));
    counter_ = uploaded(std::vector<std::uint32_t>(1));
    forward ? list_queries(mask, places) : list_keys(mask, places);
    make_table(places);
    for (const auto* buffer : {&positions_, &items_device_, &first_items_, &entries_device_, &turns_device_, &table_})
        device_bytes_ += static_cast<std::int64_t>(buffer->bytes());
}

JoinedWork::~JoinedWork() {
    if (told_) cudaFreeHost(told_);
}

/// Forward: each query tile has an item for each block of which it sees something, in the order of blocks.
void JoinedWork::list_queries(const Mask& mask, const Places& places) {
    std::vector<Tiles> of_place;
    for (const auto& keys : places.keys)
        of_place.push_back(find_tiles(mask, rows_->runs(), keys, places.tile, Major::queries, EqualEntries::shared));
    // By group the places of its blocks, in their order: the same for all.
    std::map<int, std::vector<std::size_t>> order;
    for (std::size_t i = 0; i < blocks_.size(); ++i) order[blocks_[i].first_head].push_back(places.of_block[i]);
    require(static_cast<int>(order.size()) == groups_ &&
                std::all_of(order.begin(), order.end(),
                            [&](const auto& group) { return group.second == order.begin()->second; }),
            "a joined forward launch wants the same blocks in the same order for each of {} head groups", groups_);
    const auto& sequence = order.begin()->second;
    table_place_.resize(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i)
        table_place_[i] =
            size(std::find(sequence.begin(), sequence.end(), places.of_block[i]) - sequence.begin()) * size(groups_) +
            size(blocks_[i].first_head / options_.block_heads);

    const auto tiles = of_place.front().items.size();
    constexpr std::size_t most = 65536;
    require(tiles < most && sequence.size() < most / 2, "{} query tiles and {} blocks in a joined launch: at most {}",
            tiles, sequence.size(), most / 2);
    std::vector<std::int64_t> total(tiles);
    for (const auto& part : of_place)
        for (std::size_t tile = 0; tile < tiles; ++tile) total[tile] += part.items[tile][2] - part.items[tile][1];
    std::vector<std::size_t> longest_first(tiles);
    std::iota(longest_first.begin(), longest_first.end(), 0u);
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](std::size_t a, std::size_t b) { return total[a] > total[b]; });

    std::vector<std::array<std::int32_t, 4>> items;
    std::vector<std::int32_t> entries, first_items{0};
    struct Copied {
        std::int32_t from = -1, end = -1, to = 0;
    };
    std::vector<Copied> copied(sequence.size());  // entries that items share stay shared
    for (const auto tile : longest_first) {
        for (std::size_t place = 0; place < sequence.size(); ++place) {
            const auto& part = of_place[sequence[place]];
            const auto& item = part.items[tile];
            // A query tile that sees nothing at all has one item without entries.
            if (item[1] == item[2] && (total[tile] > 0 || place > 0)) continue;
            auto& [from, end, begin] = copied[place];
            if (from != item[1] || end != item[2]) {
                from = item[1];
                end = item[2];
                begin = static_cast<std::int32_t>(entries.size());
                for (auto e = item[1]; e < item[2]; ++e)
                    entries.push_back(part.entries[size(e)] + 2 * places.first_tile[sequence[place]]);
            }
            entries_ += item[2] - item[1];
            items.push_back({static_cast<std::int32_t>(tile + most * place), begin, begin + item[2] - item[1],
                             begin + item[3] - item[1]});
        }
        first_items.push_back(static_cast<std::int32_t>(items.size()));
    }
    items_ = static_cast<std::int64_t>(tiles);
    if (tiles > 0) longest_ = total[longest_first.front()];
    items_device_ = uploaded(items);
    first_items_ = uploaded(first_items);
    entries_device_ = uploaded(entries);
}

/// Backward: block after block, its key tiles longest first.
void JoinedWork::list_keys(const Mask& mask, const Places& places) {
    std::vector<std::array<std::int32_t, 4>> items;
    std::vector<std::int32_t> entries, turns;
    std::map<int, std::vector<std::int32_t>> taken;  // by group and query tile
    bool in_lockstep = true;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const auto place = places.of_block[i];
        auto tiles = find_tiles(mask, rows_->runs(), places.keys[place], places.tile, Major::keys,
                                options_.list.deterministic ? EqualEntries::apart : EqualEntries::shared);
        longest_first(tiles.items);
        const auto idle = std::ranges::find_if(tiles.items, [](const auto& item) { return item[1] == item[2]; });
        in_lockstep &= fall_linearly(std::span(tiles.items.begin(), idle), tiles.entries);
        auto& group_taken = taken[blocks_[i].first_head];
        group_taken.resize(size(tiles.other_side));
        const auto offset = static_cast<std::int32_t>(entries.size());
        entries_ += tiles.full + tiles.partial;
        turns.resize(entries.size() + tiles.entries.size());
        for (const auto& [tile, begin, end, partial_end] : tiles.items) {
            items.push_back({tile + places.first_tile[place], offset + begin, offset + end, static_cast<int>(i)});
            longest_ = std::max<std::int64_t>(longest_, end - begin);
            for (auto e = begin; e < end; ++e)
                turns[size(offset + e)] = group_taken[size(tiles.entries[size(e)] / 2)]++;
        }
        entries.insert(entries.end(), tiles.entries.begin(), tiles.entries.end());
        block_items_.push_back(static_cast<std::uint32_t>(tiles.items.size()));
        table_place_.push_back(i);
    }
    items_ = static_cast<std::int64_t>(items.size());
    items_device_ = uploaded(items);
    entries_device_ = uploaded(entries);
    if (options_.list.deterministic) turns_device_ = uploaded(turns);
    const auto heads = options_.shape.batch * options_.block_heads;
    blocks_per_item_ = gpu::blocks_per_item({.items = items_ * heads,
                                             .entries = entries_ * heads,
                                             .longest = longest_,
                                             .steps_per_row_tile = options_.shape.query_heads_per_kv_head});
    if (!in_lockstep || options_.list.deterministic) return;
    const auto at_a_time = hopper::multiprocessors_of_device() / blocks_per_item_;
    order_ = layouts::fused_lockstep_order(block_items_, heads, at_a_time).value_or(hopper::WorkTileOrder{});
}

void JoinedWork::make_table(const Places& places) {
    const auto& shape = options_.shape;
    std::vector<hopper::JoinedBlock> table(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const auto& block = blocks_[i];
        for (const auto* view : {&block.dk, &block.dv})
            require(gradient(*view).pairs_fit, "a gradient at {}: data and strides must be multiples of two elements",
                    view->data);
        const auto tokens = count_tokens(block.keys);
        const auto map = [&](const ConstView& view, std::int64_t dim) {
            return hopper::make_tensor_map(view, {shape.batch, tokens, options_.block_heads, dim}, places.tile.keys);
        };
        table[table_place_[i]] = {.k = map(block.k, shape.head_dim),
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
                                  .first_tile = places.first_tile[places.of_block[i]],
                                  .tokens = static_cast<int>(tokens),
                                  .first_head = block.first_head,
                                  .adds = block.adds};
    }
    table_ = uploaded(table);
}

/// Query tiles that are given out head by head. All of them where a kv head has several rounds of the multiprocessors:
/// L2 then holds its K and V, and the ends of heads are short beside it. Otherwise those that are in the order of
/// arrival; item by item at the end, where short items fill the gaps.
int JoinedWork::head_by_head() const {
    constexpr int several = 3;
    const auto of_kv_head = items_ * options_.shape.query_heads_per_kv_head * options_.shape.batch;
    if (of_kv_head >= several * hopper::multiprocessors_of_device()) return static_cast<int>(items_);
    const bool waits = std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.arrives; });
    return waits ? static_cast<int>(items_ / 2) : 0;
}

hopper::Joined JoinedWork::joined() const {
    return {.blocks = table_.as<const hopper::JoinedBlock>(),
            .first_items = first_items_.as<const int>(),
            .groups = groups_,
            .heads = static_cast<int>(options_.block_heads),
            .head_by_head = head_by_head(),
            .pass = pass_,
            .late = late_.as<std::uint32_t>(),
            .told = told_,
            .most_nanoseconds = static_cast<std::uint64_t>(options_.most_wait.count())};
}

void JoinedWork::arrived(std::size_t index, cudaStream_t stream) {
    write_value(stream, ready_.as<std::uint32_t>() + index, pass_);
}

void JoinedWork::gradient_arrived(std::size_t index, cudaStream_t stream) {
    write_value(stream, gradient_flag(index), pass_);
}

void JoinedWork::wait_until_ended(std::size_t index, cudaStream_t stream) const {
    const auto each_pass = block_items_.at(index) * static_cast<std::uint32_t>(blocks_per_item_) *
                           static_cast<std::uint32_t>(options_.shape.batch * options_.block_heads);
    wait_for_value(stream, ended_.as<const std::uint32_t>() + index, pass_ * each_pass);
}

std::optional<JoinedWork::Late> JoinedWork::late() const {
    const auto told = *static_cast<volatile const std::uint32_t*>(told_);
    if (told == 0) return {};
    const bool gradient = told % 2 == 0;
    const auto place = (told - 1) / 2;
    return Late{size(std::find(table_place_.begin(), table_place_.end(), place) - table_place_.begin()), gradient};
}

void JoinedWork::give_up() noexcept {
    try {
        write_value(other_stream_, late_.as<std::uint32_t>(), 1);
    } catch (const Error&) {
        // Launches under way then wait as long as they may.
    }
}

}  // namespace ringlab::gpu
