#include "sim/machine/machine_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace ringlab::sim {
namespace {

using namespace ranges;
using namespace units;

constexpr auto tiling = "tiling and waves", rate = "rate", sms_of_messages = "SMs of messages", head_dims = "head dims";

template <class Enum>
Choice choice(Enum& value, std::vector<const char*> names) {
    return {std::move(names), static_cast<std::size_t>(value),
            [&value](std::size_t chosen) { value = static_cast<Enum>(chosen); }};
}

/// A text, or a choice, for a key that is left out.
constexpr Derived word(const char* text) { return {text, 0, true}; }

/// The keys of one machine.
class Keys {
public:
    Keys(Machine& machine, KeyVisitor& file) : m_(machine), file_(file) {}

    void visit() {
        key("name", &m_.name, "", {}, 1, word("the file's name"));
        key("description", &m_.description, "", {}, 1, word("described by a few keys, the others derived"));
        topology();
        key("gpu.multiprocessors", &m_.sms, tiling, {1, 1 << 16, true}, 1,
            {"as H200: it only decides how full the last wave of work tiles is, because tile prices are scaled with it",
             132});
        key("gpu.memory_gigabytes_per_second", &m_.memory_bytes_per_second, terms::MemoryShared::name, bandwidth, giga,
            derived_memory());
        prices("gpu", m_);
        prices("host", m_);
        if (file_.has_section("cache", m_.cache_bytes > 0))
            key("cache.megabytes", &m_.cache_bytes, terms::OverflowTail::name, bandwidth, mega);
        if (file_.has_section("power", !m_.power_of_gpus.empty()))
            key("power.of_gpus", &m_.power_of_gpus, terms::PowerOfGpus::name, {0.1, 10});
        attention("attention.forward", m_.forward, false, {});
        attention("attention.backward", m_.backward, true,
                  {"0.85 of the forward rate: published kernels of five GPUs have 0.78 to 0.89",
                   0.85 * in_file("attention.forward.teraflops", infinite), true});
        if (file_.has_section("split_kv", m_.split_kv.rows > 0)) split_kv();
        prices("accumulate", m_);
        if (file_.has_section("rotation", m_.rotate_memory_ratio > 0 || m_.rotate_back_memory_ratio > 0)) {
            key("rotation.memory_ratio", &m_.rotate_memory_ratio, "rotary embedding", ratio);
            key("rotation.back_memory_ratio", &m_.rotate_back_memory_ratio, "rotary embedding", ratio);
        }
        link("inside_host", m_.inside_host, terms::inside_as_h200, false);
        if (file_.has_section("between_hosts", m_.hosts > 1))
            link("between_hosts", m_.between_hosts, terms::between_as_cluster, true);
        if (file_.has_section("network", m_.network.hosts_per_leaf > 0)) network();
        sm_admission();
        if (file_.has_section("pieces", m_.inside_host.piece_seconds > 0)) prices("pieces", m_.inside_host);
        if (file_.has_section("matrix_product", m_.matrix_product_flops > 0))
            key("matrix_product.teraflops", &m_.matrix_product_flops, "latent", bandwidth, tera);
        if (file_.has_section("dropout", m_.forward.dropout_tile_seconds >= 0)) {
            key("dropout.forward_tile_us", &m_.forward.dropout_tile_seconds, "dropout", not_negative, micro);
            key("dropout.backward_tile_us", &m_.backward.dropout_tile_seconds, "dropout", not_negative, micro);
        }
        memory_and_margin();
        other_kernels();
    }

private:
    void key(std::string name, Key::Place place, const char* term, const Range& range = {}, double unit = 1,
             const Derived& derived = {}) {
        file_.visit({std::move(name), std::move(place), term, range, unit, derived});
    }

    /// A positive number as the file has it.
    double in_file(const std::string& name, double otherwise) const {
        const auto found = file_.number(name);
        return found && *found > 0 ? *found : otherwise;
    }

    void topology() {
        key("topology.hosts", &m_.hosts, "network", count);
        key("topology.gpus_per_host", &m_.gpus_per_host, "network", count);
        key("topology.nics_per_host", &m_.nics_per_host, "network", count, 1,
            {"one for each GPU of a host, as in published hosts", in_file("topology.gpus_per_host", 1), true});
    }

    Derived derived_memory() const {
        constexpr double memory_of_h200 = 4776.8, capacity_of_h200 = 150.1, highest_rate = 1e9;
        const auto memory = memory_of_h200 / capacity_of_h200 * in_file("device_memory.gigabytes", capacity_of_h200);
        return {
            "as much for each GB of device memory as H200, 31.8: GPUs have bandwidth in proportion to capacity, 25 "
            "to 44 on A100, H100, H200, B200 and MI300X",
            std::min(memory, highest_rate), true};
    }

