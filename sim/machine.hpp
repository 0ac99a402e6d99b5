#pragma once

#include "layouts/problem.hpp"
#include "layouts/work.hpp"

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// What a processor takes up at a time, of one batch element.
enum class Item {
    query_tile,  ///< a tile of query rows, of one query head
    key_tile,    ///< a tile of keys, of one kv head: its query heads one after another
};

/// Time of an attention block on one GPU: launch + makespan over the multiprocessors of {item + full_tile * full +
/// partial_tile * partial} per item, the longest first; or, in the rate model, launch + FLOP / flops. Calibrated for
/// head_dim and value_dim; for others the tile times go as the FLOP of a tile.
struct AttentionCost {
    using Group = layouts::Sharing;

    std::int64_t head_dim = 128;
    std::int64_t value_dim = 128;
    Item item = Item::query_tile;
    std::int64_t tile_rows = 128;
    std::int64_t tile_keys = 128;
    std::vector<Group> groups{};  ///< other than one multiprocessor an item: layouts::choose_sharing() chooses
    double launch_seconds = 0;
    double item_seconds = 0;
    double full_tile_seconds = 0;
    double partial_tile_seconds = 0;
    double idle_item_seconds = 0;  ///< of an item that meets no tile, where something is written for it all the same
    double resume_seconds = 0;     ///< more of a query tile, where rows go on from a state kept in fp32
    double finish_seconds = 0;     ///< more of a query tile, where it is the last of its rows
    double share_seconds = 0;      ///< more of an item, for each doubling of those that share it: they add up parts
    double reread_seconds = 0;     ///< more of an item of keys, for a tile of rows that the cache has had and lost
    // Of query tiles, where the cache does not hold what a launch touches: more of an item that meets no tile, for each
    // byte in which a number of O is read; and more of a launch, whose last items wait for memory all at once, for each
    // in which one is read or written.
    double idle_byte_seconds = 0, last_byte_seconds = 0;
    double joined_ratio = 1;           ///< a launch of several blocks takes so many times what its items say
    double dropout_tile_seconds = -1;  ///< more of a tile, full or partial, where p is dropped out; below 0: unknown
    double flops = std::numeric_limits<double>::infinity();  ///< FLOP/s of visible pairs, for the rate model
    bool tiles_from_rate = false;  ///< the file has no prices of tiles: what flops say is theirs

    /// When the kernel of a transfer that comes beside an attend finds room on multiprocessors. It is served first, but
    /// blocks of the attend that run stay.
    enum class Room {
        at_once,       ///< not modelled
        as_items_end,  ///< a block is of one item
        at_the_end,    ///< blocks take item after item
    };
    Room room = Room::at_once;

    // Of a pass, before its first attend and behind its last: memory traffic per byte of Q, and of Q, K and V.
    double begin_seconds = 0, begin_memory_ratio = 0;
    double end_seconds = 0, end_memory_ratio = 0;

    /// FLOP/s of all pairs of tiles that power allows without end, were they done at the clock of short runs.
    double power_flops = std::numeric_limits<double>::infinity();
};

/// What a kernel does to products of q and k before the softmax.
enum class Scores {
    plain,   ///< scales them
    capped,  ///< soft-caps them too
};

/// Another kernel than that of Machine::forward and backward: of other dims, or with capped scores. Problems of smaller
/// dims are filled up to its own.
struct AttentionKernel {
    std::string name;  ///< of its sections in the file
    Scores scores = Scores::plain;
    AttentionCost forward, backward;

    const AttentionCost& attention(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }
};

/// A forward kernel for a few rows of a long cache, whose keys thread blocks share: see few_rows_seconds().
struct FewRows {
    std::int64_t rows = 0;  ///< tokens that have so few query rows; also rows of a unit. 0: there is no such kernel
    double launch_seconds = 0;
    double bytes_per_second = std::numeric_limits<double>::infinity();        ///< of K and V
    double block_bytes_per_second = std::numeric_limits<double>::infinity();  ///< that one thread block reads
    std::vector<layouts::Sharing> groups{};                                   ///< blocks that may share a unit
};

/// What a message between two GPUs costs: latency + bytes / min(channels * channel rate, link rate).
struct LinkCost {
    struct Channels {
        double up_to_bytes = 0;  ///< for messages up to this size
        double count = 1;
    };

    /// Messages that an attend of the sender, which they travel beside, hides: kernels of a communicator of their own
    /// with fewer channels.
    struct Hidden {
        double channels = 0;            ///< 0: there are none
        std::vector<Channels> rates{};  ///< of all of them together, GB/s in place of channels
        double busy_speed_ratio = 1;
        double flop_a_byte = 0;  ///< of the attend, from which on a message is hidden
    };

    /// When kernels of a message's two halves begin to hold multiprocessors.
    enum class Halves {
        apart,              ///< each when it is ready, and waits there for the other
        together_backward,  ///< in backward passes both when both are ready, but of launches of several attends
    };

    double latency_seconds = 0;
    double link_bytes_per_second = std::numeric_limits<double>::infinity();  ///< shared by all flows, per direction
    double channel_bytes_per_second = std::numeric_limits<double>::infinity();
    std::vector<Channels> channels{};  ///< by growing message size, the last for all above; none: 1 for every size
    double messages_per_block = 1;     ///< a block's tensors travel as this many messages, which choose the channels
    double busy_speed_ratio = 1;       ///< speed beside a running attention kernel, against alone
    double multiprocessors_per_channel = 0;  ///< held at both ends from the launch on, also while waiting for the peer
    double send_memory_ratio = 0;            ///< memory traffic at the sender, bytes per byte sent
    double receive_memory_ratio = 0;
    double piece_seconds = 0;        ///< for each piece of memory of a message but the first
    double piece_issue_seconds = 0;  ///< likewise, of the host
    double pieces_bytes_per_second = std::numeric_limits<double>::infinity();  ///< of a message of several pieces
    Hidden hidden{};
    Halves halves = Halves::apart;

