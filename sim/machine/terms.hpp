#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/operations/operation.hpp"
#include "sim/machine/machine.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

namespace ringlab::sim {

/// Values that a figure of a machine file may have.
struct Range {
    double low = 0;
    double high = 1e15;
    bool whole = false;
    bool may_be_infinite = false;
};

namespace ranges {

inline constexpr Range not_negative{0, 1e15};
inline constexpr Range bandwidth{1e-9, 1e9, false, true};
inline constexpr Range fraction{1e-6, 1};
inline constexpr Range count{1, 1 << 20, true};
inline constexpr Range ratio{0, 100};
inline constexpr double infinite = std::numeric_limits<double>::infinity();

}  // namespace ranges

namespace units {

inline constexpr double micro = 1e-6, percent = 1e-2, mega = 1e6, giga = 1e9, tera = 1e12;

}  // namespace units

/// What the reader takes for a key that a machine file leaves out, and the rule by which it does.
struct Derived {
    const char* rule = nullptr;  ///< null: the key is required, or optional with its section
    double value = 0;            ///< in the key's unit
    bool depends = false;        ///< on other keys of the file
};

/// For forward and backward, or for links inside a host and between hosts.
struct DerivedPair {
    Derived first{}, second{};
};

constexpr DerivedPair derived_as(const char* rule, double first, double second = 0) {
    return {{rule, first}, {rule, second}};
}

/// Whether `calibrate` fits a price to timed attends and passes, and of which kernels.
enum class Fitted {
    no,               ///< the price is found in another way
    yes,              ///< of all kernels
    for_query_tiles,  ///< of kernels whose work tiles are query tiles; for others it is 0
    for_key_tiles,    ///< of kernels whose work tiles are key tiles; for others it is 0
};

/// A key of a machine file that is one number, and the member of `Owner` that holds it: a price of a term. The member's
/// default costs nothing.
template <class Owner>
struct Price {
    const char* key;  ///< with its section; for AttentionCost and LinkCost without the pass's or the link's own
    double Owner::*value;
    DerivedPair derived{};
    Fitted fitted = Fitted::no;
    double unit = units::micro;
    Range range = ranges::not_negative;

    /// A rate is fitted as its inverse, which is 0 where nothing limits it.
    bool is_rate() const { return range.may_be_infinite; }
    double in_fit(const Owner& owner) const { return is_rate() ? 1 / (owner.*value) : owner.*value; }
    void set_in_fit(Owner& owner, double x) const { owner.*value = is_rate() ? 1 / x : x; }

    std::string_view section() const {
        const std::string_view whole = key;
        const auto dot = whole.find('.');
        return dot == whole.npos ? "" : whole.substr(0, dot);
    }
};

namespace terms {

// ---- One launch of an attention kernel, beside its work tiles ----

struct Launch {
    static constexpr auto name = "launch", effect = "launch, ramp and drain of kernels";
    static constexpr Price<AttentionCost> prices[] = {
        {"launch_us", &AttentionCost::launch_seconds,
         derived_as("as H200: launch, ramp and drain, about alike on all GPUs", 7.9652, 8.8192), Fitted::yes}};
};

/// The last work tiles of a launch all wait for memory at once.
struct OverflowTail {
    static constexpr auto name = "overflow-tail", effect = "L2 overflow of O at the end of a launch";
    static constexpr Price<AttentionCost> prices[] = {
        {"ends.last_byte_us", &AttentionCost::tail_seconds_per_byte, {}, Fitted::for_query_tiles}};

    /// Share of a launch's memory traffic that L2 misses: 0 if the launch touches at most half of L2's size, 1 from one
    /// and a half times its size on. These bounds are not derived.
    static double missed(double touched_bytes, double cache_bytes) {
        return std::clamp(touched_bytes / cache_bytes - 0.5, 0.0, 1.0);
    }
    /// `bytes`: read and written for each number of O. `busy_sms`: share of all SMs that have a work tile.
    static double of_launch(const AttentionCost& cost, double missed, double bytes, double busy_sms) {
        return cost.tail_seconds_per_byte * missed * bytes * busy_sms;
    }
};

/// play/clocks.cpp finds the clock.
struct Power {
    static constexpr auto name = "power", effect = "the clock that power allows";
    static constexpr Price<AttentionCost> prices[] = {
        {"power_teraflops", &AttentionCost::power_flops,
         derived_as("the rate that was given is taken to be what power allows without end", ranges::infinite,
                    ranges::infinite),
         Fitted::yes, units::tera, ranges::bandwidth}};
};

struct PowerOfGpus {
    static constexpr auto name = "power-of-gpus", effect = "that GPUs differ in power";
    static void remove(Machine& machine) { machine.power_of_gpus.clear(); }
};

// ---- One work tile: the sum of the terms' of_work_tile() ----

/// What a work tile has to do.
struct WorkTileLoad {
    layouts::TileCounts tiles;  ///< for each query head
    bool begins = true;         ///< whether this is the first block of its rows
    int heads_in_turn = 1;      ///< query heads that it takes one after another
    std::int64_t sms = 1;       ///< that share it
    int visits = 1;             ///< blocks of the launch in which it meets any tile
};

/// H200's price of a tile of 128 x 128, see tile_scale() of machine_keys.cpp. Its backward tiles have 64 rows, so a
/// tile of 128 rows costs as much as two of them. A derived query tile stands for a key tile of one query head.
constexpr DerivedPair tile_of_h200(double forward, double backward) {
    constexpr auto rule =
        "H200's price of a tile of 128 x 128, times a factor of the pass with which a work tile over 32Ki keys runs at "
        "teraflops";
    return {{rule, forward, true}, {rule, backward, true}};
}

struct WorkTilePrologue {
    static constexpr auto name = "work-tile", effect = "prologue, loads and stores of a work tile";
    static constexpr Price<AttentionCost> prices[] = {
        {"work_tile_us", &AttentionCost::work_tile_seconds, tile_of_h200(2.0719, 9.611), Fitted::yes}};

    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return cost.work_tile_seconds * load.visits;
    }
};

/// Full tiles, and partial ones, which the mask cuts. The term that `--without` removes is what partial ones cost more.
struct Tiles {
    static constexpr auto name = "partial-tiles", effect = "that tiles which the mask cuts cost more than full ones";
    static constexpr Price<AttentionCost> prices[] = {
        {"full_tile_us", &AttentionCost::full_tile_seconds, tile_of_h200(1.4895, 2 * 1.9168), Fitted::yes},
        {"partial_tile_us", &AttentionCost::partial_tile_seconds, tile_of_h200(2.1493, 2 * 2.8921), Fitted::yes}};

