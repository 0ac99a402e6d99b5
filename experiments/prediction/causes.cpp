#include "experiments/prediction/causes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <ranges>

namespace ringlab::experiments {
namespace {

using layouts::Picoseconds;

/// One column.
struct Line {
    const char* name;
    Picoseconds time;
};

/// What the rank that ends last does, which adds up to the pass. All 0 if its timeline is not known.
std::vector<Line> parts_of(const sim::Breakdown& found) {
    const auto& [computing, transferring, waiting] = found.last;
    return {{"compute", computing},
            {"launches", computing > 0 ? found.launches() : 0},
            {"exposed transfer", transferring},
            {"waiting for peers", waiting}};
}

/// What the pass would be shorter by without each cause; with "shared" it adds up to the pass too.
std::vector<Line> lines_of(const sim::Breakdown& found) {
    std::vector<Line> lines;
    for (const auto cause : sim::causes) lines.push_back({to_string(cause), found.of(cause)});
    lines.push_back({"shared", found.shared()});
    return lines;
}

/// Parts of "compute".
std::vector<Line> within(const sim::Breakdown& found) { return {{"tail", found.tail}, {"imbalance", found.imbalance}}; }

/// The columns of tables. "shared" tells a person nothing.
std::vector<Line> columns_of(const sim::Breakdown& found) {
    auto lines = parts_of(found);
    std::ranges::copy(within(found), std::back_inserter(lines));
    std::ranges::copy(lines_of(found) | std::views::take(sim::causes.size()), std::back_inserter(lines));
    return lines;
}

double share(Picoseconds time, const sim::Breakdown& found) {
    return found.pass == 0 ? 0 : static_cast<double>(time) / static_cast<double>(found.pass);
}

std::string largest_first(std::vector<Line> lines, const sim::Breakdown& found) {
    std::ranges::stable_sort(lines, std::greater{}, &Line::time);
    constexpr double counts = 0.02;
    std::string text;
    for (const auto& [name, time] : lines)
        if (share(time, found) >= counts)
            text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * share(time, found));
    return text;
}

constexpr const char* path_of_lines = "predicted/time_by_cause";
constexpr const char* path_of_tail = "predicted/tail_time";
constexpr const char* path_of_imbalance = "predicted/imbalance_time";
constexpr const char* path_of_compute = "predicted/last_rank_compute_time";
constexpr const char* path_of_transfer = "predicted/last_rank_exposed_transfer_time";
constexpr const char* path_of_late_peers = "predicted/late_peers_time";

}  // namespace

const char* const cause_definitions =
    "Where the time goes, in % of the pass. The rank that ends last spends it on these four, which add up to 100 %:\n"
    "  compute            attends, merges, sums and copies\n"
    "  launches           nothing runs: its host has not issued the next operation, or the pass begins or ends\n"
    "  exposed transfer   it computes nothing, and a message moves\n"
    "  waiting for peers  it computes and moves nothing, and a message waits for its other side\n"
    "Within compute:\n"
    "  tail               attends beyond their tiles spread evenly over all SMs: launches, SMs that have run out of\n"
    "                     tiles\n"
    "  imbalance          compute time of the rank with most beyond the mean of the ranks\n"
    "By how many % the pass gets shorter if it is predicted again without one cause. Several together may save more:\n"
    "  attends            attention kernels\n"
    "  begin and end      what a pass does on the GPU before its first and behind its last kernel\n"
    "  issue              the host, which issues operations\n"
    "  links              messages\n"
    "  memory             merges, sums, copies; kernels and messages that wait because they share the memory's\n"
    "                     bandwidth\n";

void add_cause_cells(Table& table, const sim::Breakdown& found) {
    for (const auto& [name, time] : columns_of(found))
        table.cell(name, std::round(1000 * share(time, found)) / 10 + 0.0, "{:.1f}");  // no -0.0
}

std::vector<std::pair<std::string, double>> cause_seconds(const sim::Breakdown& found, bool with_inside) {
    auto lines = lines_of(found);
    if (with_inside)
        for (const auto& more : {parts_of(found), within(found)}) std::ranges::copy(more, std::back_inserter(lines));
    std::vector<std::pair<std::string, double>> all;
    for (const auto& [name, time] : lines) all.emplace_back(name, layouts::to_seconds(time));
    return all;
}

std::string causes_in_words(const sim::Breakdown& found) {
    const auto inside = largest_first(within(found), found);
    return largest_first(found.last.computing > 0 ? parts_of(found) : lines_of(found), found) +
           (inside.empty() ? "" : " (" + inside + ")");
}

void describe_causes(RunWriter& run, const std::vector<Dimension>& place, const sim::Breakdown& found) {
    for (const auto& line : lines_of(found)) {
        auto dimensions = place;
        dimensions.push_back(Dimension::at("cause", line.name));
        run.dataset(
            path_of_lines, std::vector<double>{layouts::to_seconds(line.time)}, dimensions, "s",
            "of the predicted time, to which they add up: what would be saved if the cause cost nothing, predicted "
            "again without it; shared: what none saves alone, negative where any of several does");
    }
    const auto inside = [&](const char* path, Picoseconds time, const char* description) {
        run.dataset(path, std::vector<double>{layouts::to_seconds(time)}, place, "s", description);
    };
    inside(path_of_tail, found.tail,
           "within time_by_cause: attends of the rank that ends last, beyond their tiles spread evenly over all SMs");
    inside(path_of_imbalance, found.imbalance,
           "within time_by_cause: largest of the ranks' compute_time beyond their mean");
    inside(path_of_compute, found.last.computing, "time in which the rank that ends last computes");
    inside(path_of_transfer, found.last.transferring,
           "time in which the rank that ends last computes nothing, and a message of it moves");
    inside(path_of_late_peers, found.last.waiting,
           "the rank that ends last has begun to compute, computes and moves nothing, and a "
           "message waits for its other side");
}

std::optional<sim::Breakdown> recorded_causes(const Record& record, const std::string& run,
                                              const Record::Labels& labels) {
    if (!record.has(run, path_of_compute)) return std::nullopt;
    const auto seconds = [&](const char* path, const Record::Labels& which) {
        return layouts::to_picoseconds(record.numbers(run, path, which).front());
    };
    sim::Breakdown found;
    found.pass = seconds("predicted/makespan", labels);
    for (std::size_t i = 0; i < sim::causes.size(); ++i) {
        auto which = labels;
        which["cause"] = to_string(sim::causes[i]);
        found.saved[i] = seconds(path_of_lines, which);
    }
    found.tail = seconds(path_of_tail, labels);
    found.imbalance = seconds(path_of_imbalance, labels);
    found.last = {seconds(path_of_compute, labels), seconds(path_of_transfer, labels),
                  seconds(path_of_late_peers, labels)};
    return found;
}

std::string causes_text(const Table& table) { return table.empty() ? "" : table.text() + "\n" + cause_definitions; }

}  // namespace ringlab::experiments
