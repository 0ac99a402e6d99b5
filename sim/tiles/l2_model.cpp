#include "sim/tiles/l2_model.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::sim {
namespace {

/// A cache of tiles that evicts the least recently used one.
class LruCache {
public:
    LruCache(std::size_t tiles, std::int64_t room) : capacity_(room), links_(tiles + 1), state_(tiles, State::unread) {
        links_[ends()] = {ends(), ends()};
    }

    enum class State : std::uint8_t { unread, held, lost };

    /// Accesses the tile. Returns its state before.
    State ask(std::size_t tile) {
        const auto before = state_[tile];
        if (before == State::held) take_out(tile);
        put_first(tile);
        if (before != State::held && ++held_ > capacity_) {
            const auto last = links_[ends()].before;
            take_out(last);
            state_[last] = State::lost;
            --held_;
        }
        return before;
    }

private:
    struct Links {
        std::size_t before = 0, behind = 0;
    };
    std::size_t ends() const { return links_.size() - 1; }
    void take_out(std::size_t tile) {
        const auto [before, behind] = links_[tile];
        links_[before].behind = behind;
        links_[behind].before = before;
    }
    void put_first(std::size_t tile) {
        const auto first = links_[ends()].behind;
        links_[tile] = {ends(), first};
        links_[first].before = tile;
        links_[ends()].behind = tile;
        state_[tile] = State::held;
    }

    std::int64_t capacity_, held_ = 0;
    std::vector<Links> links_;
    std::vector<State> state_;
};

/// A work tile under way, at one of its row tiles.
class RunningWorkTile {
public:
    RunningWorkTile(std::span<const layouts::Interval> work_tile, const CachedBlock& block, std::int64_t kv_head,
                    std::int64_t tiles, std::int64_t gap_steps)
        : work_tile_(work_tile), tiles_(tiles), waits_(gap_steps), heads_(block.group) {
        first_ = (block.first_head + kv_head * block.group) * tiles + block.first_tile;
    }

    bool waits() { return waits_ > 0 && waits_-- > 0; }
    bool is_at_end() const { return heads_ == 0; }
    std::size_t tile() const { return static_cast<std::size_t>(first_ + work_tile_[range_].begin + step_); }

    void advance() {
        if (++step_ < work_tile_[range_].size()) return;
        step_ = 0;
        if (++range_ < work_tile_.size()) return;
        range_ = 0;
        first_ += tiles_;
        --heads_;
    }

private:
    std::span<const layouts::Interval> work_tile_;
    std::int64_t tiles_, waits_, heads_, first_, step_ = 0;
    std::size_t range_ = 0;
};

/// The work tiles of a launch that meet any rows, in launch order. Idle ones are left out, because they take hardly any
/// time.
class WorkTilesInOrder {
public:
    WorkTilesInOrder(std::span<const CachedBlock> blocks, const layouts::WorkTileOrder& order) {
        for (const auto& block : blocks)
            layouts::for_each_work_tile_run(order, static_cast<std::int64_t>(block.work_tiles.size()), block.kv_heads,
                                            [&](const layouts::WorkTileRun& run) {
                                                if (!block.work_tiles[static_cast<std::size_t>(run.work_tile)].empty())
                                                    runs_.emplace_back(&block, run);
                                            });
    }

    bool is_at_end() const { return next_ == runs_.size(); }
    RunningWorkTile take(std::int64_t tiles, std::int64_t gap_steps) {
        const auto& [block, run] = runs_[next_];
        const auto head = run.first_head + taken_;
        if (++taken_ == run.heads) ++next_, taken_ = 0;
        return {block->work_tiles[static_cast<std::size_t>(run.work_tile)], *block, head, tiles, gap_steps};
    }

private:
    std::vector<std::pair<const CachedBlock*, layouts::WorkTileRun>> runs_;
    std::size_t next_ = 0;
    std::int64_t taken_ = 0;  // heads of the current run that were taken
};

/// Chooses one in `share` of the tiles, without a pattern.
bool is_sampled(std::uint64_t tile, std::uint64_t share) {
    if (share == 1) return true;
    auto x = tile * 0x9e3779b97f4a7c15u;  // as SplitMix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % share == 0;
}

}  // namespace

double count_l2_misses(std::span<const CachedBlock> blocks, const layouts::WorkTileOrder& order, const L2Model& model) {
    std::int64_t heads = 0, tiles = 0, steps = 0;
    for (const auto& block : blocks) {
        const auto query_heads = block.kv_heads * block.group;
        heads = std::max(heads, block.first_head + query_heads);
        for (const auto& work_tile : block.work_tiles)
            for (const auto& range : work_tile) {
                tiles = std::max(tiles, block.first_tile + range.end);
                steps += range.size() * query_heads;
            }
    }
    if (static_cast<double>(heads * tiles) <= model.room) return 0;
    constexpr double many_steps = 1 << 18, fewest_held = 64;
    const auto share = static_cast<std::uint64_t>(
        std::max(1.0, std::min(static_cast<double>(steps) / many_steps, model.room / fewest_held)));
    LruCache cache(static_cast<std::size_t>(heads * tiles),
                   static_cast<std::int64_t>(model.room / static_cast<double>(share)));
    WorkTilesInOrder rest(blocks, order);
    std::vector<RunningWorkTile> running_tiles;
    while (!rest.is_at_end() && static_cast<std::int64_t>(running_tiles.size()) < model.concurrent_work_tiles)
        running_tiles.push_back(rest.take(tiles, model.gap_steps));
    std::uint64_t misses = 0;
    for (bool walk = !running_tiles.empty(); walk;) {
        walk = false;
        for (auto& running_tile : running_tiles) {
            if (running_tile.is_at_end()) {
                if (rest.is_at_end()) continue;
                running_tile = rest.take(tiles, model.gap_steps);
            }
            walk = true;
            if (running_tile.waits()) continue;
            const auto tile = running_tile.tile();
            if (is_sampled(tile, share) && cache.ask(tile) == LruCache::State::lost) misses += share;
            running_tile.advance();
        }
    }
    return static_cast<double>(misses);
}

}  // namespace ringlab::sim