    /// The terms' prices of a section, if the file `has` them. `prefix` stands before their keys, and derived(price) is
    /// what is taken for a missing one.
    template <class Owner, class Has, class Derive>
    void prices(const std::string& prefix, std::string_view section, Owner& owner, Has has, Derive derived) {
        for_each_term([&](auto term) {
            if constexpr (requires { Price<Owner>(term.prices[0]); })
                for (const Price<Owner>& price : term.prices)
                    if (price.section() == section && has(price))
                        key(prefix + price.key, &(owner.*price.value), term.name, price.range, price.unit,
                            derived(price));
        });
    }

    template <class Owner>
    void prices(std::string_view section, Owner& owner, const std::string& prefix = "") {
        prices(
            prefix, section, owner, [](const auto&) { return true; },
            [](const auto& price) { return price.derived.first; });
    }

    void attention(const std::string& section, AttentionCost& cost, bool backward, const Derived& derived_rate) {
        dims(section, cost, {"as H200: the dims that published rates are of", 128});
        const bool derived = derives_tiles(section);
        if (needs_tiles(section) || file_.has_key(section + ".work_tile"))
            key(section + ".work_tile", choice(cost.work_tile, {"query tile", "key tile"}), tiling, {}, 1,
                derived ? word("query tile") : Derived{});
        if (backward && file_.has_key(section + ".launch_rule"))
            key(section + ".launch_rule", choice(cost.launch_rule, {"list schedule", "waves"}), "clusters", {}, 1,
                word("list schedule"));
        kernel(section, cost, true, derived_rate, [&](const auto& price) {
            auto found = backward ? price.derived.second : price.derived.first;
            if (!found.depends) return found;  // not of a tile
            found.value *= tile_scale(backward, cost.flops);
            return derived ? found : Derived{};
        });
    }

    /// Factor of a pass on H200's prices of tiles with which a work tile over 32Ki keys runs at the rate `flops`.
    double tile_scale(bool backward, double flops) const {
        constexpr double side = 128, tiles = 32 * 1024 / side;
        const auto of_h200 = [&](const auto& price) {
            return (backward ? price.derived.second : price.derived.first).value;
        };
        const auto flop = tiles * (backward ? 10 : 4) * side * side * side;
        const auto seconds_of_h200 =
            (of_h200(terms::WorkTilePrologue::prices[0]) + tiles * of_h200(terms::Tiles::prices[0])) * micro;
        return flop / (flops / m_.sms) / seconds_of_h200;
    }

    /// Another kernel says what it has of its own; everything else is as for the machine's main kernel.
    void other_kernels() {
        for (const auto& name : file_.names_of_kernels()) {
            auto& kernel = m_.kernels.emplace_back(AttentionKernel{name, Scores::plain, m_.forward, m_.backward});
            for (auto* cost : {&kernel.forward, &kernel.backward})
                for_each_price<AttentionCost>([&](const auto& price) {
                    const bool is_of_tiles = price.value == &AttentionCost::full_tile_seconds ||
                                             price.value == &AttentionCost::partial_tile_seconds;
                    if (is_of_tiles || !price.section().empty()) cost->*price.value = 0;
                });
        }
        for (auto& one : m_.kernels) {
            const auto section = "kernels." + one.name;
            key(section + ".scores", choice(one.scores, {"plain", "capped"}), head_dims);
            for (auto* cost : {&one.forward, &one.backward}) {
                const auto pass = section + (cost == &one.forward ? ".forward" : ".backward");
                dims(pass, *cost, {});
                kernel(pass, *cost, false, {}, [](const auto&) { return Derived{}; });
            }
        }
    }

    void dims(const std::string& section, AttentionCost& cost, const Derived& derived) {
        key(section + ".head_dim", &cost.head_dim, head_dims, count, 1, derived);
        key(section + ".value_dim", &cost.value_dim, head_dims, count, 1, derived);
    }

    bool has_tiles(const std::string& section) const {
        return file_.has_key(section + ".full_tile_us") || file_.has_key(section + ".partial_tile_us");
    }

    /// Whether prices of tiles are derived. A file with any of them must have all.
    bool derives_tiles(const std::string& section) const {
        return file_.is_short() && section.starts_with("attention.") && !has_tiles(section);
    }

    /// Whether the file has tile prices, or they are derived; then there are all keys of tiles. Otherwise the missing
    /// ones keep the defaults of AttentionCost.
    bool needs_tiles(const std::string& section) const { return has_tiles(section) || derives_tiles(section); }

