#include "sim/machine/machine_keys.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace ringlab::sim {
namespace {

constexpr double mebi = 1024.0 * 1024.0;

/// Reads figures out of a parsed file one by one. Remembers which keys were asked for, so that others can be refused.
class Reader {
public:
    /// `is_short`: the file leaves out keys that every complete file has, as a reader before this one has found.
    Reader(const toml::table& root, std::string file, bool is_short)
        : root_(root),
          file_(std::move(file)),
          name_(std::filesystem::path(file_).stem().string()),
          is_short_(is_short) {}

    void text(const std::string& key, std::string& value, const char* derived) {
        const auto* node = find(key, derived);
        if (!node) {
            if (derived) value = derived;
            return;
        }
        const auto found = node->value<std::string>();
        if (!found || found->empty()) fail_at(*node, "{} must be a non-empty text in quotes", key);
        value = *found;
    }

    template <class Enum>
    void choice(const std::string& key, Enum& value, const char*, std::initializer_list<const char*> names,
                const char* derived) {
        std::string name;
        text(key, name, derived);
        if (name.empty()) return;  // the key is missing
        const auto found = std::find(names.begin(), names.end(), name);
        if (found == names.end()) fail_at_key(key, fmt::format("must be \"{}\"", fmt::join(names, "\" or \"")));
        value = static_cast<Enum>(found - names.begin());
    }

    template <class T>
    void number(const std::string& key, T& value, const KeyRow& row) {
        if (const auto* figure = figure_at(key, row.derived))
            value = static_cast<T>(record(key, *figure->get("value"), row.range, source(key, *figure)) * row.unit);
        else if (row.derived.rule)
            value = static_cast<T>(record_derived(key, row.derived) * row.unit);
    }

    void numbers(const std::string& key, std::vector<double>& all, const KeyRow& row) {
        const auto* figure = figure_at(key, {});
        if (!figure) return;
        all.clear();
        for (const auto& value : *array_in(*figure, key, "value"))
            all.push_back(record(key, value, row.range, source(key, *figure)));
    }

    /// A figure that depends on the message size.
    void channels(const std::string& key, std::vector<LinkCost::BySize>& classes, const KeyRow& row) {
        const auto* figure = figure_at(key, row.derived);
        if (!figure) {
            if (row.derived.rule) classes = {{ranges::infinite, record_derived(key, row.derived)}};
            return;
        }
        const auto [limits, values] = lists_in(*figure, key, "up_to_mebibytes", "value");
        if (limits->empty()) fail_at(*figure, "{} must have at least one size", key);
        double before = 0;
        classes.clear();
        for (std::size_t i = 0; i < values->size(); ++i) {
            const auto limit = to_number(key + ".up_to_mebibytes", *limits->get(i), {1e-6, 1e12, false, true});
            if (limit <= before) fail_at(*limits->get(i), "{}.up_to_mebibytes must grow from entry to entry", key);
            before = limit;
            classes.push_back({limit * mebi, record(key, *values->get(i), row.range, source(key, *figure))});
        }
        if (std::isfinite(before)) fail_at(*figure, "{}.up_to_mebibytes must end in inf, to cover every message", key);
    }

    void groups(const std::string& key, std::vector<layouts::SmGroup>& groups, const KeyRow& row) {
        const auto* figure = figure_at(key, row.derived);
        if (!figure) return;  // none, if they are derived
        const auto [values, at_a_time] = lists_in(*figure, key, "value", "at_a_time");
        const auto whole = [&](double value) { return static_cast<std::int64_t>(value); };
        groups.clear();
        for (std::size_t i = 0; i < values->size(); ++i)
            groups.push_back({whole(record(key, *values->get(i), row.range, source(key, *figure))),
                              whole(to_number(key + ".at_a_time", *at_a_time->get(i), {1, 1 << 16, true}))});
    }

    bool section(const std::string& name, bool wanted) const { return wanted || root_.at_path(name).is_table(); }
    bool given(const std::string& key) const { return root_.at_path(key).node() != nullptr; }
    bool is_short() const { return is_short_; }
    bool derives_tiles(const std::string& section) const {
        return is_short_ && section.starts_with("attention.") && !given(section + ".full_tile_us") &&
               !given(section + ".partial_tile_us");
    }
    const char* name_of_file() const { return name_.c_str(); }

