#pragma once

#include "layouts/layouts/launch_order.hpp"
#include "layouts/problem/problem.hpp"

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// What one work tile of an attention kernel is, for one batch element.
enum class WorkTile {
    query_tile,  ///< a tile of query rows of one query head
    key_tile,    ///< a tile of keys of one kv head, for its query heads one after another
};

/// Rules by which a kernel launches work tiles of keys.
enum class KeyLaunchRule {
    list_schedule,  ///< layouts::sm_group_by_list_schedule(), and work tiles in the order of layouts::row_groups_of()
    waves,          ///< earlier kernels: layouts::sm_group_by_waves(), and work tiles longest first
};

/// Prices of an attention kernel, in seconds. An attend takes the launch and then the makespan, over all SMs, of work
/// tiles that each take work_tile + full_tile * (full tiles) + partial_tile * (partial tiles), in the kernel's order.
/// In the rate model it takes the launch and then FLOP / flops. sim/README.md has the whole formula. Valid for head_dim
/// and value_dim; kernel_price() and tile_time_factor() say what other dims cost.
struct AttentionCost {
    std::int64_t head_dim = 128;
    std::int64_t value_dim = 128;
    WorkTile work_tile = WorkTile::query_tile;  ///< key `work_tile` of machine files
    std::int64_t tile_rows = 128;
    std::int64_t tile_keys = 128;
    std::vector<layouts::SmGroup> groups{};  ///< clusters of SMs that may share a work tile; `launch_rule` picks one
    KeyLaunchRule launch_rule = KeyLaunchRule::list_schedule;
    double launch_seconds = 0;
    double work_tile_seconds = 0;
    double full_tile_seconds = 0;
    double partial_tile_seconds = 0;
    double resume_seconds = 0;  ///< added to a query tile but in its rows' first block: reads the fp32 state
    /// Added to a launch of query tiles, whose last ones all wait for memory at once, per byte that is read or written
    /// for a number of O, if L2 does not hold what the launch touches.
    double tail_seconds_per_byte = 0;
    double dropout_tile_seconds = -1;  ///< added to each tile, full or partial, under dropout; below 0: unknown
    double flops = std::numeric_limits<double>::infinity();  ///< FLOP/s of visible pairs, for the rate model
    bool tiles_from_rate = false;  ///< the file has no tile prices: they are computed from `flops`

    /// SM admission: when a transfer that is a kernel gets SMs if it comes while an attend runs. It has priority, but
    /// thread blocks that run are not interrupted.
    enum class TransferStart {
        at_once,            ///< immediately: admission is not modelled
        as_work_tiles_end,  ///< when a work tile ends: thread blocks have one each
        at_the_end,         ///< when the attend ends: thread blocks take one work tile after another
    };
    TransferStart transfer_start = TransferStart::at_once;

    // GPU time of a pass beside its attends, all before the first one: a constant, and memory traffic in bytes per byte
    // of Q.
    double begin_seconds = 0, begin_memory_ratio = 0;

    /// Largest sustained FLOP/s that power allows at the clock of short runs, counting all pairs of all tiles. At a
    /// lower clock more FLOP/s are allowed: see clocks_within_power().
    double power_flops = std::numeric_limits<double>::infinity();
};

/// What a kernel does to scores (products of q and k) before the softmax.
enum class Scores {
    plain,   ///< scales them
    capped,  ///< also soft-caps them
};

/// A kernel other than Machine::forward and Machine::backward: of other dims, or with capped scores. Smaller dims are
/// padded to its own.
struct AttentionKernel {
    std::string name;  ///< names its sections in the file
    Scores scores = Scores::plain;
    AttentionCost forward, backward;

    const AttentionCost& attention(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }
};

/// Split-KV forward kernel for few query rows and a long cache: thread blocks share the keys. See split_kv_seconds().
struct SplitKvCost {
    std::int64_t rows = 0;  ///< the most query tokens that it is used for, and rows of one of its work tiles; 0: there
                            ///< is no such kernel
    double launch_seconds = 0;
    double bytes_per_second = std::numeric_limits<double>::infinity();        ///< of K and V, all SMs together
    double block_bytes_per_second = std::numeric_limits<double>::infinity();  ///< one thread block
    std::vector<layouts::SmGroup> groups{};                                   ///< thread blocks for one work tile
};