    /// The main kernel also says what surrounds the attends of a pass.
    template <class Derive>
    void kernel(const std::string& section, AttentionCost& cost, bool is_main, const Derived& derived_rate,
                Derive derived) {
        const auto has = [&](const std::string& name) { return needs_tiles(section) || file_.has_key(section + name); };
        const auto of_tiles = [&](const Derived& some) { return derives_tiles(section) ? some : Derived{}; };
        const auto side = of_tiles({"as H200, forward: the commonest tiles", 128});
        if (has(".tile_rows")) key(section + ".tile_rows", &cost.tile_rows, tiling, count, 1, side);
        if (has(".tile_keys")) key(section + ".tile_keys", &cost.tile_keys, tiling, count, 1, side);
        if (has(".groups"))
            key(section + ".groups", &cost.groups, "clusters", {2, 1024, true}, 1,
                of_tiles({"SMs share no work tile", 0, true}));
        key(section + ".teraflops", &cost.flops, "rate model", bandwidth, tera, derived_rate);
        prices(
            section + ".", "", cost,
            [&](const auto& price) {
                if (price.value == &AttentionCost::begin_seconds || price.value == &AttentionCost::begin_memory_ratio)
                    return is_main;
                const bool is_optional = !price.is_rate() && price.value != &AttentionCost::launch_seconds;
                return !is_optional || has(std::string(".") + price.key);
            },
            derived);
        if (file_.has_section(section + ".ends", cost.tail_seconds_per_byte > 0)) prices("ends", cost, section + ".");
    }

    void split_kv() {
        const auto* term = "split-KV";
        auto& s = m_.split_kv;
        key("split_kv.rows", &s.rows, term, count);
        key("split_kv.launch_us", &s.launch_seconds, term, not_negative, micro);
        key("split_kv.gigabytes_per_second", &s.bytes_per_second, term, bandwidth, giga);
        key("split_kv.block_gigabytes_per_second", &s.block_bytes_per_second, term, bandwidth, giga);
        key("split_kv.groups", &s.groups, term, {2, 1024, true});
    }

    /// `how`: where derived figures of the link come from.
    void link(const std::string& section, LinkCost& c, const char* how, bool between) {
        const auto carrier = file_.text(section + ".carrier");
        const auto held = file_.number(section + ".multiprocessors_per_channel");
        const bool kernels = carrier ? *carrier == "kernels" : held ? *held > 0 : between;
        prices(
            section + ".", "", c, [](const auto&) { return true; },
            [&](const auto& price) { return between ? price.derived.second : price.derived.first; });
        key(section + ".link_gigabytes_per_second", &c.link_bytes_per_second, rate, bandwidth, giga);
        key(section + ".channel_gigabytes_per_second", &c.channel_bytes_per_second, rate, bandwidth, giga,
            {"channels are never the limit", infinite});
        key(section + ".channels", &c.channels, rate, {1, 1024}, 1, {how, kernels ? 2.0 : 1.0, true});
        key(section + ".messages_per_block", &c.messages_per_block, rate, {1, 1024, true}, 1,
            {how, between ? 2.0 : 1.0});
        key(section + ".carrier", choice(c.carrier, {"copy engines", "kernels"}), sms_of_messages, {}, 1,
            word(kernels ? "kernels" : "copy engines"));
        key(section + ".multiprocessors_per_channel", &c.sms_per_channel, sms_of_messages, {0, 1024}, 1,
            {how, kernels ? 0.5 : 0});
        const auto* memory = terms::MemoryShared::name;
        key(section + ".send_memory_ratio", &c.send_memory_ratio, memory, ratio, 1,
            {"as H200: every byte is read once", 1});
        key(section + ".receive_memory_ratio", &c.receive_memory_ratio, memory, ratio, 1,
            {"as H200: every byte is written once", 1});
    }

    void network() {
        auto& n = m_.network;
        key("network.leaves", choice(n.leaves, {"hosts", "rails"}), "network");
        key("network.hosts_per_leaf", &n.hosts_per_leaf, "network", count);
        key("network.oversubscription", &n.oversubscription, "network", {1, 1000});
        key("network.spine_latency_us", &n.spine_latency_seconds, "network", not_negative, micro);
    }

    void sm_admission() {
        constexpr auto at_once = AttentionCost::TransferStart::at_once;
        const bool is_modelled = m_.forward.transfer_start != at_once || m_.backward.transfer_start != at_once;
        if (!file_.has_section("sm_admission", is_modelled)) return;
        const auto* term = terms::SmAdmission::name;
        const std::vector<const char*> starts{"at once", "as work tiles end", "at the end"};
        key("sm_admission.forward", choice(m_.forward.transfer_start, starts), term);
        key("sm_admission.backward", choice(m_.backward.transfer_start, starts), term);
        key("sm_admission.halves", choice(m_.inside_host.halves, {"apart", "together, backward"}), term);
    }