    static double of_tiles(const AttentionCost& cost, const layouts::TileCounts& tiles) {
        return cost.full_tile_seconds * static_cast<double>(tiles.full) +
               cost.partial_tile_seconds * static_cast<double>(tiles.partial);
    }
    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return of_tiles(cost, load.tiles) * load.heads_in_turn / static_cast<double>(load.sms);
    }
    static void remove(AttentionCost& cost) { cost.partial_tile_seconds = cost.full_tile_seconds; }
};

struct Resume {
    static constexpr auto name = "resume", effect = "read of the fp32 state of earlier blocks";
    static constexpr Price<AttentionCost> prices[] = {
        {"resume_us", &AttentionCost::resume_seconds, tile_of_h200(1.6194, 0), Fitted::for_query_tiles}};

    static double of_work_tile(const AttentionCost& cost, const WorkTileLoad& load) {
        return cost.work_tile == WorkTile::query_tile && !load.begins ? cost.resume_seconds : 0;
    }
};

// ---- What a pass does on the GPU beside its attends, and the host that issues it ----

/// Kernels whose work tiles are query tiles begin with launches, those of key tiles with memory traffic as well. So one
/// figure is fitted for each.
struct Begin {
    static constexpr auto name = "begin", effect = "kernels and fills around the attends of a pass";
    static constexpr Price<AttentionCost> prices[] = {
        {"begin_us", &AttentionCost::begin_seconds, derived_as("as H200: launches", 6.6898), Fitted::for_query_tiles},
        {"begin_memory_ratio", &AttentionCost::begin_memory_ratio,
         derived_as("the rate that was given is taken to be that of whole passes", 0), Fitted::for_key_tiles, 1,
         ranges::ratio}};

    static double seconds(const AttentionCost& cost, double bytes_of_q, double memory) {
        return cost.begin_seconds + cost.begin_memory_ratio * bytes_of_q / memory;
    }
};

/// Merges of partial results, sums of gradients, and copies.
struct Sums {
    static constexpr auto name = "sum-launches", effect = "launches of merges, sums and copies";
    static constexpr Price<Machine> prices[] = {
        {"accumulate.launch_us", &Machine::accumulate_launch_seconds,
         derived_as("as H200: a launch, about alike on all GPUs", 7.1164)},
        {"accumulate.merge_memory_ratio", &Machine::merge_memory_ratio, derived_as("as H200: counted in bytes", 5),
         Fitted::no, 1, ranges::ratio},
        {"accumulate.add_memory_ratio", &Machine::add_memory_ratio, derived_as("as H200: counted in bytes", 3.2835),
         Fitted::no, 1, ranges::ratio},
        {"accumulate.copy_memory_ratio", &Machine::copy_memory_ratio, derived_as("as H200: counted in bytes", 7.0363),
         Fitted::no, 1, ranges::ratio}};

    /// The first partial result of its rows finds no result to read. It is only converted to fp32.
    static double seconds(const Machine& machine, const layouts::Op& op, std::int64_t bytes_of_number) {
        auto ratio = op.kind == layouts::OpKind::copy    ? machine.copy_memory_ratio
                     : op.kind == layouts::OpKind::merge ? machine.merge_memory_ratio
                                                         : machine.add_memory_ratio;
        if (op.kind == layouts::OpKind::merge && op.begins)
            ratio = std::min(ratio, 1 + 4 / static_cast<double>(bytes_of_number));
        return machine.accumulate_launch_seconds +
               ratio * static_cast<double>(op.bytes) / machine.memory_bytes_per_second;
    }
    static void remove(Machine& machine) { machine.accumulate_launch_seconds = 0; }
};

