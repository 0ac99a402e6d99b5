#pragma once

#include "sim/terms/terms.hpp"

#include <string>

namespace ringlab::sim {

/// Every key of a machine file, for everything that reads or writes one: those of the terms' prices, and what a machine
/// is made of. `fields` must have
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
        using namespace units;
        using TransferStart = AttentionCost::TransferStart;
        fields_.text("name", m.name);
        fields_.text("description", m.description);
        fields_.number("topology.hosts", m.hosts, count, 1);
        fields_.number("topology.gpus_per_host", m.gpus_per_host, count, 1);
        fields_.number("topology.nics_per_host", m.nics_per_host, count, 1);
        fields_.number("gpu.multiprocessors", m.sms, {1, 1 << 16, true}, 1);
        fields_.number("gpu.memory_gigabytes_per_second", m.memory_bytes_per_second, bandwidth, giga);
        prices("", "gpu", m);
        prices("", "host", m);
        if (fields_.section("cache", m.cache_bytes > 0))
            fields_.number("cache.megabytes", m.cache_bytes, bandwidth, mega);
        if (fields_.section("power", !m.power_of_gpus.empty()))
            fields_.numbers("power.of_gpus", m.power_of_gpus, {0.1, 10});
        attention("attention.forward", m.forward);
        attention("attention.backward", m.backward);
        if (fields_.section("split_kv", m.split_kv.rows > 0)) {
            fields_.number("split_kv.rows", m.split_kv.rows, count, 1);
            fields_.number("split_kv.launch_us", m.split_kv.launch_seconds, not_negative, micro);
            fields_.number("split_kv.gigabytes_per_second", m.split_kv.bytes_per_second, bandwidth, giga);
            fields_.number("split_kv.block_gigabytes_per_second", m.split_kv.block_bytes_per_second, bandwidth, giga);
            fields_.groups("split_kv.groups", m.split_kv.groups);
        }
        prices("", "accumulate", m);
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
        if (fields_.section("sm_admission", m.forward.transfer_start != TransferStart::at_once ||
                                                m.backward.transfer_start != TransferStart::at_once)) {
            const auto names = {"at once", "as work tiles end", "at the end"};
            fields_.choice("sm_admission.forward", m.forward.transfer_start, names);
            fields_.choice("sm_admission.backward", m.backward.transfer_start, names);
            if (fields_.given("sm_admission.halves"))
                fields_.choice("sm_admission.halves", m.inside_host.halves, {"apart", "together, backward"});
        }
        if (fields_.section("pieces", m.inside_host.piece_seconds > 0)) prices("", "pieces", m.inside_host);
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
        if (fields_.section("uncertainty", m.assumed_margin > 0))
            fields_.number("uncertainty.percent", m.assumed_margin, {0, 1000}, percent);
        // After the main kernel, from which they take what they share with it.
        fields_.sections("kernels", m.kernels, [&](auto& kernel) {
            kernel.forward = m.forward;
            kernel.backward = m.backward;
            for (auto* cost : {&kernel.forward, &kernel.backward})
                for_each_price<AttentionCost>([&](const auto& price) {
                    const bool is_of_tiles = price.value == &AttentionCost::full_tile_seconds ||
                                             price.value == &AttentionCost::partial_tile_seconds;
                    if (is_of_tiles || !price.section().empty()) cost->*price.value = 0;
                });
        });
        for (auto& one : m.kernels) other_kernel("kernels." + one.name, one);
    }

private:
    /// The terms' prices of a section, if the file `has` them; `prefix` is what stands before their keys.
    template <class Owner, class Has>
    void prices(const std::string& prefix, std::string_view section, Owner& owner, Has has) {
        for_each_price<std::remove_const_t<Owner>>([&](const auto& price) {
            if (price.section() == section && has(price))
                fields_.number(prefix + price.key, owner.*price.value, price.range, price.unit);
        });
    }

    template <class Owner>
    void prices(const std::string& prefix, std::string_view section, Owner& owner) {
        prices(prefix, section, owner, [](const auto&) { return true; });
    }

    template <class Cost>
    void attention(const std::string& section, Cost& c) {
        dims(section, c);
        if (needs_tiles(section) || fields_.given(section + ".work_tile"))
            fields_.choice(section + ".work_tile", c.work_tile, {"query tile", "key tile"});
        if (section == "attention.backward" && fields_.given(section + ".launch_rule"))
            fields_.choice(section + ".launch_rule", c.launch_rule, {"list schedule", "waves"});
        kernel(section, c, true);
    }

    /// What another kernel has of its own; everything else is as for the machine's main kernel.
    template <class Kernel>
    void other_kernel(const std::string& section, Kernel& k) {
        fields_.choice(section + ".scores", k.scores, {"plain", "capped"});
        for (const auto* pass : {".forward", ".backward"}) {
            auto& cost = pass == std::string_view(".forward") ? k.forward : k.backward;
            dims(section + pass, cost);
            kernel(section + pass, cost, false);
        }
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

    /// The main kernel also says what surrounds the attends of a pass.
    template <class Cost>
    void kernel(const std::string& section, Cost& c, bool is_main) {
        using namespace ranges;
        using namespace units;
        const auto has = [&](const std::string& key) { return needs_tiles(section) || fields_.given(section + key); };
        if (has(".tile_rows")) fields_.number(section + ".tile_rows", c.tile_rows, count, 1);
        if (has(".tile_keys")) fields_.number(section + ".tile_keys", c.tile_keys, count, 1);
        if (has(".groups")) fields_.groups(section + ".groups", c.groups);
        fields_.number(section + ".teraflops", c.flops, bandwidth, tera);
        prices(section + ".", "", c, [&](const auto& price) {
            if (price.value == &AttentionCost::begin_seconds || price.value == &AttentionCost::begin_memory_ratio)
                return is_main;
            const bool is_optional = !price.is_rate() && price.value != &AttentionCost::launch_seconds;
            return !is_optional || has(std::string(".") + price.key);
        });
        if (fields_.section(section + ".ends", c.tail_seconds_per_byte > 0)) prices(section + ".", "ends", c);
    }

    template <class Cost>
    void link(const std::string& section, Cost& c) {
        using namespace ranges;
        using namespace units;
        const auto number = [&](const char* key, auto& value, Range range, double unit) {
            fields_.number(section + key, value, range, unit);
        };
        prices(section + ".", "", c);
        number(".link_gigabytes_per_second", c.link_bytes_per_second, bandwidth, giga);
        number(".channel_gigabytes_per_second", c.channel_bytes_per_second, bandwidth, giga);
        fields_.channels(section + ".channels", c.channels);
        number(".messages_per_block", c.messages_per_block, {1, 1024, true}, 1);
        if (fields_.given(section + ".carrier"))
            fields_.choice(section + ".carrier", c.carrier, {"copy engines", "kernels"});
        number(".multiprocessors_per_channel", c.sms_per_channel, {0, 1024}, 1);
        number(".send_memory_ratio", c.send_memory_ratio, ratio, 1);
        number(".receive_memory_ratio", c.receive_memory_ratio, ratio, 1);
    }

    Fields& fields_;
};

}  // namespace ringlab::sim