    void memory_and_margin() {
        if (file_.has_section("device_memory", m_.device_memory_bytes > 0 || file_.is_short())) {
            key("device_memory.gigabytes", &m_.device_memory_bytes, "", bandwidth, giga);
            key("device_memory.reserved_gigabytes", &m_.reserved_memory_bytes, "", not_negative, giga,
                {"as H200: CUDA context and loaded kernels", 0.6});
        }
        if (file_.has_section("uncertainty", m_.assumed_margin > 0 || file_.is_short()))
            key("uncertainty.percent", &m_.assumed_margin, "", {0, 1000}, percent,
                file_.is_short() ? Derived{"the margin of a machine that was not measured, see uncertainty.hpp", 20}
                                 : Derived{});
    }

    Machine& m_;
    KeyVisitor& file_;
};

/// A number's key ends in its unit.
std::string unit_of(std::string_view key) {
    for (const auto& [end, unit] : {std::pair<std::string_view, const char*>{"_us", "us"},
                                    {"gigabytes_per_second", "GB/s"},
                                    {"gigabytes", "GB"},
                                    {"megabytes", "MB"},
                                    {"teraflops", "TFLOP/s"},
                                    {"memory_ratio", "bytes of memory traffic per byte"},
                                    {"percent", "%"}})
        if (key.ends_with(end)) return unit;
    return "number";
}

/// Lists the keys of a short machine file that has all optional sections and one kernel of its own.
class KeyList : public KeyVisitor {
public:
    void visit(const Key& key) override {
        const auto& [low, high, whole, may_be_infinite] = key.range;
        auto range =
            fmt::format("{}{:.8g} to {:.8g}{}", whole ? "whole, " : "", low, high, may_be_infinite ? ", or inf" : "");
        std::string unit;
        if (std::holds_alternative<std::string*>(key.place))
            unit = "text in quotes", range = "";
        else if (const auto* choice = std::get_if<Choice>(&key.place))
            unit = fmt::format("\"{}\"", fmt::join(choice->names, "\" or \"")), range = "";
        else if (std::holds_alternative<std::vector<double>*>(key.place))
            unit = "list";
        else if (std::holds_alternative<std::vector<layouts::SmGroup>*>(key.place))
            unit = "list, with a list `at_a_time`";
        else if (std::holds_alternative<std::vector<LinkCost::BySize>*>(key.place))
            unit = "list, with a list `up_to_mebibytes`";
        else
            unit = unit_of(key.name);
        keys.push_back({key.name, std::move(unit), std::move(range), key.term, left_out(key.name, key.derived)});
    }
    bool has_section(const std::string& name, bool wanted) override {
        if (!wanted) optional_.push_back(name);
        return true;
    }
    /// All but the prices of tiles that are derived.
    bool has_key(const std::string& name) const override {
        return !name.starts_with("attention.") ||
               (!name.ends_with(".full_tile_us") && !name.ends_with(".partial_tile_us"));
    }
    bool is_short() const override { return true; }
    std::vector<std::string> names_of_kernels() override {
        optional_.emplace_back("kernels.NAME");
        return {"NAME"};
    }

    std::vector<MachineKey> keys;

private:
    std::string left_out(const std::string& name, const Derived& derived) const {
        if (derived.rule)
            return derived_source +
                   (derived.depends ? derived.rule : fmt::format("{:g}, {}", derived.value, derived.rule));
        std::string around;
        for (const auto& section : optional_)
            if (name.starts_with(section + ".") && section.size() > around.size()) around = section;
        return around.empty() ? "required" : fmt::format("optional, with all of [{}]", around);
    }

    std::vector<std::string> optional_;
};

bool is_derived(const Figure& figure) { return figure.source.starts_with(derived_source); }

}  // namespace

void visit_keys(Machine& machine, KeyVisitor& file) { Keys(machine, file).visit(); }

std::vector<MachineKey> machine_keys() {
    KeyList list;
    Machine machine;
    machine.hosts = 2;
    visit_keys(machine, list);
    return std::move(list.keys);
}

std::int64_t derived_figures(const Machine& machine) { return std::ranges::count_if(machine.figures, is_derived); }

std::string derived_text(const Machine& machine) {
    std::string text;
    for (const auto& figure : machine.figures)
        if (is_derived(figure)) text += fmt::format("{} = {}: {}\n", figure.name, figure.value, figure.source);
    return text;
}

}  // namespace ringlab::sim
