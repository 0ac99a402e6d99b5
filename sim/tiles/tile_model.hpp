#pragma once

#include "layouts/layouts/launch_order.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"
#include "sim/tiles/list_scheduling.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringlab::sim {

using layouts::Op;
using layouts::Part;
using layouts::Run;
using layouts::Schedule;

/// Times of attention kernels, computed from the tiles that they really work on.
///
/// A block's tiles depend only on where the mask's bounds for its rows lie relative to its keys. So blocks that look
/// the same from there (all blocks below the diagonal, all blocks on it) share one memo entry and are tiled and
/// list-scheduled once.
class TileModel {
public:
    /// `schedule` and `machine` must outlive the model.
    TileModel(const Schedule& schedule, const Machine& machine);

    struct Time {
        double alone = 0;      ///< seconds in a launch of its own, without launch_us
        double continued = 0;  ///< seconds of its tiles alone, spread evenly over all SMs, in a launch under way
        double longest_work_tile = 0;  ///< seconds
    };

    /// Whether this attend is the first or the last one of its query rows in the pass.
    struct AttendPosition {
        bool begins = true, ends = true;
    };

    /// From the share `from` of an attend's undisturbed time on, `sms` SMs are not available to it.
    struct MissingSms {
        double from = 0;
        double sms = 0;
    };

    /// Time of an attend of key tiles while some SMs are missing, divided by its time on all SMs. `missing` is sorted
    /// by time and its first entry is from 0.
    double slowdown_while_sms_missing(std::span<const MissingSms> missing, const Part& rows, const Part& keys);

    /// SMs that the attend leaves idle because it has fewer work tiles of keys than SMs; 0 if it fills them.
    double idle_sms(const Part& rows, const Part& keys);

    /// Time of an attend of `rows` to `keys`, all heads of both.
    Time attend(const Part& rows, const Part& keys, AttendPosition position);

    /// Pairs of a row and a key in all tiles that the attend computes, for one head. Includes pairs that the mask hides
    /// within partial tiles.
    double computed_pairs(const Part& rows, const Part& keys);

    /// Time of the attend with `sms` fewer SMs, divided by its time with all of them. Work tiles run in waves, so
    /// a few missing SMs can cost a whole wave.
    double slowdown_without_sms(double sms, const Part& rows, const Part& keys, AttendPosition position);

    /// One attend of a fused launch: several attends of a rank in one kernel launch.
    struct FusedAttend {
        Part rows, keys;
        bool begins = true, ends = true;  ///< forward: whether it is the first or last attend of its rows
        bool waits = false;               ///< whether it waits for a message
    };

    /// Seconds of each attend of a fused launch, in order, without launch_us. They add up to the time of the launch
    /// when all messages have arrived.
    ///
    /// Forward, a thread block takes its work tile through all blocks and waits in place for one that has not arrived.
    /// Until a block arrives only the first work tiles have made progress. So an attend before the last of its rows
    /// takes as long as the longest work tile needs for it, and the last one takes all the rest. Backward, a work tile
    /// belongs to one block, and blocks follow each other: see KeyLaunch.
    std::vector<double> fused_times(std::span<const FusedAttend> attends);

    /// The work tiles of one launch.
    struct WorkTiles {
        std::vector<layouts::TileCounts> tiles;  ///< that each work tile of a head meets
        std::vector<int> visits{};    ///< blocks of the launch in which a work tile meets any tile; empty: one each
        std::int64_t copies = 1;      ///< heads (of keys for key tiles) times batch elements: each has these work tiles
        int query_heads_in_turn = 1;  ///< query heads that a work tile takes one after another
        // Only for work tiles of keys, which are in the order of the kernel's work list:
        bool fall_linearly = false;   ///< see layouts::fall_linearly()
        std::int64_t row_groups = 1;  ///< see layouts::RowGroups
        /// Only for work tiles of queries: numbers of O, bytes of Q, bytes of K and V.
        struct Sizes {
            double outputs = 0, queries = 0, keys = 0;
        } sizes{};
    };

