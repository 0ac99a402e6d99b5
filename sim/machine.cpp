#include "sim/machine.hpp"

#include "layouts/require.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>

namespace ringlab::sim {
namespace {

constexpr double micro = 1e-6, giga = 1e9, tera = 1e12, mebi = 1024.0 * 1024.0;

/// What one figure may be.
struct Range {
    double low = 0;
    double high = 1e15;
    bool whole = false;
    bool may_be_infinite = false;
};

constexpr Range positive{1e-12, 1e15};
constexpr Range not_negative{0, 1e15};
constexpr Range bandwidth{1e-9, 1e9, false, true};
constexpr Range fraction{1e-6, 1};
constexpr Range count{1, 1 << 20, true};

/// Control characters (a message must be one line) as blanks.
std::string one_line(std::string_view text) {
    std::string line(text);
    for (auto& c : line)
        if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
    return line;
}

/// Takes figures out of a parsed file one by one, and knows at the end which keys nobody asked for.
class Reader {
public:
    Reader(const toml::table& root, std::string file) : root_(root), file_(std::move(file)) {}

    bool has(const std::string& section) const { return root_.at_path(section).is_table(); }

    std::string text(const std::string& key) {
        const auto node = find(key);
        const auto value = node->value<std::string>();
        if (!value || value->empty()) complain(*node, "{} must be a text in quotes that is not empty", key);
        return *value;
    }

    double number(const std::string& key, Range range) {
        const auto& figure = figure_at(key);
        const auto* node = figure.get("value");
        return record(key, *node, range, source(key, figure));
    }

    /// A figure that depends on the message size.
    std::vector<LinkCost::Channels> by_message_size(const std::string& key) {
        const auto& figure = figure_at(key);
        const auto* limits = array_in(figure, key, "up_to_mebibytes");
        const auto* values = array_in(figure, key, "value");
        if (limits->empty() || limits->size() != values->size())
            complain(figure, "{} has {} sizes and {} values; there must be one value for each of at least one size",
                     key, limits->size(), values->size());
        std::vector<LinkCost::Channels> classes;
        double before = 0;
        for (std::size_t i = 0; i < values->size(); ++i) {
            const auto limit = to_number(key + ".up_to_mebibytes", *limits->get(i), {1e-6, 1e12, false, true});
            if (limit <= before) complain(*limits->get(i), "{}.up_to_mebibytes must grow from entry to entry", key);
            before = limit;
            classes.push_back({limit * mebi, record(key, *values->get(i), {1, 1024}, source(key, figure))});
        }
        if (std::isfinite(before)) complain(figure, "{}.up_to_mebibytes must end in inf, to cover every message", key);
        return classes;
    }

    [[noreturn]] void complain_about(const std::string& key, std::string_view what) {
        complain(*find(key), "{} {}", key, what);
    }

    void refuse_unknown() const { refuse_unknown(root_, ""); }

    std::vector<Figure> figures;

private:
    const toml::node* find(const std::string& key) {
        known_.insert(key);
        const auto node = root_.at_path(key);
        if (!node.node()) fail("{}: key '{}' is missing; the files in experiments/machines show all keys", file_, key);
        return node.node();
    }

    const toml::table& figure_at(const std::string& key) {
        const auto* node = find(key);
        const auto* figure = node->as_table();
        if (!figure || !figure->contains("value") || !figure->contains("source"))
            complain(*node, "{} must be written as {{ value = ..., source = \"where it comes from\" }}", key);
        for (const auto* part : {"value", "source", "up_to_mebibytes"}) known_.insert(key + "." + part);
        return *figure;
    }

    const toml::array* array_in(const toml::table& figure, const std::string& key, const char* part) {
        const auto* node = figure.get(part);
        if (!node || !node->is_array()) complain(figure, "{}.{} must be a list [..., ...]", key, part);
        return node->as_array();
    }

    std::string source(const std::string& key, const toml::table& figure) {
        const auto text = figure.get("source")->value<std::string>();
        if (!text || text->empty()) complain(figure, "{}.source must say in quotes where the figure comes from", key);
        return *text;
    }

    double record(const std::string& key, const toml::node& node, Range range, std::string source) {
        const auto value = to_number(key, node, range);
        figures.push_back({key, value, std::move(source)});
        return value;
    }

    double to_number(const std::string& key, const toml::node& node, Range range) {
        const auto value = node.is_number() ? node.value<double>() : std::nullopt;
        if (!value) complain(node, "{} must be a number", key);
        if (range.may_be_infinite && *value == std::numeric_limits<double>::infinity()) return *value;
        if (!(*value >= range.low && *value <= range.high))
            complain(node, "{} is {}; it must be from {} to {}{}", key, *value, range.low, range.high,
                     range.may_be_infinite ? ", or inf" : "");
        if (range.whole && *value != std::floor(*value))
            complain(node, "{} is {}; it must be a whole number", key, *value);
        return *value;
    }

    template <class... Args>
    [[noreturn]] void complain(const toml::node& node, fmt::format_string<Args...> message, Args&&... args) const {
        fail("{}:{}: {}", file_, node.source().begin.line, one_line(fmt::format(message, std::forward<Args>(args)...)));
    }

    /// A table is known if something in it is.
    bool known(const std::string& key) const {
        const auto at = known_.lower_bound(key);
        return at != known_.end() && (*at == key || known_.lower_bound(key + ".") != known_.lower_bound(key + "/"));
    }

    void refuse_unknown(const toml::table& table, const std::string& prefix) const {
        for (const auto& [name, node] : table) {
            const auto key = prefix + std::string(name.str());
            if (!known(key)) complain(node, "unknown key '{}'; the files in experiments/machines show all keys", key);
            if (const auto* inner = node.as_table()) refuse_unknown(*inner, key + ".");
        }
    }