/// What a message between two GPUs costs: latency + bytes / min(channels * channel rate, link rate).
struct LinkCost {
    /// A value for messages of a range of sizes. A list of them grows by size, and its last value is also that of all
    /// larger messages.
    struct BySize {
        double up_to_bytes = 0;  ///< largest size for which the value holds
        double value = 1;
    };

    /// What moves messages.
    enum class Carrier {
        copy_engines,  ///< of the sender's GPU, which the host starts; they can read and write a peer's memory
        kernels,       ///< one at each end, as of NCCL: they hold SMs and wait for each other
    };

    /// When the two kernels of a message, its send and its receive, begin to hold SMs.
    enum class SmHoldStart {
        apart,                ///< each when it is ready itself; it then waits for the other
        both_ready_backward,  ///< in backward passes both when both are ready, except beside fused launches
    };

    double latency_seconds = 0;
    double link_bytes_per_second = std::numeric_limits<double>::infinity();  ///< per direction, shared by all flows
    double channel_bytes_per_second = std::numeric_limits<double>::infinity();
    std::vector<BySize> channels{};  ///< number of channels; empty: one
    double messages_per_block = 1;   ///< messages that a block travels as; their size chooses the channels
    double busy_speed_ratio = 1;     ///< speed while an attention kernel runs, relative to alone
    Carrier carrier = Carrier::copy_engines;
    double sms_per_channel = 0;    ///< SMs that kernels hold at both ends, also while waiting for the peer
    double send_memory_ratio = 0;  ///< memory traffic at the sender, in bytes per byte sent
    double receive_memory_ratio = 0;
    double piece_seconds = 0;        ///< added for each piece of memory of a message but the first
    double piece_issue_seconds = 0;  ///< the same for the host's issue time
    double pieces_bytes_per_second = std::numeric_limits<double>::infinity();  ///< of a message cut by heads
    SmHoldStart halves = SmHoldStart::apart;

    /// Whether a message's cost depends on more than its bytes.
    bool depends_on_more_than_bytes() const { return piece_seconds > 0; }

    /// Channels, bytes per second and SMs of a message of `bytes` bytes that has the link to itself.
    double channels_for(double bytes) const;
    double rate(double bytes, double slow_link_factor = 1) const;
    bool uses_kernels() const { return carrier == Carrier::kernels; }
    double sms(double bytes) const { return uses_kernels() ? channels_for(bytes) * sms_per_channel : 0; }
};

/// Two levels of switches: a leaf switch joins the ports of several hosts, the spine joins leaf switches. A leaf has
/// fewer links up than down: all traffic that leaves it shares the rate of its ports divided by `oversubscription`, and
/// so does all that enters it.
struct Network {
    enum class Leaves {
        hosts,  ///< a leaf has all ports of its hosts (fat tree)
        rails,  ///< a leaf has one port of each of its hosts, all with the same number (rail-optimised)
    };

    int hosts_per_leaf = 0;  ///< 0: one switch has all ports
    Leaves leaves = Leaves::hosts;
    double oversubscription = 1;
    double spine_latency_seconds = 0;  ///< added to a message from one leaf to another
};

/// One figure of a machine file, as records keep it.
struct Figure {
    std::string name;  ///< key in the file, which ends in its unit: "gpu.memory_gigabytes_per_second"
    double value = 0;
    std::string source;  ///< where the value comes from
};

/// A described machine: its hosts and GPUs, and the prices of work and messages. The default is ideal: no overheads,
/// unlimited bandwidth, nothing shared. sim/README.md explains every price.
struct Machine {
    std::string name = "ideal";
    std::string description;

    int hosts = 1;
    int gpus_per_host = 1 << 20;
    int nics_per_host = 1;  ///< network ports, each shared by gpus_per_host / nics_per_host GPUs

    double sms = 1;
    double memory_bytes_per_second = std::numeric_limits<double>::infinity();
    double attention_memory_bytes_per_second = 0;  ///< memory bandwidth that an attend needs to keep its speed beside
                                                   ///< messages; 0: none
    double cache_bytes = 0;                        ///< L2 of the GPU; 0: the file does not say
    /// Power of each GPU of a host, relative to the one that power_flops was measured on; empty: all 1.
    std::vector<double> power_of_gpus{};

    double transfer_issue_seconds = 0;  ///< host time to issue a message; a kernel is issued in no time

    AttentionCost forward;
    AttentionCost backward;
    std::vector<AttentionKernel> kernels;  ///< with prices of their own; kernel_price() chooses
    SplitKvCost split_kv;

