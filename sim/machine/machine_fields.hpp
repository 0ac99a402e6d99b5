#pragma once

#include "sim/machine/machine.hpp"

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

}  // namespace ranges

/// Every key of a machine file, in one place, for everything that reads or writes one. `fields` must have
///
/// - text(key, value)
///
/// - choice(key, value, names): an enum, by name
///
/// - number(key, value, range, unit): the file has value / unit
///
/// - numbers(key, value, range), groups(key, value) and channels(key, value): lists
///
/// - section(name, wanted): whether an optional section is in the file, or is to be written
///
/// - given(key): the same for an optional key
///
/// - sections(name, all, begin): when reading, fills `all` with one element for each section within `name`; when
/// writing, nothing
template <class Fields>
class MachineFields {
public:
    explicit MachineFields(Fields& fields) : fields_(fields) {}

    template <class AnyMachine>
    void visit(AnyMachine& m) {
        using namespace ranges;
        using TransferStart = AttentionCost::TransferStart;
        fields_.text("name", m.name);
        fields_.text("description", m.description);
        fields_.number("topology.hosts", m.hosts, count, 1);
        fields_.number("topology.gpus_per_host", m.gpus_per_host, count, 1);
        fields_.number("topology.nics_per_host", m.nics_per_host, count, 1);
        fields_.number("gpu.multiprocessors", m.sms, {1, 1 << 16, true}, 1);
        fields_.number("gpu.memory_gigabytes_per_second", m.memory_bytes_per_second, bandwidth, giga);
        fields_.number("gpu.attention_memory_gigabytes_per_second", m.attention_memory_bytes_per_second, {0, 1e9},
                       giga);
        fields_.number("host.pass_issue_us", m.pass_issue_seconds, not_negative, micro);
        fields_.number("host.compute_issue_us", m.compute_issue_seconds, not_negative, micro);
        fields_.number("host.transfer_issue_us", m.transfer_issue_seconds, not_negative, micro);
        if (fields_.section("cache", m.cache_bytes > 0))
            fields_.number("cache.megabytes", m.cache_bytes, bandwidth, mega);
        if (fields_.section("power", !m.power_of_gpus.empty()))
            fields_.numbers("power.of_gpus", m.power_of_gpus, {0.1, 10});
        attention("attention.forward", m.forward);
        attention("attention.backward", m.backward);
        if (fields_.section("few_rows", m.split_kv.rows > 0)) {
            fields_.number("few_rows.rows", m.split_kv.rows, count, 1);
            fields_.number("few_rows.launch_us", m.split_kv.launch_seconds, not_negative, micro);
            fields_.number("few_rows.gigabytes_per_second", m.split_kv.bytes_per_second, bandwidth, giga);
            fields_.number("few_rows.block_gigabytes_per_second", m.split_kv.block_bytes_per_second, bandwidth, giga);
            fields_.groups("few_rows.groups", m.split_kv.groups);
        }
        fields_.number("accumulate.launch_us", m.accumulate_launch_seconds, not_negative, micro);
        fields_.number("accumulate.merge_memory_ratio", m.merge_memory_ratio, ratio, 1);
        fields_.number("accumulate.add_memory_ratio", m.add_memory_ratio, ratio, 1);
        fields_.number("accumulate.copy_launch_us", m.copy_launch_seconds, not_negative, micro);
        fields_.number("accumulate.copy_memory_ratio", m.copy_memory_ratio, ratio, 1);
        if (fields_.section("rotation", m.rotate_memory_ratio > 0 || m.rotate_back_memory_ratio > 0)) {
            fields_.number("rotation.memory_ratio", m.rotate_memory_ratio, ratio, 1);
            fields_.number("rotation.back_memory_ratio", m.rotate_back_memory_ratio, ratio, 1);
        }
        link("inside_host", m.inside_host);
        if (fields_.section("between_hosts", m.hosts > 1)) link("between_hosts", m.between_hosts);
        if (fields_.section("network", m.network.hosts_per_leaf > 0)) {
            fields_.choice("network.leaves", m.network.leaves, {"hosts", "rails"});
            fields_.number("network.hosts_per_leaf", m.network.hosts_per_leaf, count, 1);
            fields_.number("network.oversubscription", m.network.oversubscription, {1, 1000}, 1);
            fields_.number("network.spine_latency_us", m.network.spine_latency_seconds, not_negative, micro);
        }
        if (fields_.section("room_for_transfers", m.forward.transfer_start != TransferStart::at_once ||
                                                      m.backward.transfer_start != TransferStart::at_once)) {
            const auto names = {"at once", "as items end", "at the end"};
            fields_.choice("room_for_transfers.forward", m.forward.transfer_start, names);
            fields_.choice("room_for_transfers.backward", m.backward.transfer_start, names);
        }
        auto& inside = m.inside_host;
        if (fields_.section("hidden_messages", inside.hidden.channels > 0)) {
            fields_.number("hidden_messages.channels", inside.hidden.channels, {1, 1024}, 1);
            fields_.channels("hidden_messages.gigabytes_per_second", inside.hidden.rates);
            fields_.number("hidden_messages.busy_speed_ratio", inside.hidden.busy_speed_ratio, fraction, 1);
            fields_.number("hidden_messages.flop_a_byte", inside.hidden.flop_per_byte, not_negative, 1);
            fields_.choice("hidden_messages.halves", inside.halves, {"apart", "together, backward"});
        }
        if (fields_.section("pieces", inside.piece_seconds > 0)) {
            fields_.number("pieces.each_us", inside.piece_seconds, not_negative, micro);
            fields_.number("pieces.gigabytes_per_second", inside.pieces_bytes_per_second, bandwidth, giga);
            fields_.number("pieces.issue_us", inside.piece_issue_seconds, not_negative, micro);
        }
        if (fields_.section("messages_in_a_row", m.next_transfer_issue_seconds > 0))
            fields_.number("messages_in_a_row.issue_us", m.next_transfer_issue_seconds, not_negative, micro);
        if (fields_.section("joined_launches", m.forward.fused_ratio != 1 || m.backward.fused_ratio != 1)) {
            fields_.number("joined_launches.forward_ratio", m.forward.fused_ratio, {0.1, 10}, 1);
            fields_.number("joined_launches.backward_ratio", m.backward.fused_ratio, {0.1, 10}, 1);
        }
        if (fields_.section("matrix_product", m.matrix_product_flops > 0))
            fields_.number("matrix_product.teraflops", m.matrix_product_flops, bandwidth, tera);
        if (fields_.section("dropout", m.forward.dropout_tile_seconds >= 0)) {
            fields_.number("dropout.forward_tile_us", m.forward.dropout_tile_seconds, not_negative, micro);
            fields_.number("dropout.backward_tile_us", m.backward.dropout_tile_seconds, not_negative, micro);
        }
        if (fields_.section("device_memory", m.device_memory_bytes > 0)) {
            fields_.number("device_memory.gigabytes", m.device_memory_bytes, bandwidth, giga);
            fields_.number("device_memory.reserved_gigabytes", m.reserved_memory_bytes, not_negative, giga);
        }
        // After the main kernel, from which they take what they share with it.
        fields_.sections("kernels", m.kernels, [&](auto& kernel) {
            kernel.forward = m.forward;
            kernel.backward = m.backward;
            for (auto* cost : {&kernel.forward, &kernel.backward})
                for (auto* own :
                     {&cost->full_tile_seconds, &cost->partial_tile_seconds, &cost->cluster_seconds,
                      &cost->idle_tile_seconds_per_byte, &cost->tail_seconds_per_byte, &cost->l2_miss_seconds})
                    *own = 0;
        });
        for (auto& one : m.kernels) kernel("kernels." + one.name, one);
    }

private:
    static constexpr double micro = 1e-6, mega = 1e6, giga = 1e9, tera = 1e12;

