#pragma once

#include "sim/machine/terms.hpp"

#include <array>
#include <initializer_list>
#include <string>

namespace ringlab::sim {

inline constexpr auto derived_source = "derived: ";  // sources of derived figures begin with it

/// What there is to know of a key beside its name and its value.
struct KeyRow {
    const char* term = "";  ///< the row of sim/README.md that uses it
    Range range{};
    double unit = 1;  ///< the file has value / unit
    Derived derived{};
};

/// Every key of a machine file, one row each, for everything that reads, writes or lists them: the prices of the terms,
/// which have their rows there, and what a machine is made of. `fields` must have
///
/// - text(key, value, derived), and choice(key, value, term, names, derived): an enum, by name. `derived` is the text
/// that is taken if the key is missing; null: the key is required
///
/// - number(key, value, row)
///
/// - numbers(key, value, row), groups(key, value, row) and channels(key, value, row): lists. A derived list of channels
/// has one entry, a derived list of groups none
///
/// - section(name, wanted): whether an optional section is in the file, or is to be written
///
/// - given(key): the same for an optional key
///
/// - is_short(): whether the file leaves out keys that every complete file has, so that they are derived;
/// derives_tiles(section): whether prices of tiles are then derived as well. A file with any of them must have all
///
/// - name_of_file(), uses_kernels(section, between): whether messages of a link are kernels, as far as the file says
///
/// - in_file(key, otherwise): a number as the file has it
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
        fields_.text("name", m.name, fields_.name_of_file());
        fields_.text("description", m.description, "described by a few keys, the others derived");
        fields_.number("topology.hosts", m.hosts, {"network", count});
        fields_.number("topology.gpus_per_host", m.gpus_per_host, {"network", count});
        fields_.number("topology.nics_per_host", m.nics_per_host,
                       {"network",
                        count,
                        1,
                        {"one for each GPU of a host, as in published hosts",
                         fields_.in_file("topology.gpus_per_host", 1), true}});
        fields_.number("gpu.multiprocessors", m.sms,
                       {tiling,
                        {1, 1 << 16, true},
                        1,
                        {"as H200: it only decides how full the last wave of work tiles is, because tile prices are "
                         "scaled with it",
                         sms_of_h200}});
        fields_.number("gpu.memory_gigabytes_per_second", m.memory_bytes_per_second,
                       {terms::MemoryShared::name, bandwidth, giga, derived_memory()});
        prices("", "gpu", m);
        prices("", "host", m);
        if (fields_.section("cache", m.cache_bytes > 0))
            fields_.number("cache.megabytes", m.cache_bytes, {terms::OverflowTail::name, bandwidth, mega});
        if (fields_.section("power", !m.power_of_gpus.empty()))
            fields_.numbers("power.of_gpus", m.power_of_gpus, {terms::PowerOfGpus::name, {0.1, 10}});
        attention("attention.forward", m.forward, m, {});
        attention("attention.backward", m.backward, m,
                  {"0.85 of the forward rate: published kernels of five GPUs have 0.78 to 0.89",
                   0.85 * fields_.in_file("attention.forward.teraflops", infinite), true});
        if (fields_.section("split_kv", m.split_kv.rows > 0)) split_kv(m.split_kv);
        prices("", "accumulate", m);
        if (fields_.section("rotation", m.rotate_memory_ratio > 0 || m.rotate_back_memory_ratio > 0)) {
            fields_.number("rotation.memory_ratio", m.rotate_memory_ratio, {"rotary embedding", ratio});
            fields_.number("rotation.back_memory_ratio", m.rotate_back_memory_ratio, {"rotary embedding", ratio});
        }
        link("inside_host", m.inside_host, terms::inside_as_h200, false);
        if (fields_.section("between_hosts", m.hosts > 1))
            link("between_hosts", m.between_hosts, terms::between_as_cluster, true);
        if (fields_.section("network", m.network.hosts_per_leaf > 0)) network(m.network);
        sm_admission(m);
        if (fields_.section("pieces", m.inside_host.piece_seconds > 0)) prices("", "pieces", m.inside_host);
        if (fields_.section("matrix_product", m.matrix_product_flops > 0))
            fields_.number("matrix_product.teraflops", m.matrix_product_flops, {"latent", bandwidth, tera});
        if (fields_.section("dropout", m.forward.dropout_tile_seconds >= 0)) {
            const KeyRow row{"dropout", not_negative, micro};
            fields_.number("dropout.forward_tile_us", m.forward.dropout_tile_seconds, row);
            fields_.number("dropout.backward_tile_us", m.backward.dropout_tile_seconds, row);
        }
        if (fields_.section("device_memory", m.device_memory_bytes > 0 || fields_.is_short())) {
            fields_.number("device_memory.gigabytes", m.device_memory_bytes, {"", bandwidth, giga});
            fields_.number("device_memory.reserved_gigabytes", m.reserved_memory_bytes,
                           {"", not_negative, giga, {"as H200: CUDA context and loaded kernels", 0.6}});
        }
        if (fields_.section("uncertainty", m.assumed_margin > 0 || fields_.is_short()))
            fields_.number("uncertainty.percent", m.assumed_margin,
                           {"",
                            {0, 1000},
                            percent,
                            if_short({"the margin of a machine that was not measured, see uncertainty.hpp", 20})});
        other_kernels(m);
    }

