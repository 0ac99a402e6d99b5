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
class Reader : public KeyVisitor {
public:
    /// `is_short`: the file leaves out keys that every complete file has, as a reader before this one has found.
    Reader(const toml::table& root, std::string file, bool is_short)
        : root_(root), file_(std::move(file)), is_short_(is_short) {}

    void visit(const Key& key) override {
        std::visit([&](const auto& place) { read(key, place); }, key.place);
    }
    bool has_section(const std::string& name, bool wanted) override { return wanted || root_.at_path(name).is_table(); }
    bool has_key(const std::string& name) const override { return root_.at_path(name).node() != nullptr; }
    bool is_short() const override { return is_short_; }
    std::optional<double> number(const std::string& name) const override {
        return root_.at_path(name)["value"].value<double>();
    }
    std::optional<std::string> text(const std::string& name) const override {
        return root_.at_path(name).value<std::string>();
    }
    std::vector<std::string> names_of_kernels() override {
        std::vector<std::string> names;
        const auto* kernels = root_["kernels"].as_table();
        if (!kernels) return names;
        for (const auto& [name, node] : *kernels) {
            if (!node.is_table()) fail_at(node, "kernels.{} must be a section", name.str());
            names.emplace_back(name.str());
        }
        return names;
    }

    /// Whether a key that every complete file has was derived.
    bool has_derived() const { return has_derived_; }

    [[noreturn]] void fail_at_key(const std::string& name, std::string_view what) {
        fail_at(*find(name, nullptr), "{} {}", name, what);
    }

    void reject_unknown_keys() const { reject_unknown_keys(root_, ""); }

    /// Reports all missing keys at once.
    void reject_missing_keys() const {
        if (missing_.empty()) return;
        const auto what = missing_.size() == 1 ? "key '{1}' is missing" : "{0} keys are missing: '{1}'";
        fail("{}: {}; calibrate --list-machine-keys shows all keys", file_,
             fmt::format(fmt::runtime(what), missing_.size(), fmt::join(missing_, "', '")));
    }

    std::vector<Figure> figures;

private:
    void read(const Key& key, std::string* text) {
        const auto* node = find(key.name, key.derived.rule);
        if (node)
            *text = text_in(key, *node);
        else if (key.derived.rule && text->empty())
            *text = key.derived.rule;
    }

    void read(const Key& key, const Choice& choice) {
        const auto* node = find(key.name, key.derived.rule);
        if (!node && !key.derived.rule) return;
        const auto name = node ? text_in(key, *node) : key.derived.rule;
        const auto found = std::ranges::find(choice.names, name);
        if (found == choice.names.end())
            fail_at(*node, "{} must be \"{}\"", key.name, fmt::join(choice.names, "\" or \""));
        choice.choose(static_cast<std::size_t>(found - choice.names.begin()));
    }

    template <class Number>
    void read(const Key& key, Number* value) {
        if (const auto* figure = figure_at(key))
            *value = static_cast<Number>(record(key, *figure->get("value"), source(key, *figure)) * key.unit);
        else if (key.derived.rule)
            *value = static_cast<Number>(record_derived(key) * key.unit);
    }

    void read(const Key& key, std::vector<double>* all) {
        const auto* figure = figure_at(key);
        if (!figure) return;
        all->clear();
        for (const auto& value : *array_in(*figure, key, "value"))
            all->push_back(record(key, value, source(key, *figure)));
    }

    /// A figure that depends on the message size.
    void read(const Key& key, std::vector<LinkCost::BySize>* classes) {
        const auto* figure = figure_at(key);
        if (!figure) {
            if (key.derived.rule) *classes = {{ranges::infinite, record_derived(key)}};
            return;
        }
        const auto [limits, values] = lists_in(*figure, key, "up_to_mebibytes", "value");
        if (limits->empty()) fail_at(*figure, "{} must have at least one size", key.name);
        double before = 0;
        classes->clear();
        for (std::size_t i = 0; i < values->size(); ++i) {
            const auto limit = to_number(key.name + ".up_to_mebibytes", *limits->get(i), {1e-6, 1e12, false, true});
            if (limit <= before) fail_at(*limits->get(i), "{}.up_to_mebibytes must grow from entry to entry", key.name);
            before = limit;
            classes->push_back({limit * mebi, record(key, *values->get(i), source(key, *figure))});
        }
        if (std::isfinite(before))
            fail_at(*figure, "{}.up_to_mebibytes must end in inf, to cover every message", key.name);
    }

    void read(const Key& key, std::vector<layouts::SmGroup>* groups) {
        const auto* figure = figure_at(key);
        if (!figure) return;  // none, if they are derived
        const auto [values, at_a_time] = lists_in(*figure, key, "value", "at_a_time");
        const auto whole = [&](double value) { return static_cast<std::int64_t>(value); };
        groups->clear();
        for (std::size_t i = 0; i < values->size(); ++i)
            groups->push_back({whole(record(key, *values->get(i), source(key, *figure))),
                               whole(to_number(key.name + ".at_a_time", *at_a_time->get(i), {1, 1 << 16, true}))});
    }

