#pragma once

#include "layouts/checked.hpp"
#include "layouts/schedule.hpp"
#include "layouts/unit_order.hpp"
#include "sim/dealing.hpp"
#include "sim/host_clock.hpp"
#include "sim/machine.hpp"
#include "sim/messages.hpp"
#include "sim/options.hpp"
#include "sim/topology.hpp"

#include <array>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringlab::sim {

using layouts::Op;
using layouts::Part;
using layouts::Run;
using layouts::Schedule;

/// Times of attention blocks from their real tiles.
///
/// A block's tiles follow from how its rows' bounds lie relative to its keys, so blocks that look alike from there
/// (all blocks below the diagonal, all on it) share one entry of a memo and are tiled and list-scheduled once.
class TileModel {
public:
    /// `schedule` and `machine` must outlive the model.
    TileModel(const Schedule& schedule, const Machine& machine);

    struct Time {
        double alone = 0;      ///< seconds of a launch of its own, without the launch itself
        double continued = 0;  ///< seconds added to a launch that is under way: no ramp, no tail, no cost of items
        double item = 0;       ///< seconds of its longest item
    };

    /// Where a block stands among those of its rows.
    struct Turn {
        bool begins = true, ends = true;
    };

    /// From a share of its undisturbed time on, so many processors are not there for a launch.
    struct Without {
        double from = 0;
        double processors = 0;
    };

    /// What a block of items of keys takes, over what it takes on all processors; `without` by time, the first from 0.
    double longer_beside(std::span<const Without> without, const Part& rows, const Part& keys);

    /// Processors that its items leave alone, if there are fewer items than would fill them.
    double idle_processors(const Part& rows, const Part& keys);

    /// Of all heads of `rows` and `keys`.
    Time block(const Part& rows, const Part& keys, Turn turn);

    /// Pairs of a row and a key in all tiles that the block meets, of one head: those that a partial tile hides too.
    double pairs_in_tiles(const Part& rows, const Part& keys);

    /// What the block takes on `processors` fewer, over what it takes on all: they take items by turns, so a few less
    /// may cost a whole turn.
    double longer_without(double processors, const Part& rows, const Part& keys, Turn turn);

    /// Attends of a rank that are one launch.
    struct Joint {
        Part rows, keys;
        bool begins = true, ends = true;  ///< forward: of its rows
        bool waits = false;               ///< for something that arrives
    };

    /// Seconds of each of the attends, without the launch itself: adding up to what the launch takes where all has
    /// arrived. Forward, a processor takes each item through all blocks, and waits where one is not there yet: until a
    /// block has arrived nothing is done but what the first items have before it, so that much are the attends before
    /// the last one of their rows, which is the rest. Backward, items are of one block, and blocks follow each other:
    /// see KeyLaunch.
    std::vector<double> joined(std::span<const Joint> attends);

    /// What one launch takes up: tiles of each item of a head, how often, and heads in turn.
    struct Items {
        std::vector<layouts::TileRow> tiles;
        std::vector<int> visits{};  ///< blocks of a launch that an item meets tiles of; empty: one
        std::int64_t copies = 1;
        int in_turn = 1;
        // Of items of keys, which come in the order of work lists, the longest first: ranges of row tiles that each
        // meets, one behind another, and where those of each begin.
        std::vector<layouts::Interval> ranges{};
        std::vector<std::size_t> first_range{};
        bool fall_evenly = false;
        /// Of query tiles: numbers of O, bytes of Q and of K and V.
        struct Sizes {
            double outputs = 0, queries = 0, keys = 0;
        } sizes{};
    };

    /// Items of keys of a block, and where its rows lie among those of the rank.
    struct KeyPart {
        std::shared_ptr<const Items> items;
        std::int64_t first_head = 0, first_tile = 0;
    };
    KeyPart key_part(const Part& rows, const Part& keys);

    /// How a launch goes about the items of its blocks.
    struct Way {
        layouts::Sharing sharing{};
        layouts::UnitOrder order{};  ///< of the items of each
        double longer = 1;           ///< times, that all of it takes for what they do
    };
    Way way_of(std::span<const KeyPart> parts, bool waits) const;

    /// What processors take up of a block's items of keys, in order.
    std::vector<ItemGroup> dealt(const Items& items, const Way& way) const;

