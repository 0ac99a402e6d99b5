#include "sim/machine_file/machine_keys.hpp"

#include "sim/machine_file/derived.hpp"
#include "sim/machine_file/machine_fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <utility>

namespace ringlab::sim {
namespace {

/// Keys that are no price of a term: the row of sim/README.md that uses them. An entry that ends in "." stands for a
/// section, one that begins with "." for this key of every section.
constexpr std::pair<std::string_view, std::string_view> rows_of_keys[] = {
    {"topology.", "network"},
    {"gpu.multiprocessors", "tiling and waves"},
    {"gpu.memory_gigabytes_per_second", "memory-shared"},
    {"cache.megabytes", terms::OverflowTail::name},
    {"power.of_gpus", terms::PowerOfGpus::name},
    {"split_kv.", "split-KV"},
    {"rotation.", "rotary embedding"},
    {"network.", "network"},
    {"sm_admission.", terms::SmAdmission::name},
    {"matrix_product.", "latent"},
    {"dropout.", "dropout"},
    {".head_dim", "head dims"},
    {".value_dim", "head dims"},
    {".scores", "head dims"},
    {".work_tile", "tiling and waves"},
    {".tile_rows", "tiling and waves"},
    {".tile_keys", "tiling and waves"},
    {".groups", "clusters"},
    {".launch_rule", "clusters"},
    {".teraflops", "rate model"},
    {".link_gigabytes_per_second", "rate"},
    {".channel_gigabytes_per_second", "rate"},
    {".channels", "rate"},
    {".messages_per_block", "rate"},
    {".carrier", "SMs of messages"},
    {".multiprocessors_per_channel", "SMs of messages"},
    {".send_memory_ratio", terms::MemoryShared::name},
    {".receive_memory_ratio", terms::MemoryShared::name},
};

/// Whether `key` is `price` of some pass, kernel or link.
template <class Owner>
bool is_price(std::string_view key, const Price<Owner>& price) {
    if (!key.ends_with(price.key)) return false;
    const auto section = key.substr(0, key.size() - std::string_view(price.key).size());
    if constexpr (std::is_same_v<Owner, AttentionCost>)
        return section.ends_with('.') && (section.starts_with("attention.") || section.starts_with("kernels."));
    else if constexpr (std::is_same_v<Owner, LinkCost>)
        return section.empty() || section == "inside_host." || section == "between_hosts.";
    else
        return section.empty();
}

std::string row_of(std::string_view key) {
    std::string row;
    for_each_term([&](auto term) {
        if constexpr (requires { term.prices; })
            for (const auto& price : term.prices)
                if (is_price(key, price)) row = term.name;
    });
    if (!row.empty()) return row;
    for (const auto& [some, used_by] : rows_of_keys)
        if (some.ends_with('.') ? key.starts_with(some) : some.starts_with('.') ? key.ends_with(some) : key == some)
            return std::string(used_by);
    return "";
}

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

std::string text_of(const Range& range) {
    return fmt::format("{}{:.8g} to {:.8g}{}", range.whole ? "whole, " : "", range.low, range.high,
                       range.may_be_infinite ? ", or inf" : "");
}

/// A file of which all keys were derived, where those that a machine must be described with are `given`.
toml::table derived_file(double given) {
    toml::table root{{"between_hosts", toml::table{}}};
    if (given > 0) {
        const toml::table figure{{"value", given}};
        for (const auto& [section, key] : {std::pair{"topology", "gpus_per_host"},
                                           {"inside_host", "link_gigabytes_per_second"},
                                           {"device_memory", "gigabytes"}})
            root.insert(section, toml::table{{key, figure}});
        root.insert("attention", toml::table{{"forward", toml::table{{"teraflops", figure}}}});
    }
    derive_missing_keys(root, "the file's name");
    return root;
}

/// Collects the keys of a machine file that has all optional sections and one kernel of its own.
class KeyCollector {
public:
    void text(const std::string& key, const std::string&) { add(key, "text in quotes", ""); }
    template <class Enum>
    void choice(const std::string& key, const Enum&, std::initializer_list<const char*> names) {
        add(key, fmt::format("\"{}\"", fmt::join(names, "\" or \"")), "");
    }
    template <class Value>
    void number(const std::string& key, const Value&, Range range, double) {
        add(key, unit_of(key), text_of(range));
    }
    template <class Value>
    void numbers(const std::string& key, const Value&, Range range) {
        add(key, "list", text_of(range));
    }
    template <class Value>
    void groups(const std::string& key, const Value&) {
        add(key, "list, with a list `at_a_time`", "whole, 2 to 1024");
    }
    template <class Value>
    void channels(const std::string& key, const Value&) {
        add(key, "list, with a list `up_to_mebibytes`", "1 to 1024");
    }
    bool section(const std::string& name, bool) {
        optional_.push_back(name);
        return true;
    }
    bool given(const std::string&) const { return true; }
    template <class All, class Begin>
    void sections(const std::string& name, All& all, Begin begin) {
        begin(all.emplace_back());
        all.back().name = "NAME";
        optional_.push_back(name + ".NAME");
    }

    std::vector<MachineKey> keys;

private:
    void add(const std::string& key, std::string unit, std::string range) {
        keys.push_back({key, std::move(unit), std::move(range), row_of(key), left_out(key)});
    }

    std::string left_out(const std::string& key) const {
        if (const auto node = file_.at_path(key)) {
            if (!node["source"]) return "derived: " + node.value_or(std::string());
            auto rule = node["source"].value_or(std::string());
            const auto value = node["value"].value<double>(), other = other_file_.at_path(key)["value"].value<double>();
            if (value && value == other) rule.insert(std::string("derived: ").size(), fmt::format("{:g}, ", *value));
            return rule;
        }
        std::string around;
        for (const auto& name : optional_)
            if (key.starts_with(name + ".") && name.size() > around.size()) around = name;
        if (around.empty() || file_.at_path(around)) return "required";
        if (key == "sm_admission.halves") return "derived: apart";  // older files have it elsewhere, or not at all
        return fmt::format("optional, with all of [{}]", around);
    }

    const toml::table file_ = derived_file(0), other_file_ = derived_file(2);
    std::vector<std::string> optional_;
};

}  // namespace

std::vector<MachineKey> machine_keys() {
    KeyCollector collector;
    Machine machine;
    MachineFields(collector).visit(machine);
    return std::move(collector.keys);
}

}  // namespace ringlab::sim