private:
    static constexpr auto tiling = "tiling and waves", rate = "rate", sms_of_messages = "SMs of messages";
    static constexpr double sms_of_h200 = 132;

    Derived if_short(const Derived& derived) const { return fields_.is_short() ? derived : Derived{}; }

    Derived derived_memory() const {
        constexpr double memory_of_h200 = 4776.8, capacity_of_h200 = 150.1, highest_rate = 1e9;
        const auto memory =
            memory_of_h200 / capacity_of_h200 * fields_.in_file("device_memory.gigabytes", capacity_of_h200);
        return {
            "as much for each GB of device memory as H200, 31.8: GPUs have bandwidth in proportion to capacity, 25 "
            "to 44 on A100, H100, H200, B200 and MI300X",
            std::min(memory, highest_rate), true};
    }

    /// The terms' prices of a section, if the file `has` them. `prefix` stands before their keys, and derived(price) is
    /// what is taken for a missing one.
    template <class Owner, class Has, class Derive>
    void prices(const std::string& prefix, std::string_view section, Owner& owner, Has has, Derive derived) {
        using Row = Price<std::remove_const_t<Owner>>;
        for_each_term([&](auto term) {
            if constexpr (requires { Row(term.prices[0]); })
                for (const Row& price : term.prices)
                    if (price.section() == section && has(price))
                        fields_.number(prefix + price.key, owner.*price.value,
                                       {term.name, price.range, price.unit, derived(price)});
        });
    }

    template <class Owner>
    void prices(const std::string& prefix, std::string_view section, Owner& owner) {
        prices(
            prefix, section, owner, [](const auto&) { return true; },
            [](const auto& price) { return price.derived.first; });
    }

    template <class Cost, class AnyMachine>
    void attention(const std::string& section, Cost& c, const AnyMachine& m, const Derived& derived_rate) {
        const bool backward = section == "attention.backward";
        dims(section, c, {"as H200: the dims that published rates are of", 128});
        const bool derives_tiles = fields_.derives_tiles(section);
        if (needs_tiles(section) || fields_.given(section + ".work_tile"))
            fields_.choice(section + ".work_tile", c.work_tile, tiling, {"query tile", "key tile"},
                           derives_tiles ? "query tile" : nullptr);
        if (backward && fields_.given(section + ".launch_rule"))
            fields_.choice(section + ".launch_rule", c.launch_rule, "clusters", {"list schedule", "waves"},
                           "list schedule");
        kernel(section, c, true, derived_rate, [&](const auto& price) {
            auto derived = backward ? price.derived.second : price.derived.first;
            if (!derived.depends) return derived;  // not of a tile
            derived.value *= tile_scale(backward, c.flops, m.sms);
            return derives_tiles ? derived : Derived{};
        });
    }

    /// Factor of a pass on H200's prices of tiles with which a work tile over 32Ki keys runs at the rate `flops`.
    static double tile_scale(bool backward, double flops, double sms) {
        constexpr double side = 128, tiles = 32 * 1024 / side;
        const auto of_h200 = [&](const auto& price) {
            return (backward ? price.derived.second : price.derived.first).value;
        };
        const auto flop = tiles * (backward ? 10 : 4) * side * side * side;
        const auto seconds_of_h200 =
            (of_h200(terms::WorkTilePrologue::prices[0]) + tiles * of_h200(terms::Tiles::prices[0])) * units::micro;
        return flop / (flops / sms) / seconds_of_h200;
    }

    /// Another kernel says what it has of its own; everything else is as for the machine's main kernel, which comes
    /// before it.
    template <class AnyMachine>
    void other_kernels(AnyMachine& m) {
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
        for (auto& k : m.kernels) {
            const auto section = "kernels." + k.name;
            fields_.choice(section + ".scores", k.scores, "head dims", {"plain", "capped"}, nullptr);
            for (const bool forward : {true, false}) {
                const auto pass = section + (forward ? ".forward" : ".backward");
                auto& cost = forward ? k.forward : k.backward;
                dims(pass, cost, {});
                kernel(pass, cost, false, {}, [](const auto&) { return Derived{}; });
            }
        }
    }

    template <class Cost>
    void dims(const std::string& section, Cost& c, const Derived& derived) {
        fields_.number(section + ".head_dim", c.head_dim, {"head dims", ranges::count, 1, derived});
        fields_.number(section + ".value_dim", c.value_dim, {"head dims", ranges::count, 1, derived});
    }

    /// Whether the file has tile prices, or they are derived; then there are all keys of tiles. Otherwise the missing
    /// ones keep the defaults of AttentionCost.
    bool needs_tiles(const std::string& section) const {
        return fields_.given(section + ".full_tile_us") || fields_.given(section + ".partial_tile_us") ||
               fields_.derives_tiles(section);
    }

    /// The main kernel also says what surrounds the attends of a pass.
    template <class Cost, class Derive>
    void kernel(const std::string& section, Cost& c, bool is_main, const Derived& derived_rate, Derive derived) {
        using namespace ranges;
        const auto has = [&](const std::string& key) { return needs_tiles(section) || fields_.given(section + key); };
        const auto of_tiles = [&](const Derived& some) { return fields_.derives_tiles(section) ? some : Derived{}; };
        const KeyRow side{tiling, count, 1, of_tiles({"as H200, forward: the commonest tiles", 128})};
        if (has(".tile_rows")) fields_.number(section + ".tile_rows", c.tile_rows, side);
        if (has(".tile_keys")) fields_.number(section + ".tile_keys", c.tile_keys, side);
        if (has(".groups"))
            fields_.groups(section + ".groups", c.groups,
                           {"clusters", {2, 1024, true}, 1, of_tiles({"SMs share no work tile", 0, true})});
        fields_.number(section + ".teraflops", c.flops, {"rate model", bandwidth, units::tera, derived_rate});
        prices(
            section + ".", "", c,
            [&](const auto& price) {
                if (price.value == &AttentionCost::begin_seconds || price.value == &AttentionCost::begin_memory_ratio)
                    return is_main;
                const bool is_optional = !price.is_rate() && price.value != &AttentionCost::launch_seconds;
                return !is_optional || has(std::string(".") + price.key);
            },
            derived);
        if (fields_.section(section + ".ends", c.tail_seconds_per_byte > 0)) prices(section + ".", "ends", c);
    }

    template <class SplitKv>
    void split_kv(SplitKv& s) {
        using namespace ranges;
        using namespace units;
        const auto* term = "split-KV";
        fields_.number("split_kv.rows", s.rows, {term, count});
        fields_.number("split_kv.launch_us", s.launch_seconds, {term, not_negative, micro});
        fields_.number("split_kv.gigabytes_per_second", s.bytes_per_second, {term, bandwidth, giga});
        fields_.number("split_kv.block_gigabytes_per_second", s.block_bytes_per_second, {term, bandwidth, giga});
        fields_.groups("split_kv.groups", s.groups, {term, {2, 1024, true}});
    }

    /// `how`: where derived figures of the link come from.
    template <class Cost>
    void link(const std::string& section, Cost& c, const char* how, bool between) {
        using namespace ranges;
        const auto number = [&](const char* key, auto& value, const KeyRow& row) {
            fields_.number(section + key, value, row);
        };
        const bool kernels = fields_.uses_kernels(section, between);
        prices(
            section + ".", "", c, [](const auto&) { return true; },
            [&](const auto& price) { return between ? price.derived.second : price.derived.first; });
        number(".link_gigabytes_per_second", c.link_bytes_per_second, {rate, bandwidth, units::giga});
        number(".channel_gigabytes_per_second", c.channel_bytes_per_second,
               {rate, bandwidth, units::giga, {"channels are never the limit", infinite}});
        fields_.channels(section + ".channels", c.channels, {rate, {1, 1024}, 1, {how, kernels ? 2.0 : 1.0, true}});
        number(".messages_per_block", c.messages_per_block, {rate, {1, 1024, true}, 1, {how, between ? 2.0 : 1.0}});
        if (fields_.given(section + ".carrier"))
            fields_.choice(section + ".carrier", c.carrier, sms_of_messages, {"copy engines", "kernels"},
                           kernels ? "kernels" : "copy engines");
        number(".multiprocessors_per_channel", c.sms_per_channel,
               {sms_of_messages, {0, 1024}, 1, {how, kernels ? 0.5 : 0}});
        number(".send_memory_ratio", c.send_memory_ratio,
               {terms::MemoryShared::name, ratio, 1, {"as H200: every byte is read once", 1}});
        number(".receive_memory_ratio", c.receive_memory_ratio,
               {terms::MemoryShared::name, ratio, 1, {"as H200: every byte is written once", 1}});
    }

    template <class AnyNetwork>
    void network(AnyNetwork& n) {
        using namespace ranges;
        fields_.choice("network.leaves", n.leaves, "network", {"hosts", "rails"}, nullptr);
        fields_.number("network.hosts_per_leaf", n.hosts_per_leaf, {"network", count});
        fields_.number("network.oversubscription", n.oversubscription, {"network", {1, 1000}});
        fields_.number("network.spine_latency_us", n.spine_latency_seconds, {"network", not_negative, units::micro});
    }

    template <class AnyMachine>
    void sm_admission(AnyMachine& m) {
        using TransferStart = AttentionCost::TransferStart;
        const auto* term = terms::SmAdmission::name;
        if (!fields_.section("sm_admission", m.forward.transfer_start != TransferStart::at_once ||
                                                 m.backward.transfer_start != TransferStart::at_once))
            return;
        const auto names = {"at once", "as work tiles end", "at the end"};
        fields_.choice("sm_admission.forward", m.forward.transfer_start, term, names, nullptr);
        fields_.choice("sm_admission.backward", m.backward.transfer_start, term, names, nullptr);
        if (fields_.given("sm_admission.halves"))
            fields_.choice("sm_admission.halves", m.inside_host.halves, term, {"apart", "together, backward"}, "apart");
    }

    Fields& fields_;
};

}  // namespace ringlab::sim
