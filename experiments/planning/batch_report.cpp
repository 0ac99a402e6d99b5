#include "experiments/planning/batch_report.hpp"

#include "experiments/console/table.hpp"
#include "experiments/outputs/file_guard.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace ringlab::experiments {
namespace {

std::string ms_text(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

/// "32 + 4 x 8".
std::string sizes_text(const std::vector<int>& rings) {
    std::string text;
    for (std::size_t i = 0, end = 0; i < rings.size(); i = end) {
        while (end < rings.size() && rings[end] == rings[i]) ++end;
        text += i == 0 ? "" : " + ";
        text += end - i == 1 ? fmt::format("{}", rings[i]) : fmt::format("{} x {}", end - i, rings[i]);
    }
    return text;
}

/// Calls visit(ring, first rank, last rank) for each ring that has documents.
void for_each_ring(const layouts::Assignment& assignment, auto&& visit) {
    int first = 0;
    for (std::size_t ring = 0; ring < assignment.rings.size(); ++ring) {
        const auto last = first + assignment.rings[ring] - 1;
        if (!assignment.documents[ring].empty()) visit(ring, first, last);
        first = last + 1;
    }
}

Table sharing_table(const BatchAdvice& advice) {
    Table table({"", "documents", "rings", "step ms", "simulated", "of as given", "balance", "tokens/rank", "memory"});
    for (std::size_t i = 0; i < advice.sharings.size(); ++i) {
        const auto& one = advice.sharings[i];
        table.add({!one.fits          ? "does not fit"
                   : i == advice.best ? "advised"
                                      : "",
                   one.name, sizes_text(one.rings.assignment.rings), ms_text(one.rings.slowest()),
                   one.simulated.empty() ? "-" : ms_text(one.seconds()),
                   fmt::format("{:.3f}", one.seconds() / advice.sharings.front().seconds()),
                   fmt::format("{:.3f}", one.balance()), fmt::format("{}", one.most_tokens), memory_text(one.memory)});
    }
    return table;
}

constexpr const char* column_definitions =
    "Attention of one layer, a forward and a backward pass, in ms. Documents 'as given': each packing on a ring of "
    "its\n"
    "own. Exchanged: among these rings. Sizes differ: on rings of any allowed size.\n"
    "step ms: of the slowest ring, by the closed form that plans minimise. simulated: the same by the simulator, each\n"
    "ring by itself; -: beyond --budget. of as given: time of the step over that of the packings as given.\n"
    "balance: slowest ring over the mean of all ranks. tokens/rank: of the fullest rank, with padding.\n";

/// Mean step over all batches, for each name that every batch has.
std::string means_text(const std::vector<BatchAdvice>& batches) {
    struct Sums {
        std::size_t batches = 0;
        double priced = 0, seconds = 0;
    };
    std::map<std::string, Sums> sums;
    const auto add = [&](const std::string& name, const BatchSharing& one) {
        auto& sum = sums[name];
        ++sum.batches;
        sum.priced += one.rings.slowest();
        sum.seconds += one.seconds();
    };
    for (const auto& advice : batches) {
        for (const auto& one : advice.sharings) add(one.name, one);
        add("advised", advice.sharings[advice.best]);
    }
    Table table({"mean of all batches", "step ms", "simulated", "of as given", "batches"});
    const auto count = static_cast<double>(batches.size());
    for (const auto* name : {"as given", "exchanged", "one ring", "sizes differ", "advised"}) {
        const auto& sum = sums[name];
        if (sum.batches < batches.size()) {
            table.add({name, "-", "-", "-", fmt::format("{}", sum.batches)});
            continue;
        }
        table.add({name, ms_text(sum.priced / count), ms_text(sum.seconds / count),
                   fmt::format("{:.3f}", sum.seconds / sums["as given"].seconds), fmt::format("{}", sum.batches)});
    }
    return table.text();
}

}  // namespace

std::string rings_text(const BatchAdvice& advice) {
    const auto& rings = advice.sharings[advice.best].rings;
    Table table({"ranks", "ms", "documents", "tokens", "longest"});
    for_each_ring(rings.assignment, [&](std::size_t ring, int first, int last) {
        std::int64_t tokens = 0, longest = 0;
        for (const auto document : rings.assignment.documents[ring]) {
            tokens += advice.lengths[document];
            longest = std::max(longest, advice.lengths[document]);
        }
        table.add({fmt::format("{}-{}", first, last), ms_text(rings.seconds[ring]),
                   fmt::format("{}", rings.assignment.documents[ring].size()), fmt::format("{}", tokens),
                   fmt::format("{}", longest)});
    });
    return table.text();
}

std::string batch_text(const std::vector<BatchAdvice>& batches, const BatchQuestion& question) {
    std::string text;
    for (std::size_t i = 0; i < batches.size(); ++i) {
        if (batches.size() > 1) text += fmt::format("Batch {}\n", i + 1);
        text += sharing_table(batches[i]).text() + "\n";
    }
    if (batches.size() > 1)
        text += means_text(batches) + "\n";
    else if (batches.front().fits())
        text += fmt::format("The advised rings, with times by the closed form, and tokens:\n{}\n",
                            rings_text(batches.front()));
    else
        text += fmt::format("Nothing fits into the {} of a device.\n\n", memory_text(question.machine.capacity.device));
    return text + column_definitions +
           trust_line(question.machine.name, question.machine.machine, question.machine.uncertainty);
}

std::string assignment_text(const BatchAdvice& advice) {
    std::string text{assignment_begin};
    text += ": ranks of a ring, then the numbers of its documents, counted from 0 over the batch file\n";
    const auto& assignment = advice.sharings[advice.best].rings.assignment;
    for_each_ring(assignment, [&](std::size_t ring, int first, int last) {
        text += fmt::format("{}-{} {}\n", first, last, fmt::join(assignment.documents[ring], " "));
    });
    return text;
}

void describe_sharing(RunWriter& run, const BatchAdvice& advice, std::size_t sharing, std::size_t batch,
                      const BatchQuestion& question) {
    const auto& one = advice.sharings[sharing];
    const auto& assignment = one.rings.assignment;
    run.attribute("batch", static_cast<std::int64_t>(batch), "1", "number of the batch, from 0");
    run.attribute("sharing", one.name, "1", "how documents are shared among rings");
    run.attribute("advised", static_cast<std::int64_t>(one.fits && sharing == advice.best), "1",
                  "1: the shortest step that fits");
    run.attribute("fits", static_cast<std::int64_t>(one.fits), "1", "1: the memory of a device is enough");
    run.attribute("machine", question.machine.name, "1", "machine file");
    run.attribute("mask", question.config.sweep.masks.front(), "1", "joined with the documents of each ring");
    run.attribute("rings", sizes_text(assignment.rings), "1", "number of ranks of each ring");
    run.attribute("seconds_priced", one.rings.slowest(), "s", "both passes of the slowest ring, by the closed form");
    run.attribute("seconds_predicted", one.simulated.empty() ? NAN : one.seconds(), "s",
                  "both passes of the slowest ring, simulated; NaN: not simulated");
    run.attribute("balance_priced", one.balance(), "1", "slowest ring over the mean of all ranks, by the closed form");
    run.attribute("tokens_per_rank", one.most_tokens, "1", "of the fullest rank, with padding");
    run.attribute("memory", one.memory, "B", "of the fullest rank");
    const auto rings = static_cast<std::int64_t>(assignment.rings.size());
    std::vector<std::int64_t> ranks(assignment.rings.begin(), assignment.rings.end());
    run.dataset("rings/ranks", std::move(ranks), {{"ring", rings}}, "1", "number of ranks of a ring");
    run.dataset("rings/seconds_priced", one.rings.seconds, {{"ring", rings}}, "s", "both passes, by the closed form");
    run.dataset("rings/seconds_predicted",
                one.simulated.empty() ? std::vector<double>(assignment.rings.size(), NAN) : one.simulated,
                {{"ring", rings}}, "s", "both passes, simulated; NaN: not simulated");
    std::vector<std::int64_t> ring_of(advice.lengths.size());
    for (std::size_t ring = 0; ring < assignment.rings.size(); ++ring)
        for (const auto document : assignment.documents[ring]) ring_of[document] = static_cast<std::int64_t>(ring);
    const auto documents = static_cast<std::int64_t>(advice.lengths.size());
    run.dataset("documents/tokens", advice.lengths, {{"document", documents}}, "1", "length of a document");
    run.dataset("documents/ring", std::move(ring_of), {{"document", documents}}, "1", "ring that the document is on");
}

}  // namespace ringlab::experiments