    /// Work tiles of keys of one block.
    using KeyTiles = std::shared_ptr<const WorkTiles>;
    KeyTiles key_tiles_of_block(const Part& rows, const Part& keys);

    /// How a launch goes through the work tiles of its blocks.
    struct LaunchOrder {
        layouts::SmGroup sharing{};
        layouts::WorkTileOrder order{};  ///< of the work tiles of each block
    };
    LaunchOrder launch_order_of(std::span<const KeyTiles> parts) const;

    /// The work tiles of keys of a block, with their times, in the order in which SMs take them.
    std::vector<WorkTileGroup> in_launch_order(const WorkTiles& work_tiles, const LaunchOrder& launch_order) const;

    /// Number of blocks that were tiled one by one. For tests.
    std::size_t distinct_blocks() const { return known_.size(); }

private:
    /// A block of rows and keys, with their runs. Valid until the next one is made.
    struct Block {
        Part rows, keys;
        std::span<const Run> row_runs, key_runs;
    };
    struct ScheduledBlock {
        std::vector<WorkTileGroup> groups;
        layouts::SmGroup sharing{};
        double seconds = 0;
    };
    /// What was found of all blocks that look the same to the mask.
    struct Known {
        std::optional<Time> time;
        std::optional<double> computed_pairs;
        std::map<double, double> slowdowns;  // by missing SMs
        KeyTiles key_tiles;
        std::optional<ScheduledBlock> scheduled;
    };

    std::span<const Run> runs(const Part& part, std::vector<Run>& storage) const;
    Block block_of(const Part& rows, const Part& keys);
    Known& known(const Block& block, AttendPosition position);
    void describe(const Block& block);
    WorkTiles work_tiles_of(const Block& block) const;
    void list_key_tiles(WorkTiles& work_tiles, std::span<const layouts::RowHull> rows,
                        std::span<const layouts::KeyTile> columns) const;
    std::vector<double> fused_times_of_key_tiles(std::span<const FusedAttend> attends);
    struct Launch {
        double seconds = 0;
        double longest_work_tile = 0;  ///< seconds
        double tiles = 0;              ///< seconds of all tiles on one SM
    };
    layouts::SmGroup sharing_of(std::span<const KeyTiles> parts) const;
    layouts::WorkTileOrder order_of(std::span<const KeyTiles> parts, std::int64_t blocks) const;
    std::int64_t concurrent_work_tiles(const layouts::SmGroup& sharing, double missing) const;
    double tile_seconds(const WorkTiles& work_tiles) const;
    Launch launch(std::span<const WorkTiles> parts, AttendPosition position, const Part* keys, double missing) const;
    Launch key_launch(const KeyTiles& part, double missing) const;
    const ScheduledBlock& scheduled_block(const Part& rows, const Part& keys);
    Launch attend_launch(const Block& block, AttendPosition position, double missing) const;
    WorkTiles::Sizes sizes_of(const Part& rows, const Part& keys) const;
    /// Bytes that a launch reads and writes for each number of O.
    struct RowBytes {
        double read, written;
    };
    RowBytes row_bytes(AttendPosition position) const;
    double l2_miss_share(std::span<const WorkTiles> parts, AttendPosition position) const;

    const Schedule& schedule_;
    const Machine& machine_;
    AttentionCost cost_;
    std::vector<std::int64_t> key_;                 // scratch memory of describe()
    std::vector<Run> row_storage_, key_storage_;    // scratch memory of runs()
    std::unordered_map<std::string, Known> known_;  // by description
    // What depends only on the rows or only on the keys of a whole block, by block. Kept because each block of rows
    // meets every block of keys.
    mutable std::vector<std::vector<layouts::RowHull>> hulls_;
    mutable std::vector<std::vector<layouts::KeyTile>> key_tiles_;
};

}  // namespace ringlab::sim