    /// `otherwise` if it is missing or not a positive number. number() refuses the latter.
    double in_file(const std::string& key, double otherwise) const {
        const auto value = root_.at_path(key)["value"].value<double>();
        return value && *value > 0 ? *value : otherwise;
    }

    /// As the link's `carrier` says; without one, if messages hold SMs; without that, between hosts but not inside one.
    bool uses_kernels(const std::string& section, bool between) const {
        if (const auto carrier = root_[section]["carrier"].value<std::string>()) return *carrier == "kernels";
        const auto held = root_[section]["multiprocessors_per_channel"]["value"].value<double>();
        return held ? *held > 0 : between;
    }

    /// Whether a key that every complete file has was derived.
    bool has_derived() const { return has_derived_; }

    template <class Named, class Begin>
    void sections(const std::string& name, std::vector<Named>& all, Begin begin) {
        const auto* table = root_[name].as_table();
        all.clear();
        if (!table) return;
        for (const auto& [key, node] : *table) {
            if (!node.is_table()) fail_at(node, "{}.{} must be a section", name, key.str());
            begin(all.emplace_back());
            all.back().name = key.str();
        }
    }

    [[noreturn]] void fail_at_key(const std::string& key, std::string_view what) {
        fail_at(*find(key, nullptr), "{} {}", key, what);
    }

    void reject_unknown_keys() const { reject_unknown_keys(root_, ""); }

    /// Keys of the file that had a meaning in earlier versions, or sections of them.
    std::vector<std::string> retired_keys() const {
        std::vector<std::string> found;
        add_retired_keys(root_, "", found);
        return found;
    }

    /// Reports all missing keys at once. A section that is missing as a whole is reported by its name.
    void reject_missing_keys() const {
        std::vector<std::string> names;
        for (const auto& key : missing_) {
            const auto dot = key.rfind('.');
            const auto section = dot == std::string::npos ? "" : key.substr(0, dot);
            const auto lies_in_it = [&](const Figure& figure) { return figure.name.starts_with(section + "."); };
            const auto name = section.empty() || given(section) || std::ranges::any_of(figures, lies_in_it)
                                  ? fmt::format("'{}'", key)
                                  : fmt::format("all of [{}]", section);
            if (names.empty() || names.back() != name) names.push_back(name);
        }
        const auto* says = "calibrate --list-machine-keys shows all keys";
        if (missing_.size() == 1) fail("{}: key '{}' is missing; {}", file_, missing_.front(), says);
        if (!names.empty())
            fail("{}: {} keys are missing: {}; {}", file_, missing_.size(), fmt::join(names, ", "), says);
    }

    std::vector<Figure> figures;

private:
    /// The node of a key, or null; then the key is derived by a rule or, without one, noted as missing.
    const toml::node* find(const std::string& key, const char* rule) {
        known_.insert(key);
        const auto* node = root_.at_path(key).node();
        if (!node && !rule) missing_.push_back(key);
        has_derived_ |= !node && rule;
        return node;
    }

    double record_derived(const std::string& key, const Derived& derived) {
        figures.push_back({key, derived.value, std::string(derived_source) + derived.rule});
        return derived.value;
    }

    const toml::table* figure_at(const std::string& key, const Derived& derived) {
        const auto* node = find(key, derived.rule);
        if (!node) return nullptr;
        const auto* figure = node->as_table();
        if (!figure || !figure->contains("value") || !figure->contains("source"))
            fail_at(*node, "{} must be written as {{ value = ..., source = \"where it comes from\" }}", key);
        for (const auto* part : {"value", "source", "up_to_mebibytes", "at_a_time"}) known_.insert(key + "." + part);
        return figure;
    }

    const toml::array* array_in(const toml::table& figure, const std::string& key, const char* part) {
        const auto* node = figure.get(part);
        if (!node || !node->is_array()) fail_at(figure, "{}.{} must be a list [..., ...]", key, part);
        return node->as_array();
    }

    std::pair<const toml::array*, const toml::array*> lists_in(const toml::table& figure, const std::string& key,
                                                               const char* first, const char* second) {
        const auto *a = array_in(figure, key, first), *b = array_in(figure, key, second);
        if (a->size() != b->size())
            fail_at(figure, "{} has {} entries of {} and {} of {}; the numbers must be equal", key, a->size(), first,
                    b->size(), second);
        return {a, b};
    }

