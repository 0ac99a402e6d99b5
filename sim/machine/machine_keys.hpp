#pragma once

#include "sim/machine/terms.hpp"

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ringlab::sim {

inline constexpr auto derived_source = "derived: ";  // sources of derived figures begin with it

/// A value of an enum, by name.
struct Choice {
    std::vector<const char*> names;
    std::size_t chosen;
    std::function<void(std::size_t)> choose;
};

/// One key of a machine file: where a Machine keeps its value, and what else there is to know of it. A derived text or
/// choice is the rule itself; a derived list of channels has one entry, a derived list of groups none.
struct Key {
    using Place = std::variant<std::string*, Choice, int*, std::int64_t*, double*, std::vector<double>*,
                               std::vector<layouts::SmGroup>*, std::vector<LinkCost::BySize>*>;
    std::string name;  ///< with its section
    Place place;
    const char* term = "";  ///< the row of sim/README.md that uses it
    Range range{};
    double unit = 1;  ///< the file has value / unit
    Derived derived{};
};

/// What reads, writes or lists all keys of a machine file.
class KeyVisitor {
public:
    virtual ~KeyVisitor() = default;
    virtual void visit(const Key& key) = 0;

    /// Whether an optional section is in the file, or is to be written.
    virtual bool has_section(const std::string& name, bool wanted) = 0;
    /// The same for an optional key.
    virtual bool has_key(const std::string&) const { return true; }

    /// Whether the file leaves out keys that every complete file has, so that they are derived.
    virtual bool is_short() const { return false; }

    // What a file that is read has.
    virtual std::optional<double> number(const std::string&) const { return {}; }
    virtual std::optional<std::string> text(const std::string&) const { return {}; }
    virtual std::vector<std::string> names_of_kernels() { return {}; }
};

/// Visits every key of a machine file in the order of a written file: the prices of the terms, which have their rows
/// there, and what a machine is made of. What depends on other keys depends on those before it.
void visit_keys(Machine& machine, KeyVisitor& file);

}  // namespace ringlab::sim
