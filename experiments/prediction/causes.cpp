#include "experiments/prediction/causes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

namespace ringlab::experiments {
namespace {

// Of shares_of(), in its order.
constexpr std::size_t parts_of_rank = 4, within_compute = 2, not_in_tables = 1;
constexpr const char* path_of_causes = "predicted/time_by_cause";

std::string largest_first(std::span<const std::pair<std::string, double>> some, double whole) {
    Shares shares(some.begin(), some.end());
    std::ranges::stable_sort(shares, std::greater{}, &Shares::value_type::second);
    constexpr double counts = 0.02;
    std::string text;
    for (const auto& [name, seconds] : shares)
        if (whole > 0 && seconds / whole >= counts)
            text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * seconds / whole);
    return text;
}

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

Shares shares_of(const layouts::TimeOfRank& time, layouts::Picoseconds pass) {
    const auto& [computing, transferring, waiting] = time;
    return {{"compute", layouts::to_seconds(computing)},
            {"launches", layouts::to_seconds(pass - computing - transferring - waiting)},
            {"exposed transfer", layouts::to_seconds(transferring)},
            {"waiting for peers", layouts::to_seconds(waiting)}};
}

Shares shares_of(const sim::Breakdown& found) {
    auto shares = shares_of(found.last, found.last.computing > 0 ? found.pass : 0);
    const auto add = [&](const char* name, layouts::Picoseconds time) {
        shares.emplace_back(name, layouts::to_seconds(time));
    };
    add("tail", found.tail);
    add("imbalance", found.imbalance);
    for (const auto cause : sim::causes) add(to_string(cause), found.of(cause));
    add("shared", found.shared());
    return shares;
}

void add_cells(Table& table, const Shares& shares, double whole, const char* format) {
    for (const auto& [name, seconds] : shares)
        table.cell(name, whole == 0 ? 0 : std::round(1000 * seconds / whole) / 10 + 0.0, format);  // no -0.0
}

void add_cause_cells(Table& table, const Shares& shares, double pass_seconds) {
    add_cells(table, {shares.begin(), shares.end() - not_in_tables}, pass_seconds, "{:.1f}");
}

std::string causes_in_words(const sim::Breakdown& found) {
    const auto shares = shares_of(found);
    const std::span all(shares);
    const auto whole = layouts::to_seconds(found.pass);
    const auto inside = largest_first(all.subspan(parts_of_rank, within_compute), whole);
    return largest_first(
               found.last.computing > 0 ? all.first(parts_of_rank) : all.subspan(parts_of_rank + within_compute),
               whole) +
           (inside.empty() ? "" : " (" + inside + ")");
}

void describe_causes(RunWriter& run, const std::vector<Dimension>& place, const sim::Breakdown& found) {
    for (const auto& [name, seconds] : shares_of(found)) {
        auto dimensions = place;
        dimensions.push_back(Dimension::at("cause", name));
        run.dataset(path_of_causes, std::vector<double>{seconds}, dimensions, "s",
                    "of the predicted time. compute, launches, exposed transfer and waiting for peers: what the rank "
                    "that ends last does, in all the pass; tail and imbalance: parts of its compute. The others add up "
                    "to the pass too: what would be saved if the cause cost nothing, predicted again without it; "
                    "shared: what none saves alone, negative where any of several does");
    }
}

Shares recorded_causes(const Record& record, const std::string& run, const Record::Labels& labels) {
    if (!record.has(run, path_of_causes)) return {};
    auto shares = shares_of({});
    for (auto& [name, seconds] : shares) {
        auto place = labels;
        place["cause"] = name;
        seconds = record.numbers(run, path_of_causes, place).front();
    }
    return shares;
}

std::string causes_text(const Table& table) { return table.empty() ? "" : table.text() + "\n" + cause_definitions; }

}  // namespace ringlab::experiments
