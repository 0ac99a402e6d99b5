// What SMs wait at the end of a launch, because its work tiles do not divide evenly among them.

#include "layouts/plan/plan_pieces.hpp"
#include "layouts/tiling/launch_order.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

namespace ringlab::layouts {
namespace {

/// Work tiles of a head that take equally long.
struct EqualTiles {
    double seconds = 0;
    std::int64_t count = 0;
    std::int64_t entries = 0;  ///< tiles that each of them meets
};

/// SMs that take work tiles by turns.
class Turns {
public:
    explicit Turns(std::int64_t sms) : sms_(sms), free_{{0, sms}} {}

    void take(double seconds, std::int64_t count) {
        total_ += seconds * static_cast<double>(count);
        while (count > 0) {
            auto& first = free_.front();
            const auto until = first.from + seconds;
            const auto taken = std::min(count, first.sms);
            count -= taken;
            first.sms -= taken;
            if (first.sms == 0) free_.erase(free_.begin());
            const auto at = std::ranges::upper_bound(free_, until, {}, &Free::from);
            if (at != free_.begin() && std::prev(at)->from == until)
                std::prev(at)->sms += taken;
            else
                free_.insert(at, {until, taken});
        }
    }

    /// Seconds that an SM waits on average until the last work tile ends.
    double waiting() const { return free_.back().from - total_ / static_cast<double>(sms_); }

private:
    struct Free {
        double from;
        std::int64_t sms;
    };
    std::int64_t sms_;
    std::vector<Free> free_;  // the first to be free first
    double total_ = 0;
};

/// The order in which the kernel takes the work tiles of a head, which are sorted longest first, and of other heads.
WorkTileOrder order_of(std::span<const EqualTiles> launch, double keys, const WavePrices& waves) {
    KeyWorkTiles all;
    for (const auto& one : launch) {
        all.work_tiles += one.count;
        all.entries += one.count * one.entries;
    }
    all.busy = all.work_tiles;
    all.longest = launch.front().entries;
    if (waves.by_keys) return backward_order(all, {.heads = waves.heads, .group = waves.group, .sms = waves.sms});
    return forward_order(all.work_tiles, waves.heads / waves.group, waves.group,
                         static_cast<std::int64_t>(keys * waves.head_bytes));
}

double waiting_at_end(std::vector<EqualTiles>& launch, double keys, const WavePrices& waves) {
    std::erase_if(launch, [](const EqualTiles& one) { return one.count == 0; });
    if (launch.empty()) return 0;
    std::ranges::stable_sort(launch, std::greater{}, &EqualTiles::seconds);
    const auto order = order_of(launch, keys, waves);
    Turns turns(waves.sms);
    const auto take = [&](std::int64_t begin, std::int64_t end, std::int64_t heads) {  // work tiles [begin, end)
        std::int64_t at = 0;
        for (const auto& one : launch) {
            const auto count = std::min(end, at + one.count) - std::max(begin, at);
            if (count > 0) turns.take(one.seconds, count * heads);
            at += one.count;
        }
    };
    for (std::int64_t head = 0; order.leading_tiles > 0 && head < waves.heads; head += order.heads_at_a_time)
        take(0, order.leading_tiles, order.heads_at_a_time);
    take(order.leading_tiles, std::numeric_limits<std::int64_t>::max(), waves.heads);
    return turns.waiting();
}

std::int64_t rounded_up(double tiles) { return static_cast<std::int64_t>(std::ceil(tiles)); }

/// Work tiles of rows: those of each piece meet all keys that the piece sees.
void add_row_tiles(std::vector<EqualTiles>& launch, std::span<const HeldKeys> held, const PassPrices& prices) {
    const auto& waves = prices.waves;
    for (const auto& one : held) {
        const auto& tiles = one.tiles[static_cast<std::size_t>(Pass::forward)];
        const auto entries = rounded_up(one.keys / static_cast<double>(waves.tile_keys));
        const auto seconds = waves.tile * static_cast<double>(entries);
        launch.push_back({waves.work_tile + seconds, tiles.all - tiles.shared, entries});
        launch.push_back({waves.work_tile + seconds * (1 + prices.cut), tiles.shared, entries});
    }
}

/// Work tiles of keys. `held` is of one part, fewest keys first. Each piece sees the keys of those before it and some
/// more, so the first keys are seen by the rows of all pieces, and the last ones by those of the last piece alone.
void add_key_tiles(std::vector<EqualTiles>& launch, std::span<const HeldKeys> held, const PassPrices& prices,
                   double& keys_of_launch) {
    const auto& waves = prices.waves;
    const auto row_tiles = [&](const HeldKeys& one) {
        const auto& tiles = one.tiles[static_cast<std::size_t>(Pass::backward)];
        return static_cast<double>(tiles.all) + prices.cut * static_cast<double>(tiles.shared);
    };
    double seeing = 0, before = 0;
    for (const auto& one : held) seeing += row_tiles(one);
    for (const auto& one : held) {
        const auto first = rounded_up(keys_of_launch / static_cast<double>(waves.tile_keys));
        keys_of_launch += one.keys - before;
        before = one.keys;
        const auto end = rounded_up(keys_of_launch / static_cast<double>(waves.tile_keys));
        launch.push_back({waves.work_tile + waves.tile * seeing, end - first, static_cast<std::int64_t>(seeing)});
        seeing -= row_tiles(one);
    }
}

}  // namespace

double waiting_seconds(std::vector<HeldKeys>& held, const PassPrices& prices) {
    const auto& waves = prices.waves;
    if (waves.sms == 0) return 0;
    std::ranges::sort(held, {},
                      [](const HeldKeys& one) { return std::tuple(one.launch, one.part, one.keys, one.tiles[0].all); });
    double seconds = 0;
    std::vector<EqualTiles> launch;
    for (auto begin = held.begin(); begin != held.end();) {
        const auto end_of_launch =
            std::find_if(begin, held.end(), [&](const HeldKeys& one) { return one.launch != begin->launch; });
        launch.clear();
        double keys = 0;
        while (begin != end_of_launch) {
            const auto end =
                std::find_if(begin, end_of_launch, [&](const HeldKeys& one) { return one.part != begin->part; });
            if (waves.by_keys)
                add_key_tiles(launch, {begin, end}, prices, keys);
            else {
                add_row_tiles(launch, {begin, end}, prices);
                keys += std::prev(end)->keys;
            }
            begin = end;
        }
        seconds += waiting_at_end(launch, keys, waves);
    }
    return seconds;
}

}  // namespace ringlab::layouts
