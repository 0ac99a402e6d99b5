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

std::string list(const std::vector<std::string>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

/// Writes line by line. toml++ would sort tables and write numbers with 17 digits.
class Writer : public KeyVisitor {
public:
    explicit Writer(const std::map<std::string, std::string>& sources) : sources_(sources) {}

    void visit(const Key& key) override {
        std::visit([&](const auto& place) { write(key, place); }, key.place);
    }
    bool has_section(const std::string&, bool wanted) override { return wanted; }

    const std::string& lines() const { return lines_; }

private:
    void write(const Key& key, const std::string* text) { put(key.name, quoted(*text)); }
    void write(const Key& key, const Choice& choice) { put(key.name, quoted(choice.names[choice.chosen])); }

    template <class Number>
    void write(const Key& key, const Number* value) {
        figure(key, key.range.whole ? fmt::format("{}", static_cast<std::int64_t>(*value))
                                    : digits(static_cast<double>(*value) / key.unit));
    }

    void write(const Key& key, const std::vector<double>* all) {
        std::vector<std::string> values;
        for (const auto value : *all) values.push_back(digits(value));
        figure(key, list(values));
    }

    void write(const Key& key, const std::vector<layouts::SmGroup>* groups) {
        std::vector<std::string> sms, at_a_time;
        for (const auto& group : *groups) {
            sms.push_back(std::to_string(group.sms));
            at_a_time.push_back(std::to_string(group.at_a_time));
        }
        figure(key, fmt::format("{}, at_a_time = {}", list(sms), list(at_a_time)));
    }

    void write(const Key& key, const std::vector<LinkCost::BySize>* channels) {
        constexpr double mebibyte = 1024.0 * 1024.0;
        std::vector<std::string> sizes, counts;
        for (const auto& some : *channels) {
            sizes.push_back(&some == &channels->back() ? "inf" : digits(some.up_to_bytes / mebibyte));
            counts.push_back(digits(some.value));
        }
        if (channels->empty()) {
            sizes.emplace_back("inf");
            counts.emplace_back("1");
        }
        figure(key, fmt::format("{}, up_to_mebibytes = {}", list(counts), list(sizes)));
    }

    /// The source given for a key, or for the nearest section around it.
    const std::string& source(const std::string& name) const {
        auto found = sources_.find(name);
        for (auto at = name.rfind('.'); found == sources_.end() && at != std::string::npos;
             at = at == 0 ? std::string::npos : name.rfind('.', at - 1))
            found = sources_.find(name.substr(0, at));
        require(found != sources_.end(), "no source is given for '{}' of the machine file", name);
        return found->second;
    }

    void figure(const Key& key, const std::string& value) {
        put(key.name, fmt::format("{{ value = {}, source = {} }}", value, quoted(source(key.name))));
    }

    void put(const std::string& name, const std::string& value) {
        const auto dot = name.rfind('.');
        const auto section = dot == std::string::npos ? "" : name.substr(0, dot);
        if (section != section_) lines_ += fmt::format("\n[{}]\n", section);
        section_ = section;
        lines_ += fmt::format("{} = {}\n", name.substr(dot == std::string::npos ? 0 : dot + 1), value);
    }

    const std::map<std::string, std::string>& sources_;
    std::string section_, lines_;
};

}  // namespace

std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& heading) {
    Writer writer(sources);
    auto written = machine;
    visit_keys(written, writer);
    std::string text;
    std::istringstream lines(heading);
    for (std::string line; std::getline(lines, line);) text += "# " + line + '\n';
    return text + '\n' + writer.lines();
}

}  // namespace ringlab::sim
