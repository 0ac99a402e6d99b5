#include "experiments/prediction/scored_rings.hpp"

#include "experiments/files/files_read.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

const std::string digest_ending = "_sha256", machine_beginning = "machine_";

/// SHA-256 by name of the machine file, from what the record keeps of the files that were read.
std::map<std::string, std::string> machine_digests(const hdf5::Group& provenance,
                                                   const std::vector<std::string>& names) {
    std::map<std::string, std::string> digests;
    for (const auto& name : names)
        if (!digests.contains(name)) digests[name] = provenance.text(machine_beginning + name + digest_ending);
    return digests;
}

}  // namespace

double ScoredRing::deviation() const {
    double measured = 0, predicted = 0;
    for (const auto& pass : passes) {
        measured += pass.measured;
        predicted += pass.predicted;
    }
    return std::abs(measured / predicted - 1);
}

Scores load_scores(const std::string& path) {
    note_read(path);
    const auto file = hdf5::File::open(path);
    require(file.contains("runs/measured_record"),
            "{}: not a record of scores, which `validate --measured all` writes: it has no column measured_record",
            path);
    const auto texts = [&](const char* column) { return file.dataset(fmt::format("runs/{}", column)).texts(); };
    const auto numbers = [&](const std::string& column) { return file.dataset("runs/" + column).doubles(); };
    const auto names = texts("name"), records = texts("measured_record"), machines = texts("machine"),
               transports = texts("transport"), shapes = texts("shape"), layouts = texts("layout"),
               schedules = texts("algorithm");
    const auto tokens = numbers("tokens"), ranks = numbers("ranks"), densities = numbers("density");
    std::vector<ScoredRing> all;
    for (std::size_t i = 0; i < names.size(); ++i)
        all.push_back({.run = names[i],
                       .record = records[i],
                       .machine = machines[i],
                       .transport = transports[i],
                       .shape = shapes[i],
                       .layout = layouts[i],
                       .schedule = schedules[i],
                       .tokens_per_rank = std::llround(tokens[i]) / std::llround(ranks[i]),
                       .density = densities[i]});
    for (std::size_t pass = 0; pass < 2; ++pass) {
        const auto column = [&](const char* what) {
            return numbers(fmt::format("{}_{}", what, pass == 0 ? "forward" : "backward"));
        };
        const auto measured = column("seconds_measured"), predicted = column("seconds_predicted"),
                   overlapped = column("error_overlapped"), serial = column("error_serial"),
                   recorded = column("error_recorded");
        for (std::size_t i = 0; i < names.size(); ++i)
            all[i].passes[pass] = {measured[i], predicted[i], overlapped[i], serial[i], recorded[i]};
    }
    Scores scores;
    const auto warm = numbers("warm");
    for (std::size_t i = 0; i < all.size(); ++i)
        (warm[i] == 0 ? scores.rings : scores.warm).push_back(std::move(all[i]));
    scores.machine_digests = machine_digests(file.group("provenance/0"), machines);
    return scores;
}

double density(const layouts::Mask& mask) {
    const layouts::Run all{0, 1, mask.tokens()};
    const auto pairs = static_cast<double>(layouts::visible_pairs(mask, {&all, 1}, layouts::KeyCounter({&all, 1})));
    const auto tokens = static_cast<double>(mask.tokens());
    return pairs / (tokens * (tokens + 1) / 2);
}

const LengthBin& length_bin(std::int64_t tokens_per_rank) {
    return *std::ranges::find_if(length_bins, [&](const LengthBin& bin) { return tokens_per_rank >= bin.least; });
}

}  // namespace ringlab::experiments