    std::string source(const std::string& key, const toml::table& figure) {
        const auto text = figure.get("source")->value<std::string>();
        if (!text || text->empty()) fail_at(figure, "{}.source must say in quotes where the figure comes from", key);
        return *text;
    }

    double record(const std::string& key, const toml::node& node, Range range, std::string source) {
        const auto value = to_number(key, node, range);
        figures.push_back({key, value, std::move(source)});
        return value;
    }

    double to_number(const std::string& key, const toml::node& node, Range range) {
        const auto value = node.is_number() ? node.value<double>() : std::nullopt;
        if (!value) fail_at(node, "{} must be a number", key);
        if (range.may_be_infinite && *value == std::numeric_limits<double>::infinity()) return *value;
        if (!(*value >= range.low && *value <= range.high))
            fail_at(node, "{} is {}; it must be from {} to {}{}", key, *value, range.low, range.high,
                    range.may_be_infinite ? ", or inf" : "");
        if (range.whole && *value != std::floor(*value))
            fail_at(node, "{} is {}; it must be a whole number", key, *value);
        return *value;
    }

    template <class... Args>
    [[noreturn]] void fail_at(const toml::node& node, fmt::format_string<Args...> message, Args&&... args) const {
        const auto& source = node.source();  // where two files are combined, the one that the node is from
        fail("{}:{}: {}", source.path ? *source.path : file_, source.begin.line,
             fmt::format(message, std::forward<Args>(args)...));
    }

    static bool is_retired(std::string_view key) {
        constexpr std::string_view whole[]{"joined_launches",   "host.compute_issue_us",     "host.pass_issue_us",
                                           "messages_in_a_row", "accumulate.copy_launch_us", "hidden_messages"};
        constexpr std::string_view of_attends[]{".end_us",        ".end_memory_ratio",  ".ends.idle_byte_us",
                                                ".ends.share_us", ".idle_work_tile_us", ".idle_item_us",
                                                ".finish_us",     ".reread.tile_us"};
        const auto is = [&](std::string_view other) { return key == other; };
        const auto ends_so = [&](std::string_view end) { return key.ends_with(end); };
        return std::ranges::any_of(whole, is) || ((key.starts_with("attention.") || key.starts_with("kernels.")) &&
                                                  std::ranges::any_of(of_attends, ends_so));
    }

    static void add_retired_keys(const toml::table& table, const std::string& prefix, std::vector<std::string>& found) {
        for (const auto& [name, node] : table) {
            const auto key = prefix + std::string(name.str());
            if (is_retired(key))
                found.push_back(key);
            else if (const auto* inner = node.as_table())
                add_retired_keys(*inner, key + ".", found);
        }
    }

    /// A table is known if any key in it is.
    bool known(const std::string& key) const {
        const auto at = known_.lower_bound(key);
        return at != known_.end() && (*at == key || known_.lower_bound(key + ".") != known_.lower_bound(key + "/"));
    }

    void reject_unknown_keys(const toml::table& table, const std::string& prefix) const {
        for (const auto& [name, node] : table) {
            const auto key = prefix + std::string(name.str());
            if (is_retired(key)) continue;
            if (!known(key)) fail_at(node, "unknown key '{}'; calibrate --list-machine-keys shows all keys", key);
            if (const auto* inner = node.as_table()) reject_unknown_keys(*inner, key + ".");
        }
    }