    template <class Cost>
    void attention(const std::string& section, Cost& c) {
        using namespace ranges;
        dims(section, c);
        if (needs_tiles(section) || fields_.given(section + ".item"))
            fields_.choice(section + ".item", c.item, {"query tile", "key tile"});
        tiles(section, c);
        fields_.number(section + ".begin_us", c.begin_seconds, not_negative, micro);
        fields_.number(section + ".begin_memory_ratio", c.begin_memory_ratio, ratio, 1);
        fields_.number(section + ".end_us", c.end_seconds, not_negative, micro);
        fields_.number(section + ".end_memory_ratio", c.end_memory_ratio, ratio, 1);
        fields_.number(section + ".power_teraflops", c.power_flops, bandwidth, tera);
        ends_of_items(section, c);
        reread(section, c);
    }

    /// What a kernel has of its own; everything else is as for the machine's main kernel.
    template <class Kernel>
    void kernel(const std::string& section, Kernel& k) {
        fields_.choice(section + ".scores", k.scores, {"plain", "capped"});
        for (const auto* pass : {".forward", ".backward"}) {
            auto& cost = pass == std::string_view(".forward") ? k.forward : k.backward;
            dims(section + pass, cost);
            tiles(section + pass, cost);
            fields_.number(section + pass + ".power_teraflops", cost.power_flops, ranges::bandwidth, tera);
            ends_of_items(section + pass, cost);
            reread(section + pass, cost);
        }
    }

