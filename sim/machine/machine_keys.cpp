#include "sim/machine/machine_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace ringlab::sim {
namespace {

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

/// Collects the keys of a short machine file that has all optional sections and one kernel of its own.
class KeyCollector {
public:
    void text(const std::string& key, const std::string&, const char* derived) {
        add(key, "text in quotes", "", "", left_out(key, derived));
    }
    template <class Enum>
    void choice(const std::string& key, const Enum&, const char* term, std::initializer_list<const char*> names,
                const char* derived) {
        add(key, fmt::format("\"{}\"", fmt::join(names, "\" or \"")), "", term, left_out(key, derived));
    }
    template <class Value>
    void number(const std::string& key, const Value&, const KeyRow& row) {
        add(key, unit_of(key), text_of(row.range), row);
    }
    template <class Value>
    void numbers(const std::string& key, const Value&, const KeyRow& row) {
        add(key, "list", text_of(row.range), row);
    }
    template <class Value>
    void groups(const std::string& key, const Value&, const KeyRow& row) {
        add(key, "list, with a list `at_a_time`", text_of(row.range), row);
    }
    template <class Value>
    void channels(const std::string& key, const Value&, const KeyRow& row) {
        add(key, "list, with a list `up_to_mebibytes`", text_of(row.range), row);
    }
    bool section(const std::string& name, bool wanted) {
        if (!wanted) optional_.push_back(name);
        return true;
    }
    bool given(const std::string&) const { return true; }
    bool is_short() const { return true; }
    bool derives_tiles(const std::string& section) const { return section.starts_with("attention."); }
    bool uses_kernels(const std::string&, bool between) const { return between; }
    const char* name_of_file() const { return "the file's name"; }
    double in_file(const std::string&, double otherwise) const { return otherwise; }
    template <class All, class Begin>
    void sections(const std::string& name, All& all, Begin begin) {
        begin(all.emplace_back());
        all.back().name = "NAME";
        optional_.push_back(name + ".NAME");
    }

    std::vector<MachineKey> keys;

private:
    void add(const std::string& key, std::string unit, std::string range, std::string term, std::string left_out) {
        keys.push_back({key, std::move(unit), std::move(range), std::move(term), std::move(left_out)});
    }
    void add(const std::string& key, std::string unit, std::string range, const KeyRow& row) {
        const auto& derived = row.derived;
        const auto rule = !derived.rule     ? ""
                          : derived.depends ? std::string(derived.rule)
                                            : fmt::format("{:g}, {}", derived.value, derived.rule);
        add(key, std::move(unit), std::move(range), row.term, left_out(key, derived.rule ? rule.c_str() : nullptr));
    }

    std::string left_out(const std::string& key, const char* derived) const {
        if (derived) return std::string(derived_source) + derived;
        std::string around;
        for (const auto& name : optional_)
            if (key.starts_with(name + ".") && name.size() > around.size()) around = name;
        return around.empty() ? "required" : fmt::format("optional, with all of [{}]", around);
    }

    std::vector<std::string> optional_;
};

bool is_derived(const Figure& figure) { return figure.source.starts_with(derived_source); }

}  // namespace

std::vector<MachineKey> machine_keys() {
    KeyCollector collector;
    Machine machine;
    machine.hosts = 2;
    MachineFields(collector).visit(machine);
    return std::move(collector.keys);
}

std::int64_t derived_figures(const Machine& machine) { return std::ranges::count_if(machine.figures, is_derived); }

std::string derived_text(const Machine& machine) {
    std::string text;
    for (const auto& figure : machine.figures)
        if (is_derived(figure)) text += fmt::format("{} = {}: {}\n", figure.name, figure.value, figure.source);
    return text;
}

}  // namespace ringlab::sim