    /// Blocks that were tiled one by one, for tests of the memo.
    std::size_t distinct_blocks() const { return memo_.size(); }

private:
    std::span<const Run> runs(const Part& part, std::vector<Run>& storage) const;
    void describe(const Part& rows, const Part& keys, std::span<const Run> row_runs, std::span<const Run> key_runs);
    Items items_of(std::span<const Run> row_runs, std::span<const Run> key_runs, const Part& rows,
                   const Part& keys) const;
    void list_keys(Items& items, std::span<const layouts::RowHull> rows,
                   std::span<const layouts::KeyTile> columns) const;
    std::vector<double> joined_keys(std::span<const Joint> attends);
    struct Launch {
        double seconds = 0;
        double item = 0;   ///< of it the longest item
        double tiles = 0;  ///< of all items, on one processor
    };
    layouts::Sharing sharing_of(std::span<const KeyPart> parts) const;
    layouts::UnitOrder order_of(std::span<const KeyPart> parts, std::int64_t blocks) const;
    double rereading_seconds(std::span<const KeyPart> parts, const Way& way) const;
    double item_seconds(const layouts::TileRow& tiles, int heads_in_turn, std::int64_t processors) const {
        return item_seconds(tiles, {}, heads_in_turn, processors, 1, 0);
    }
    std::int64_t places(const layouts::Sharing& sharing, double without) const;
    double tile_seconds(const Items& items) const;
    Launch launch(std::span<const Items> parts, Turn turn, const Part* keys, double without) const;
    Launch key_launch(const KeyPart& part, double without) const;
    struct Dealt {
        std::vector<ItemGroup> groups;
        layouts::Sharing sharing{};
        double seconds = 0;
    };
    const Dealt& dealt_block(const Part& rows, const Part& keys);
    Launch block_launch(std::span<const Run> row_runs, std::span<const Run> key_runs, const Part& rows,
                        const Part& keys, Turn turn, double without = 0) const;
    std::string key_of(std::span<const Run> row_runs, std::span<const Run> key_runs, const Part& rows, const Part& keys,
                       Turn turn);
    Time tile_and_schedule(std::span<const Run> row_runs, std::span<const Run> key_runs, const Part& rows,
                           const Part& keys, Turn turn) const;
    Items::Sizes sizes_of(const Part& rows, const Part& keys) const;
    /// Bytes in which a number of O is read and written.
    struct RowBytes {
        double read, written;
    };
    RowBytes row_bytes(Turn turn) const;
    double missed_share(std::span<const Items> parts, Turn turn) const;
    double item_seconds(const layouts::TileRow& tiles, Turn turn, int heads_in_turn, std::int64_t processors,
                        int visits, double missed) const;

    const Schedule& schedule_;
    const Machine& machine_;
    AttentionCost cost_;
    std::vector<std::int64_t> key_;               // scratch
    std::vector<Run> row_storage_, key_storage_;  // scratch: runs of parts
    std::unordered_map<std::string, Time> memo_;
    std::unordered_map<std::string, double> longer_, pairs_;
    std::unordered_map<std::string, Dealt> dealt_;
    std::unordered_map<std::string, std::shared_ptr<const Items>> listed_;  // of keys
    // What depends on the rows or the keys of a whole block alone, by block: each meets all others.
    mutable std::vector<std::vector<layouts::RowHull>> hulls_;
    mutable std::vector<std::vector<layouts::KeyTile>> key_tiles_;
};

/// What a transfer takes.
struct TransferCost {
    Picoseconds latency = 0;
    Picoseconds duration = 0;     ///< after the latency, alone
    double bytes_per_second = 0;  ///< while it runs at full speed; 0 if it takes no time
    double multiprocessors = 0;   ///< that each side gives to it, from when it is ready itself
    double crowded_speed = 1;     ///< beside attends, against alone
    const LinkCost* link = nullptr;
    Route route = Route::inside_host;

    Picoseconds whole() const { return layouts::later(latency, duration); }
};

/// Bytes of q and k of a rank of `tokens` tokens, or of dq and dk, where they are rotated: else 0.
double rotated_bytes(const Schedule& schedule, std::int64_t tokens);

/// Seconds that a rank takes to rotate them before the forward pass, or behind the backward pass, each in a launch of
/// its own.
double rotation_seconds(const Schedule& schedule, const Machine& machine, std::int64_t tokens);

class KeyLaunches;

/// How long every operation takes on a machine when it has what it runs on to itself.
class CostModel {
public:
    /// All three must outlive the model. Attends run at `clocks` times the clock of the calibration, by rank, or at
    /// that clock; `tiles`, of the same schedule and machine, may come from another model, and are only there where
    /// options ask for them. Throws Error if the placement of ranks on the machine's GPUs is not possible, or an option
    /// is out of range.
    CostModel(const Schedule& schedule, const Machine& machine, const SimOptions& options,
              std::vector<double> clocks = {}, std::shared_ptr<TileModel> tiles = nullptr);

    int ranks() const { return schedule_.ranks() * options_.replicas; }

    /// Duration of what a rank computes: undisturbed, and where it is this operation of it. Attends
    /// that are one launch have to be asked for in the rank's order.
    Picoseconds compute(const Op& op, int rank);
    Picoseconds compute(const Op& op, int rank, layouts::OpIndex index);