struct MessageIssue {
    static constexpr auto name = "message-issue", effect = "host time to issue a message";
    static constexpr Price<Machine> prices[] = {
        {"host.transfer_issue_us", &Machine::transfer_issue_seconds, derived_as("as H200: a CPU's time", 14.784)}};

    static void remove(Machine& machine) {
        machine.transfer_issue_seconds = 0;
        for (auto* link : {&machine.inside_host, &machine.between_hosts}) link->piece_issue_seconds = 0;
    }
};

// ---- Messages, and attends beside them. Their time with the link to itself: cost/cost.cpp ----

inline constexpr auto inside_as_h200 = "as H200 over copy engines",
                      between_as_cluster = "as h200_cluster.toml, where NCCL is assumed";

struct Latency {
    static constexpr auto name = "latency", effect = "set-up of a message";
    static constexpr Price<LinkCost> prices[] = {
        {"latency_us", &LinkCost::latency_seconds, {{inside_as_h200, 5.8927}, {between_as_cluster, 8}}}};
};

struct BesideAttends {
    static constexpr auto name = "beside-attends", effect = "that messages are slower while an attend runs";
    static constexpr Price<LinkCost> prices[] = {{"busy_speed_ratio", &LinkCost::busy_speed_ratio,
                                                  derived_as("as H200: messages are as fast beside an attend", 1, 1),
                                                  Fitted::no, 1, ranges::fraction}};
};

/// play/shared_resources.cpp shares it out.
struct MemoryShared {
    static constexpr auto name = "memory-shared", effect = "that attends and messages share the memory's bandwidth";
    static constexpr Price<Machine> prices[] = {{"gpu.attention_memory_gigabytes_per_second",
                                                 &Machine::attention_memory_bytes_per_second,
                                                 derived_as("as H200: rings are predicted as well without it", 0),
                                                 Fitted::no,
                                                 units::giga,
                                                 {0, 1e9}}};
};

/// play/sm_admission.hpp says how long they wait.
struct SmAdmission {
    static constexpr auto name = "sm-admission", effect = "that message kernels wait for SMs beside an attend";
    static void remove(AttentionCost& cost) { cost.transfer_start = AttentionCost::TransferStart::at_once; }
};

struct Pieces {
    static constexpr auto name = "pieces", effect = "that messages from several places in memory are several calls";
    static constexpr Price<LinkCost> prices[] = {{"pieces.each_us", &LinkCost::piece_seconds},
                                                 {"pieces.gigabytes_per_second",
                                                  &LinkCost::pieces_bytes_per_second,
                                                  {},
                                                  Fitted::no,
                                                  units::giga,
                                                  ranges::bandwidth},
                                                 {"pieces.issue_us", &LinkCost::piece_issue_seconds}};

    static double latency(const LinkCost& link, std::int64_t pieces) {
        return link.piece_seconds * static_cast<double>(pieces - 1);
    }
};

}  // namespace terms

/// The terms of the cost model, in the order of sim/README.md. Each is a type without state, which has
///
/// - name, effect: as `validate --without` and people call it, and what it models
///
/// - prices: its figures in a machine file. Figures that are no single numbers are in machine_keys.cpp
///
/// - remove(owner): makes it cost nothing, where that is not the default of its prices
///
/// - its formula, or the name of the file that has it
///
/// Calibration finds prices in this order: of prices that always occur together, the first is found
/// and the others are 0.
using Terms = std::tuple<terms::Launch, terms::WorkTilePrologue, terms::Tiles, terms::Resume, terms::OverflowTail,
                         terms::Power, terms::PowerOfGpus, terms::Begin, terms::Sums, terms::MessageIssue,
                         terms::Latency, terms::BesideAttends, terms::MemoryShared, terms::SmAdmission, terms::Pieces>;

template <class Visit>
constexpr void for_each_term(Visit visit) {
    std::apply([&](auto... term) { (visit(term), ...); }, Terms{});
}

/// Calls visit(price) for each price of `Owner` of all terms.
template <class Owner, class Visit>
void for_each_price(Visit visit) {
    for_each_term([&](auto term) {
        if constexpr (requires { Price<Owner>(term.prices[0]); })
            for (const auto& price : term.prices) visit(price);
    });
}

/// Seconds of a work tile that the kernel visits, also of one that sees nothing.
inline double work_tile_seconds(const AttentionCost& cost, const terms::WorkTileLoad& load) {
    using namespace terms;
    const auto sum = [&](auto... term) { return (... + term.of_work_tile(cost, load)); };
    // From left to right, in this order: another one changes the last digits of predictions.
    return sum(Resume{}, WorkTilePrologue{}, Tiles{});
}

/// A term of the cost model that a machine can be without: what its keys describe then costs nothing.
struct Term {
    const char* name;
    const char* effect;  ///< what is not modelled any more, for people
    void (*remove)(Machine&);
};

/// All terms, in their order.
std::span<const Term> terms_to_remove();

/// Throws Error that lists the known terms if there is none of this name.
const Term& find_term(const std::string& name);

}  // namespace ringlab::sim