    template <class Cost>
    void ends_of_items(const std::string& section, Cost& c) {
        const auto ends = section + ".ends";
        if (!fields_.section(ends,
                             c.cluster_seconds > 0 || c.idle_tile_seconds_per_byte > 0 || c.tail_seconds_per_byte > 0))
            return;
        fields_.number(ends + ".share_us", c.cluster_seconds, ranges::not_negative, micro);
        fields_.number(ends + ".idle_byte_us", c.idle_tile_seconds_per_byte, ranges::not_negative, micro);
        fields_.number(ends + ".last_byte_us", c.tail_seconds_per_byte, ranges::not_negative, micro);
    }

    template <class Cost>
    void reread(const std::string& section, Cost& c) {
        if (fields_.section(section + ".reread", c.l2_miss_seconds > 0))
            fields_.number(section + ".reread.tile_us", c.l2_miss_seconds, ranges::not_negative, micro);
    }

    template <class Cost>
    void dims(const std::string& section, Cost& c) {
        fields_.number(section + ".head_dim", c.head_dim, ranges::count, 1);
        fields_.number(section + ".value_dim", c.value_dim, ranges::count, 1);
    }

    /// Whether the file has tile prices; then it must have all keys of tiles. Otherwise the missing ones keep the
    /// defaults of AttentionCost.
    bool needs_tiles(const std::string& section) const {
        return fields_.given(section + ".full_tile_us") || fields_.given(section + ".partial_tile_us");
    }

    template <class Cost>
    void tiles(const std::string& section, Cost& c) {
        using namespace ranges;
        const bool needed = needs_tiles(section);
        const auto number = [&](const char* key, auto& value, Range range, double unit) {
            if (needed || fields_.given(section + key)) fields_.number(section + key, value, range, unit);
        };
        number(".tile_rows", c.tile_rows, count, 1);
        number(".tile_keys", c.tile_keys, count, 1);
        if (needed || fields_.given(section + ".groups")) fields_.groups(section + ".groups", c.groups);
        fields_.number(section + ".launch_us", c.launch_seconds, not_negative, micro);
        number(".item_us", c.work_tile_seconds, not_negative, micro);
        number(".full_tile_us", c.full_tile_seconds, not_negative, micro);
        number(".partial_tile_us", c.partial_tile_seconds, not_negative, micro);
        number(".idle_item_us", c.idle_work_tile_seconds, not_negative, micro);
        number(".resume_us", c.resume_seconds, not_negative, micro);
        number(".finish_us", c.finish_seconds, not_negative, micro);
        fields_.number(section + ".teraflops", c.flops, bandwidth, tera);
    }

    template <class Cost>
    void link(const std::string& section, Cost& c) {
        using namespace ranges;
        const auto number = [&](const char* key, auto& value, Range range, double unit) {
            fields_.number(section + key, value, range, unit);
        };
        number(".latency_us", c.latency_seconds, not_negative, micro);
        number(".link_gigabytes_per_second", c.link_bytes_per_second, bandwidth, giga);
        number(".channel_gigabytes_per_second", c.channel_bytes_per_second, bandwidth, giga);
        fields_.channels(section + ".channels", c.channels);
        number(".messages_per_block", c.messages_per_block, {1, 1024, true}, 1);
        number(".busy_speed_ratio", c.busy_speed_ratio, fraction, 1);
        number(".multiprocessors_per_channel", c.sms_per_channel, {0, 1024}, 1);
        number(".send_memory_ratio", c.send_memory_ratio, ratio, 1);
        number(".receive_memory_ratio", c.receive_memory_ratio, ratio, 1);
    }

    Fields& fields_;
};

}  // namespace ringlab::sim
