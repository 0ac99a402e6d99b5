#include "experiments/planning/uncertainty.hpp"

#include "experiments/console/resources.hpp"
#include "experiments/record/files_read.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringlab::experiments {
namespace {

/// What a machine file calls its machine; the rest of a record's file may be of keys that are no longer there.
std::string name_in_text(const std::string& text) {
    const std::string before = "\nname = ";
    const auto at = ("\n" + text).find(before);
    if (at == std::string::npos) return "";
    const auto quote = at + before.size() - 1;  // ' or "
    return text.substr(quote + 1, text.find(text[quote], quote + 1) - quote - 1);
}

/// Name in the record of the machine that is called `name` in its own file; empty if there is none.
std::string name_in_record(const hdf5::File& file, const std::string& name) {
    const auto provenance = file.group("provenance/0");
    const std::string before = "seconds_predicted_forward_";
    for (const auto& column : file.group("runs").members()) {
        if (!column.starts_with(before)) continue;
        const auto machine = column.substr(before.size());
        const auto text = provenance.text(fmt::format("machine_{}_text", machine));
        if (name_in_text(text) == name) return machine;
    }
    return "";
}

Uncertainty score_in(const std::string& record, const sim::Machine& machine) {
    const auto path = find_resource(record, "results", ".h5");
    note_read(path);
    const auto file = hdf5::File::open(path);
    const auto name = name_in_record(file, machine.name);
    if (name.empty()) return {};
    Uncertainty found;
    double sum = 0;
    std::size_t count = 0;
    for (const auto* pass : {"forward", "backward"})
        for (const auto error : file.dataset(fmt::format("runs/error_{}_{}", pass, name)).doubles()) {
            if (!std::isfinite(error)) continue;
            sum += std::abs(error);
            found.largest = std::max(found.largest, std::abs(error));
            ++count;
        }
    if (count == 0) return {};
    found.known = true;
    found.mean = sum / static_cast<double>(count);
    found.source = fmt::format("{} passes of rings measured in {}.h5", count, record);
    return found;
}

}  // namespace

Uncertainty uncertainty_of(const sim::Machine& machine) {
    // What its file says first: a record keeps the errors of the model of its day.
    if (machine.mean_error > 0) {
        const auto figure = std::find_if(machine.figures.begin(), machine.figures.end(),
                                         [](const auto& one) { return one.name == "score.mean_error"; });
        return {true, machine.mean_error, machine.largest_error,
                "its machine file: " + (figure == machine.figures.end() ? std::string("no source") : figure->source)};
    }
    for (const auto& record : resources("results", ".h5")) {
        if (!record.starts_with("validate")) continue;
        try {
            if (auto found = score_in(record, machine); found.known) return found;
        } catch (const Error&) {
            continue;  // a record of another make
        }
    }
    return {false, 0, 0, "not scored on any ring"};
}

}  // namespace ringlab::experiments