    /// Whether it matters what a message is, besides its bytes.
    bool looks_at_messages() const { return piece_seconds > 0 || hidden.channels > 0; }

    double hidden_rate(double bytes) const;

    /// Bytes per second of a block of `bytes` that has the link to itself, and the multiprocessors it holds.
    double channels_for(double bytes) const;
    double rate(double bytes, double slow_link_factor = 1) const;
    double multiprocessors(double bytes) const { return channels_for(bytes) * multiprocessors_per_channel; }
};

/// Leaf switches, each of which joins ports of several hosts, and the spine that joins leaves. A leaf has fewer links
/// up than down: all that leaves it, or enters it, shares the rate of its ports divided by `oversubscription`.
struct Network {
    enum class Leaves {
        hosts,  ///< a leaf has all ports of its hosts: a fat tree
        rails,  ///< a leaf has one port of each of its hosts, all with the same number: rail-optimised
    };

    int hosts_per_leaf = 0;  ///< 0: one switch has all ports
    Leaves leaves = Leaves::hosts;
    double oversubscription = 1;
    double spine_latency_seconds = 0;  ///< more for a message from leaf to leaf
};

/// One figure of a machine file, for the record.
struct Figure {
    std::string name;  ///< with its unit, as in the file: "gpu.memory_gigabytes_per_second"
    double value = 0;
    std::string source;  ///< where it comes from
};

/// A described machine: hosts of GPUs, what work costs on a GPU, and what messages cost between them. The default is
/// ideal: no overheads, unlimited bandwidth, nothing shared.
struct Machine {
    std::string name = "ideal";
    std::string description;

    int hosts = 1;
    int gpus_per_host = 1 << 20;
    int nics_per_host = 1;  ///< network ports, each shared by gpus_per_host / nics_per_host GPUs

    double multiprocessors = 1;
    double memory_bytes_per_second = std::numeric_limits<double>::infinity();
    double attention_memory_bytes_per_second = 0;  ///< what a running attention kernel competes for
    double cache_bytes = 0;                        ///< between memory and all multiprocessors; 0: the file does not say
    /// Of each GPU of a host, against that for which power_flops was found; empty: all alike.
    std::vector<double> power_of_gpus{};

    double pass_issue_seconds = 0;     ///< host time of a pass before its first operation
    double compute_issue_seconds = 0;  ///< host time to issue one operation
    double transfer_issue_seconds = 0;
    /// The same of a message right behind another one in the same step, on its channel and with its peer, whose host is
    /// there; 0: as of any other.
    double next_transfer_issue_seconds = 0;

    AttentionCost forward;
    AttentionCost backward;
    std::vector<AttentionKernel> kernels;  ///< that have prices of their own: kernel_price() chooses
    FewRows few_rows;

    double accumulate_launch_seconds = 0;  ///< of a merge or an add
    double merge_memory_ratio = 0;         ///< memory traffic, bytes per byte of the operand taken in
    double add_memory_ratio = 0;
    double copy_launch_seconds = 0;  ///< and what is moved to another place of the same memory
    double copy_memory_ratio = 0;

    // What rotates q and k, and dq and dk: memory traffic per byte of them; 0: at the speed of adds, read and written
    // once.
    double rotate_memory_ratio = 0, rotate_back_memory_ratio = 0;
    double matrix_product_flops = 0;  ///< FLOP/s of large matrix products; 0: the file does not say, as forward attends

    LinkCost inside_host;
    LinkCost between_hosts;
    Network network;

    double device_memory_bytes = 0;    ///< of one GPU; 0: the file does not say
    double reserved_memory_bytes = 0;  ///< of it what tensors cannot have: context, kernels, buffers of transports

    std::vector<Figure> figures;     ///< everything read, empty if not from a file
    std::vector<std::string> notes;  ///< what who uses the file should know, a line each
    std::string text;                ///< the file as it was read

    std::int64_t gpus() const { return std::int64_t{hosts} * gpus_per_host; }
    const AttentionCost& attention(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward : backward;
    }

    double product_flops() const { return matrix_product_flops > 0 ? matrix_product_flops : forward.flops; }

    /// Bytes per second, each way, that a leaf switch and the spine exchange.
    double leaf_bytes_per_second() const {
        const auto ports = network.leaves == Network::Leaves::hosts ? nics_per_host : 1;
        return network.hosts_per_leaf * ports * between_hosts.link_bytes_per_second / network.oversubscription;
    }
};

/// Reads a machine file (TOML; the ones in experiments/machines explain every key). Attention without prices of tiles
/// gets them from its rate. Throws Error of one line, with file and line number, if the file cannot be read, is not
/// TOML, has a key that is not known, or a value that cannot be; and with all of their names if keys are missing.
Machine load_machine(const std::filesystem::path& file);

/// The same, with what the file `implementation` gives in place of the machine's own figures: other software on that
/// machine, with its kernels, its host times, and what it does beside attention (experiments/implementations).
Machine load_machine(const std::filesystem::path& file, const std::filesystem::path& implementation);

/// The text of a machine file, with the machine's figures to five digits: `heading` as comments at its top, and for
/// each figure where it comes from, by its key ("gpu.multiprocessors") or by a section around it ("gpu").
std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& heading);

/// As load_machine, from the text of a file; `name` stands for the file in error messages.
Machine parse_machine(std::string_view text, std::string_view name);

}  // namespace ringlab::sim
