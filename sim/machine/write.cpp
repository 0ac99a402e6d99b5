#include "sim/machine/machine_keys.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <sstream>

namespace ringlab::sim {
namespace {

/// Five digits, because no figure is known more precisely. Infinity is written inf, as in TOML.
std::string digits(double value) { return fmt::format("{:.5g}", value); }

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result + '"';
}

/// Writes line by line, in the order of the fields. toml++ would sort tables and write numbers with 17 digits.
class MachineWriter {
public:
    explicit MachineWriter(const std::map<std::string, std::string>& sources) : sources_(sources) {}

    void text(const std::string& key, const std::string& value, const char*) { put(key, quoted(value)); }
    template <class Enum>
    void choice(const std::string& key, Enum value, const char*, std::initializer_list<const char*> names,
                const char*) {
        put(key, quoted(names.begin()[static_cast<std::size_t>(value)]));
    }

    template <class T>
    void number(const std::string& key, const T& value, const KeyRow& row) {
        figure(key, row.range.whole ? fmt::format("{}", static_cast<std::int64_t>(value))
                                    : digits(static_cast<double>(value) / row.unit));
    }

    void numbers(const std::string& key, const std::vector<double>& all, const KeyRow&) {
        std::vector<std::string> texts;
        for (const auto value : all) texts.push_back(digits(value));
        figure(key, fmt::format("[{}]", fmt::join(texts, ", ")));
    }

    void groups(const std::string& key, const std::vector<layouts::SmGroup>& groups, const KeyRow&) {
        std::vector<std::int64_t> sms, at_a_time;
        for (const auto& group : groups) {
            sms.push_back(group.sms);
            at_a_time.push_back(group.at_a_time);
        }
        figure(key, fmt::format("[{}], at_a_time = [{}]", fmt::join(sms, ", "), fmt::join(at_a_time, ", ")));
    }

    void channels(const std::string& key, const std::vector<LinkCost::BySize>& channels, const KeyRow&) {
        constexpr double mebibyte = 1024.0 * 1024.0;
        std::vector<std::string> sizes, counts;
        for (const auto& some : channels) {
            sizes.push_back(&some == &channels.back() ? "inf" : digits(some.up_to_bytes / mebibyte));
            counts.push_back(digits(some.value));
        }
        if (channels.empty()) {
            sizes.emplace_back("inf");
            counts.emplace_back("1");
        }
        figure(key, fmt::format("[{}], up_to_mebibytes = [{}]", fmt::join(counts, ", "), fmt::join(sizes, ", ")));
    }

    bool section(const std::string&, bool wanted) const { return wanted; }
    bool given(const std::string&) const { return true; }
    bool is_short() const { return false; }
    bool derives_tiles(const std::string&) const { return false; }
    bool uses_kernels(const std::string&, bool) const { return false; }
    const char* name_of_file() const { return ""; }
    double in_file(const std::string&, double otherwise) const { return otherwise; }
    template <class All, class Begin>
    void sections(const std::string&, const All&, Begin) const {}

    const std::string& lines() const { return lines_; }

private:
    /// The source given for a key, or for the nearest section around it.
    const std::string& source(const std::string& key) const {
        auto found = sources_.find(key);
        for (auto at = key.rfind('.'); found == sources_.end() && at != std::string::npos;
             at = at == 0 ? std::string::npos : key.rfind('.', at - 1))
            found = sources_.find(key.substr(0, at));
        require(found != sources_.end(), "no source is given for '{}' of the machine file", key);
        return found->second;
    }

    void figure(const std::string& key, const std::string& value) {
        put(key, fmt::format("{{ value = {}, source = {} }}", value, quoted(source(key))));
    }

    void put(const std::string& key, const std::string& value) {
        const auto dot = key.rfind('.');
        const auto section = dot == std::string::npos ? "" : key.substr(0, dot);
        if (section != section_) lines_ += fmt::format("\n[{}]\n", section);
        section_ = section;
        lines_ += fmt::format("{} = {}\n", key.substr(dot == std::string::npos ? 0 : dot + 1), value);
    }

    const std::map<std::string, std::string>& sources_;
    std::string section_, lines_;
};

}  // namespace

std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& heading) {
    MachineWriter writer(sources);
    MachineFields(writer).visit(machine);
    std::string text;
    std::istringstream lines(heading);
    for (std::string line; std::getline(lines, line);) text += "# " + line + '\n';
    return text + '\n' + writer.lines();
}

}  // namespace ringlab::sim