    /// The node of a key, or null; then the key is derived by a rule or, without one, noted as missing.
    const toml::node* find(const std::string& name, const char* rule) {
        known_.insert(name);
        const auto* node = root_.at_path(name).node();
        if (!node && !rule) missing_.push_back(name);
        has_derived_ |= !node && rule;
        return node;
    }

    double record_derived(const Key& key) {
        figures.push_back({key.name, key.derived.value, std::string(derived_source) + key.derived.rule});
        return key.derived.value;
    }

    std::string text_in(const Key& key, const toml::node& node) {
        const auto found = node.value<std::string>();
        if (!found || found->empty()) fail_at(node, "{} must be a non-empty text in quotes", key.name);
        return *found;
    }

    const toml::table* figure_at(const Key& key) {
        const auto* node = find(key.name, key.derived.rule);
        if (!node) return nullptr;
        const auto* figure = node->as_table();
        if (!figure || !figure->contains("value") || !figure->contains("source"))
            fail_at(*node, "{} must be written as {{ value = ..., source = \"where it comes from\" }}", key.name);
        for (const auto* part : {"value", "source", "up_to_mebibytes", "at_a_time"})
            known_.insert(key.name + "." + part);
        return figure;
    }

    const toml::array* array_in(const toml::table& figure, const Key& key, const char* part) {
        const auto* node = figure.get(part);
        if (!node || !node->is_array()) fail_at(figure, "{}.{} must be a list [..., ...]", key.name, part);
        return node->as_array();
    }

    std::pair<const toml::array*, const toml::array*> lists_in(const toml::table& figure, const Key& key,
                                                               const char* first, const char* second) {
        const auto *a = array_in(figure, key, first), *b = array_in(figure, key, second);
        if (a->size() != b->size())
            fail_at(figure, "{} has {} entries of {} and {} of {}; the numbers must be equal", key.name, a->size(),
                    first, b->size(), second);
        return {a, b};
    }

    std::string source(const Key& key, const toml::table& figure) {
        const auto text = figure.get("source")->value<std::string>();
        if (!text || text->empty())
            fail_at(figure, "{}.source must say in quotes where the figure comes from", key.name);
        return *text;
    }

    double record(const Key& key, const toml::node& node, std::string source) {
        const auto value = to_number(key.name, node, key.range);
        figures.push_back({key.name, value, std::move(source)});
        return value;
    }

    double to_number(const std::string& name, const toml::node& node, const Range& range) {
        const auto value = node.is_number() ? node.value<double>() : std::nullopt;
        if (!value) fail_at(node, "{} must be a number", name);
        if (range.may_be_infinite && *value == ranges::infinite) return *value;
        if (!(*value >= range.low && *value <= range.high))
            fail_at(node, "{} is {}; it must be from {} to {}{}", name, *value, range.low, range.high,
                    range.may_be_infinite ? ", or inf" : "");
        if (range.whole && *value != std::floor(*value))
            fail_at(node, "{} is {}; it must be a whole number", name, *value);
        return *value;
    }

    template <class... Args>
    [[noreturn]] void fail_at(const toml::node& node, fmt::format_string<Args...> message, Args&&... args) const {
        const auto& source = node.source();  // where two files are combined, the one that the node is from
        fail("{}:{}: {}", source.path ? *source.path : file_, source.begin.line,
             fmt::format(message, std::forward<Args>(args)...));
    }

    /// A table is known if any key in it is.
    bool known(const std::string& name) const {
        const auto at = known_.lower_bound(name);
        return at != known_.end() && (*at == name || known_.lower_bound(name + ".") != known_.lower_bound(name + "/"));
    }

    void reject_unknown_keys(const toml::table& table, const std::string& prefix) const {
        for (const auto& [part, node] : table) {
            const auto name = prefix + std::string(part.str());
            if (!known(name)) fail_at(node, "unknown key '{}'; calibrate --list-machine-keys shows all keys", name);
            if (const auto* inner = node.as_table()) reject_unknown_keys(*inner, name + ".");
        }
    }

    const toml::table& root_;
    std::string file_;
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

void check_carrier(Reader& reader, const std::string& section, const LinkCost& link) {
    if (!link.uses_kernels() && link.sms_per_channel > 0)
        reader.fail_at_key(section + ".multiprocessors_per_channel",
                           fmt::format("is {}; it must be 0, as copy engines hold none", link.sms_per_channel));
}

Machine read_machine(Reader& reader, const std::string& file) {
    Machine machine;
    machine.name = std::filesystem::path(file).stem().string();  // unless the file says another one
    visit_keys(machine, reader);
    reader.reject_missing_keys();
    check_ports(reader, machine);
    check_carrier(reader, "inside_host", machine.inside_host);
    check_carrier(reader, "between_hosts", machine.between_hosts);
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

toml::table parsed(std::string_view text, const std::string& file) {
    try {
        return toml::parse(text, file);
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, error.description());
    }
}

/// Reads the file twice: only who has seen all of it knows whether it is short.
Machine machine_from(const toml::table& root, const std::string& file, std::string text) {
    Reader first(root, file, false);
    Machine scratch;
    visit_keys(scratch, first);
    Reader reader(root, file, first.has_derived());
    auto machine = read_machine(reader, file);
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