    const toml::table& root_;
    std::string file_;
    std::set<std::string> known_;
};

AttentionCost read_attention(Reader& reader, const std::string& section) {
    AttentionCost cost;
    const auto whole = [&](const char* key) { return static_cast<std::int64_t>(reader.number(section + key, count)); };
    cost.head_dim = whole(".head_dim");
    cost.value_dim = whole(".value_dim");
    cost.tile_rows = whole(".tile_rows");
    cost.tile_keys = whole(".tile_keys");
    cost.launch_seconds = reader.number(section + ".launch_us", not_negative) * micro;
    cost.query_tile_seconds = reader.number(section + ".query_tile_us", not_negative) * micro;
    cost.full_tile_seconds = reader.number(section + ".full_tile_us", not_negative) * micro;
    cost.partial_tile_seconds = reader.number(section + ".partial_tile_us", not_negative) * micro;
    cost.flops = reader.number(section + ".teraflops", bandwidth) * tera;
    return cost;
}

LinkCost read_link(Reader& reader, const std::string& section) {
    LinkCost cost;
    cost.latency_seconds = reader.number(section + ".latency_us", not_negative) * micro;
    cost.link_bytes_per_second = reader.number(section + ".link_gigabytes_per_second", bandwidth) * giga;
    cost.channel_bytes_per_second = reader.number(section + ".channel_gigabytes_per_second", bandwidth) * giga;
    cost.channels = reader.by_message_size(section + ".channels");
    cost.messages_per_block = reader.number(section + ".messages_per_block", {1, 1024, true});
    cost.busy_speed_ratio = reader.number(section + ".busy_speed_ratio", fraction);
    cost.multiprocessors_per_channel = reader.number(section + ".multiprocessors_per_channel", {0, 1024});
    cost.send_memory_ratio = reader.number(section + ".send_memory_ratio", {0, 100});
    cost.receive_memory_ratio = reader.number(section + ".receive_memory_ratio", {0, 100});
    return cost;
}

Machine read_machine(Reader& reader) {
    const auto whole = [&](const char* key) { return static_cast<int>(reader.number(key, count)); };
    Machine machine;
    machine.name = reader.text("name");
    machine.description = reader.text("description");
    machine.hosts = whole("topology.hosts");
    machine.gpus_per_host = whole("topology.gpus_per_host");
    machine.nics_per_host = whole("topology.nics_per_host");
    if (machine.gpus_per_host % machine.nics_per_host != 0)
        reader.complain_about("topology.nics_per_host", "must divide topology.gpus_per_host");
    machine.multiprocessors = reader.number("gpu.multiprocessors", {1, 1 << 16, true});
    machine.memory_bytes_per_second = reader.number("gpu.memory_gigabytes_per_second", bandwidth) * giga;
    machine.attention_memory_bytes_per_second =
        reader.number("gpu.attention_memory_gigabytes_per_second", {0, 1e9}) * giga;
    if (machine.attention_memory_bytes_per_second > machine.memory_bytes_per_second)
        reader.complain_about("gpu.attention_memory_gigabytes_per_second",
                              "must not exceed gpu.memory_gigabytes_per_second");
    machine.sustained_clock_factor = reader.number("gpu.sustained_clock_factor", {0.01, 10});
    machine.compute_issue_seconds = reader.number("host.compute_issue_us", not_negative) * micro;
    machine.transfer_issue_seconds = reader.number("host.transfer_issue_us", not_negative) * micro;
    machine.forward = read_attention(reader, "attention.forward");
    machine.backward = read_attention(reader, "attention.backward");
    machine.accumulate_launch_seconds = reader.number("accumulate.launch_us", not_negative) * micro;
    machine.merge_memory_ratio = reader.number("accumulate.merge_memory_ratio", {0, 100});
    machine.add_memory_ratio = reader.number("accumulate.add_memory_ratio", {0, 100});
    machine.carry_exposed_ratio = reader.number("accumulate.carry_exposed_ratio", {0, 1});
    machine.inside_host = read_link(reader, "inside_host");
    if (machine.hosts > 1 || reader.has("between_hosts")) machine.between_hosts = read_link(reader, "between_hosts");
    const auto held = [&](const LinkCost& link) {
        double most = 0;
        for (const auto& channels : link.channels) most = std::max(most, channels.count);
        return most * link.multiprocessors_per_channel;
    };
    // Two directions and two payloads at a time must leave something to compute on.
    if (4 * std::max(held(machine.inside_host), held(machine.between_hosts)) >= machine.multiprocessors)
        reader.complain_about("gpu.multiprocessors", "must exceed four times what a transfer holds");
    reader.refuse_unknown();
    machine.figures = std::move(reader.figures);
    return machine;
}

}  // namespace

double LinkCost::channels_for(double bytes) const {
    const auto message = bytes / messages_per_block;
    for (const auto& some : channels)
        if (message <= some.up_to_bytes) return some.count;
    return channels.empty() ? 1 : channels.back().count;
}

double LinkCost::rate(double bytes) const {
    return std::min(channels_for(bytes) * channel_bytes_per_second, link_bytes_per_second);
}

Machine parse_machine(std::string_view text, std::string_view name) {
    const auto file = one_line(name);
    toml::table root;
    try {
        root = toml::parse(text, file);
    } catch (const toml::parse_error& error) {
        fail("{}:{}: not valid TOML: {}", file, error.source().begin.line, one_line(error.description()));
    }
    Reader reader(root, file);
    auto machine = read_machine(reader);
    machine.text = text;
    return machine;
}

Machine load_machine(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    require(stream.good() && !std::filesystem::is_directory(file), "cannot read machine file '{}'",
            one_line(file.string()));
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    return parse_machine(text, file.string());
}

}  // namespace ringlab::sim
