#include "sim/row_cache.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace ringlab::sim {
namespace {

/// Which of some tiles are held: the one that was asked for longest ago makes room for another.
class LeastRecent {
public:
    LeastRecent(std::size_t tiles, std::int64_t room) : room_(room), links_(tiles + 1), state_(tiles, State::unread) {
        links_[ends()] = {ends(), ends()};
    }

    enum class State : std::uint8_t { unread, held, lost };

    /// What the tile was before.
    State ask(std::size_t tile) {
        const auto before = state_[tile];
        if (before == State::held) take_out(tile);
        put_first(tile);
        if (before != State::held && ++held_ > room_) {
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

    std::int64_t room_, held_ = 0;
    std::vector<Links> links_;
    std::vector<State> state_;
};

struct Unit {
    const RowWalk* item;
    std::int64_t first_query_head, group, first_tile;
};

/// A unit on its way: at which of its tiles, and when.
class Walker {
public:
    Walker(const Unit& unit, double begin) : unit_(unit), time_(begin + unit.item->before) {}

    double time() const { return time_; }
    bool is_at_end() const { return head_ == unit_.group || unit_.item->tiles.empty(); }
    std::int64_t head() const { return unit_.first_query_head + head_; }
    std::int64_t tile() const { return unit_.first_tile + unit_.item->tiles[range_].begin + step_; }

    void advance() {
        time_ += unit_.item->each;
        const auto& tiles = unit_.item->tiles;
        if (++step_ < tiles[range_].size()) return;
        step_ = 0;
        if (++range_ < tiles.size()) return;
        range_ = 0;
        ++head_;
    }

private:
    Unit unit_;
    double time_;
    std::int64_t head_ = 0, step_ = 0;
    std::size_t range_ = 0;
};

/// The units of a launch, one after another.
class Units {
public:
    Units(std::span<const WalkedBlock> blocks, const layouts::UnitOrder& order) {
        for (const auto& block : blocks)
            layouts::for_each_unit_run(order, static_cast<std::int64_t>(block.items.size()), block.kv_heads,
                                       [&](const layouts::UnitRun& run) { runs_.emplace_back(&block, run); });
    }

    bool is_at_end() const { return next_ == runs_.size(); }
    Unit take() {
        const auto& [block, run] = runs_[next_];
        const auto head = run.first_head + taken_;
        if (++taken_ == run.heads) ++next_, taken_ = 0;
        return {&block->items[static_cast<std::size_t>(run.item)], block->first_head + head * block->group,
                block->group, block->first_tile};
    }

private:
    std::vector<std::pair<const WalkedBlock*, layouts::UnitRun>> runs_;
    std::size_t next_ = 0;
    std::int64_t taken_ = 0;  // heads of it
};

/// One in `share` of the tiles, without a pattern.
bool is_looked_at(std::uint64_t tile, std::uint64_t share) {
    auto x = tile * 0x9e3779b97f4a7c15u;  // as SplitMix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % share == 0;
}

}  // namespace

double reread_tiles(std::span<const WalkedBlock> blocks, const layouts::UnitOrder& order, std::int64_t places,
                    double room) {
    std::int64_t heads = 0, tiles = 0;
    double steps = 0;
    for (const auto& block : blocks) {
        const auto query_heads = block.kv_heads * block.group;
        heads = std::max(heads, block.first_head + query_heads);
        for (const auto& item : block.items)
            for (const auto& range : item.tiles) {
                tiles = std::max(tiles, block.first_tile + range.end);
                steps += static_cast<double>(range.size() * query_heads);
            }
    }
    if (static_cast<double>(heads * tiles) <= room) return 0;
    constexpr double many_steps = 1 << 18, fewest_held = 64;
    const auto share = std::max(1.0, std::floor(std::min(steps / many_steps, room / fewest_held)));
    LeastRecent cache(static_cast<std::size_t>(heads * tiles), static_cast<std::int64_t>(room / share));

    const auto tile_of = [&](const Walker& walker) {
        return static_cast<std::size_t>(walker.head() * tiles + walker.tile());
    };
    Units units(blocks, order);
    std::vector<Walker> walkers;
    using Next = std::pair<double, std::size_t>;  // when, and of which place
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    const auto look_on = [&](std::size_t place) {
        auto& walker = walkers[place];
        while (!walker.is_at_end() && !is_looked_at(tile_of(walker), static_cast<std::uint64_t>(share)))
            walker.advance();
        next.emplace(walker.time(), place);
    };
    while (!units.is_at_end() && walkers.size() < static_cast<std::size_t>(places)) {
        walkers.emplace_back(units.take(), 0);
        look_on(walkers.size() - 1);
    }
    double reread = 0;
    while (!next.empty()) {
        const auto place = next.top().second;
        next.pop();
        auto& walker = walkers[place];
        if (!walker.is_at_end()) {
            if (cache.ask(tile_of(walker)) == LeastRecent::State::lost) reread += share;
            walker.advance();
        } else if (units.is_at_end()) {
            continue;
        } else {
            walker = Walker(units.take(), walker.time());
        }
        look_on(place);
    }
    return reread;
}

}  // namespace ringlab::sim