    double accumulate_launch_seconds = 0;  ///< of a merge, an add or a copy
    double merge_memory_ratio = 0;         ///< memory traffic, in bytes per byte of the operand that is merged or added
    double add_memory_ratio = 0;
    double copy_memory_ratio = 0;  ///< of a copy from one place to another of the same memory

    // Memory traffic of a rotary embedding, in bytes per byte of q and k (back: of dq and dk). 0: two thirds of
    // add_memory_ratio, as each number is read and written once.
    double rotate_memory_ratio = 0, rotate_back_memory_ratio = 0;
    double matrix_product_flops = 0;  ///< FLOP/s of large matrix products; 0: as forward attends

    LinkCost inside_host;
    LinkCost between_hosts;
    Network network;

    double device_memory_bytes = 0;    ///< of one GPU; 0: the file does not say
    double reserved_memory_bytes = 0;  ///< the part of it that tensors cannot use: CUDA context, kernels, buffers of
                                       ///< transports

    /// Share of a predicted time by which it may be off, on a machine that was not measured; 0: the file does not say.
    double assumed_margin = 0;

    std::vector<Figure> figures;     ///< everything that was read or derived; empty if not from a file
    std::vector<std::string> notes;  ///< what users of the file should know, one line each
    std::string text;                ///< the file's text as it was read

    /// Whether its ranks are GPUs. A rank on a processor computes on one thread.
    bool has_gpus() const { return sms > 1; }

    std::int64_t gpus() const { return std::int64_t{hosts} * gpus_per_host; }
    const AttentionCost& attention(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }

    double product_flops() const { return matrix_product_flops > 0 ? matrix_product_flops : forward.flops; }

    /// Bytes per second in each direction between a leaf switch and the spine.
    double leaf_bytes_per_second() const {
        const auto ports = network.leaves == Network::Leaves::hosts ? nics_per_host : 1;
        return network.hosts_per_leaf * ports * between_hosts.link_bytes_per_second / network.oversubscription;
    }
};

/// How many figures the machine's file leaves out, so that they were derived.
std::int64_t derived_figures(const Machine& machine);

/// Those figures, one a line: "KEY = VALUE: rule". Empty if there are none.
std::string derived_text(const Machine& machine);

/// Reads a machine file (TOML; experiments/machines/h200_nvswitch_copy_engine.toml explains the keys). Keys that it
/// leaves out are derived by the rules of sim/README.md; sources of such figures begin with "derived". Attention
/// kernels of complete files without tile prices get them from their rate. Throws Error of one line with file and line
/// number if the file cannot be read, is not TOML, has an unknown key or an impossible value; if keys are missing that
/// cannot be derived, the message names all of them.
Machine load_machine(const std::filesystem::path& file);

/// The same, but figures in the file `implementation` replace the machine's own. It describes other software on that
/// machine: its kernels, its host times, and what it does beside attention (experiments/implementations).
Machine load_machine(const std::filesystem::path& file, const std::filesystem::path& implementation);

/// The text of a machine file, figures with five digits. `heading` becomes comments at the top. `sources` says where
/// each figure comes from, by key ("gpu.multiprocessors") or by section ("gpu").
std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& heading);

/// load_machine() from the text of a file; `name` stands for the file in error messages.
Machine parse_machine(std::string_view text, std::string_view name);

/// How tile prices and `teraflops` of a cost contradict each other, for example "618.2 TFLOP/s by full_tile_us, 300 by
/// teraflops". Empty if they differ by at most 20 %, if one of them is missing, and for tiles of one row, whose time is
/// that of memory.
std::string contradiction_of_rates(const AttentionCost& cost, layouts::Pass pass, double sms);

/// Computes tile prices for costs that have only a rate: a tile, full or partial, takes its FLOP at `teraflops`. Adds
/// notes to the machine on which these are, and where prices and rates contradict each other.
void complete_tile_prices(Machine& machine);

/// One key of a machine file, for people. Kernels other than the main one have the section [kernels.NAME].
struct MachineKey {
    std::string name;      ///< with its section: "attention.forward.launch_us"
    std::string unit;      ///< "us", "GB/s"; of a text its values
    std::string range;     ///< values that the reader accepts
    std::string term;      ///< what uses it: a row of the tables in sim/README.md. Empty: it is no part of a time
    std::string left_out;  ///< "required", the rule by which it is derived, or the optional section that it belongs to
};

/// All keys, in the order of a written file.
std::vector<MachineKey> machine_keys();

}  // namespace ringlab::sim