    const toml::table& root_;
    std::string file_, name_;
    bool is_short_, has_derived_ = false;
    std::set<std::string> known_;
    std::vector<std::string> missing_;
};

/// Network ports only matter with several hosts. On one host a wrong number of ports is set right and noted.
void check_ports(Reader& reader, Machine& machine) {
    if (machine.gpus_per_host % machine.nics_per_host == 0) return;
    if (machine.hosts > 1) reader.fail_at_key("topology.nics_per_host", "must divide topology.gpus_per_host");
    machine.notes.push_back(fmt::format("topology.nics_per_host, {} for {} GPUs, has no effect on one host",
                                        machine.nics_per_host, machine.gpus_per_host));
    machine.nics_per_host = machine.gpus_per_host;
}

/// Files of earlier versions do not say what carries messages: those that hold SMs are kernels.
void check_carrier(Reader& reader, const std::string& section, LinkCost& link) {
    if (!reader.given(section + ".carrier"))
        link.carrier = link.sms_per_channel > 0 ? LinkCost::Carrier::kernels : LinkCost::Carrier::copy_engines;
    if (!link.uses_kernels() && link.sms_per_channel > 0)
        reader.fail_at_key(section + ".multiprocessors_per_channel",
                           fmt::format("is {}; it must be 0, as copy engines hold none", link.sms_per_channel));
}

Machine read_machine(Reader& reader) {
    Machine machine;
    MachineFields(reader).visit(machine);
    reader.reject_missing_keys();
    check_ports(reader, machine);
    check_carrier(reader, "inside_host", machine.inside_host);
    check_carrier(reader, "between_hosts", machine.between_hosts);
    if (const auto retired = reader.retired_keys(); !retired.empty())
        machine.notes.push_back(fmt::format("keys that are no longer used: {}", fmt::join(retired, ", ")));
    if (machine.attention_memory_bytes_per_second > machine.memory_bytes_per_second)
        reader.fail_at_key("gpu.attention_memory_gigabytes_per_second",
                           "must not exceed gpu.memory_gigabytes_per_second");
    if (const auto count = machine.power_of_gpus.size();
        count > 0 && count != static_cast<std::size_t>(machine.gpus_per_host))
        reader.fail_at_key("power.of_gpus",
                           fmt::format("has {} entries; there must be one for each of {} GPUs of a host", count,
                                       machine.gpus_per_host));
    const auto held = [&](const LinkCost& link) {
        double most = 0;
        for (const auto& channels : link.channels) most = std::max(most, channels.value);
        return most * link.sms_per_channel;
    };
    // Two messages in each direction at a time must leave SMs to compute on.
    if (4 * std::max(held(machine.inside_host), held(machine.between_hosts)) >= machine.sms)
        reader.fail_at_key("gpu.multiprocessors", "must exceed four times the multiprocessors that a transfer holds");
    reader.reject_unknown_keys();
    machine.figures = std::move(reader.figures);
    complete_tile_prices(machine);
    return machine;
}

/// Puts keys and words of earlier versions as they are written now.
void update_old_names(toml::table& table) {
    for (const auto& [old, now] : {std::pair{"item", "work_tile"},
                                   {"item_us", "work_tile_us"},
                                   {"few_rows", "split_kv"},
                                   {"room_for_transfers", "sm_admission"}})
        if (auto* node = table.get(old); node && !table.contains(now)) {
            table.insert_or_assign(now, std::move(*node));  // moved: a copy would lose its file and line
            table.erase(old);
        }
    for (auto&& [key, node] : table) {
        if (auto* inner = node.as_table()) update_old_names(*inner);
        if (auto* text = node.as_string(); text && text->get() == "as items end") text->get() = "as work tiles end";
    }
}

toml::table parsed(std::string_view text, const std::string& file) {
    try {
        auto root = toml::parse(text, file);
        update_old_names(root);
        return root;
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
}

/// Reads the file twice: only who has seen all of it knows whether it is short.
Machine machine_from(const toml::table& root, const std::string& file, std::string text) {
    Reader first(root, file, false);
    Machine scratch;
    MachineFields(first).visit(scratch);
    Reader reader(root, file, first.has_derived());
    auto machine = read_machine(reader);
    machine.text = std::move(text);
    return machine;
}

/// Replaces figures and texts in `table` by those in `others`, section by section.
void replace(toml::table& table, toml::table&& others) {
    for (auto&& [name, node] : others) {
        auto* section = node.as_table();
        auto* own = table[name].as_table();
        if (section && own && !section->contains("value"))
            replace(*own, std::move(*section));
        else
            table.insert_or_assign(name, std::move(node));  // moved: a copy would lose its file and line
    }
}

}  // namespace

Machine parse_machine(std::string_view text, std::string_view name) {
    const std::string file(name);
    return machine_from(parsed(text, file), file, std::string(text));
}

Machine load_machine(const std::filesystem::path& file) {
    return parse_machine(layouts::read_text(file, "machine file"), file.string());
}

Machine load_machine(const std::filesystem::path& file, const std::filesystem::path& implementation) {
    const auto text = layouts::read_text(file, "machine file"),
               other_text = layouts::read_text(implementation, "implementation");
    auto root = parsed(text, file.string());
    replace(root, parsed(other_text, implementation.string()));
    return machine_from(root, implementation.string(), text + "\n" + other_text);
}

}  // namespace ringlab::sim