    /// Of an attend that compute() says, what its tiles take if they are spread evenly over all multiprocessors. All of
    /// it where the price is not made of tiles.
    Picoseconds evenly_spread(const Op& attend, int rank, Picoseconds price);

    /// Between ranks, of which the source's link may be slow. Valid until the next call.
    const TransferCost& transfer(int source, int destination, std::int64_t bytes, const Message& message = {}) {
        const auto route = topology_.route(source, destination);
        const auto slower = draws_.link_factor(source);
        auto& known = known_[2 * static_cast<std::size_t>(route) + (slower > 1)];
        if (known.bytes != bytes || known.message != message) price(known, route, slower, bytes, message);
        return known.cost;
    }

    /// The same with the noise of operation `index` of `rank`, which sends or fetches.
    TransferCost with_noise(TransferCost cost, int rank, layouts::OpIndex index) const;

    /// Whether options say that it costs nothing.
    bool is_free(Cause cause) const { return options_.free == cause; }

    /// Whether attends are one launch that waits inside for blocks and for the gradients that it adds to: when each
    /// ends, key_launches() of the rank say, and compute() what it would take if all were there.
    bool waits_for_gradients() const;
    KeyLaunches key_launches(int rank) const;

    /// How many times as long as calibrated operation `index` of a rank takes to compute: by its clock, and by draws.
    double slower(int rank, layouts::OpIndex index) const;

    /// Whether some attends are one launch.
    bool joins() const;

    const Draws& draws() const { return draws_; }
    TileModel& tiles() { return *tiles_; }
    Picoseconds at_clock(double seconds, int rank) const;

    /// FLOP of an attend that take power: of all pairs of the tiles that it computes.
    double powered_flop(const Op& op) const;

    /// What the host does for a pass before its first operation, and for an operation; `follows` as HostClock says.
    Picoseconds issue_pass() const;
    Picoseconds issue(const Op& op, bool follows) const {
        if (!op.transfers()) return op.fused ? 0 : issue_compute_;
        const auto message = op.kind == layouts::OpKind::fetch ? issue_fetch_
                             : follows                         ? issue_next_
                                                               : issue_transfer_;
        return issue_piece_ == 0 ? message : message + issue_piece_ * (pieces_of(schedule_, op) - 1);
    }
    HostClock host_clock(HostClock::State state, OpIndex first = 0) const {
        return {state, computes_first_, std::min(issue_transfer_, issue_next_), first};
    }

    /// Of a host that starts a pass at `start`.
    HostClock host_clock(Picoseconds start) const {
        const auto begun = layouts::later(start, issue_pass());
        return host_clock({.now = begun, .computed = begun});
    }

    /// What a rank's pass takes before its first operation on the compute lane, and behind its last operation.
    Picoseconds before_pass(int rank) const;
    Picoseconds behind_pass(int rank) const;
    const Topology& topology() const { return topology_; }

    /// When a rank starts, and all of them.
    Picoseconds start(int rank) const;
    std::vector<Picoseconds> starts() const;

    /// What the machine file was stretched to cover, one sentence each, for people to read.
    std::vector<std::string> notes() const;

private:
    Picoseconds issue_time(double seconds) const;
    double clock(int rank) const { return clocks_.empty() ? 1 : clocks_[static_cast<std::size_t>(rank)]; }
    double attend_seconds(const Op& op, int rank);
    double dropout_seconds(const Op& op, int rank) const;
    double sink_seconds(std::int64_t rows) const;
    double joined_seconds(int rank);
    bool launches_apart() const { return machine_.inside_host.multiprocessors_per_channel > 0; }
    double latent_seconds(const Op& op, int rank) const;

    const Schedule& schedule_;
    const Machine& machine_;
    const AttentionCost& attention_;
    const SimOptions& options_;
    Topology topology_;
    Draws draws_;
    std::vector<double> clocks_;  // by rank; empty: 1
    bool computes_first_;
    Picoseconds issue_compute_, issue_transfer_, issue_next_, issue_fetch_, issue_piece_;
    std::shared_ptr<TileModel> tiles_;
    bool joins_ = false;  // some attends are one launch, and priced so
    struct Joined {
        std::vector<double> times;
        std::size_t next = 0;
    };
    std::vector<Joined> joined_;  // by rank: what is left of its attends
    struct Known {
        std::int64_t bytes = -1;
        Message message;
        TransferCost cost;
    };
    void price(Known& known, Route route, double slower, std::int64_t bytes, const Message& message) const;
    std::array<Known, 2 * route_count> known_;  // the last message on each, slow or not: most are of one size
};

}  // namespace ringlab::sim
