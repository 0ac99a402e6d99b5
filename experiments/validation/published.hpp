#pragma once

#include "experiments/record/run_writer.hpp"
#include "layouts/layouts/layout.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// How a system of others works.
struct PublishedSystem {
    std::string name, implementation;
    std::string schedule, policy, backward_policy;
    std::string full, causal, packed;  ///< layout by mask; also "document-zigzag[:RANKS]" and "groups"
    std::string packed_schedule = {}, packed_policy = {};
    /// The backward pass keeps Q, K and V from the forward pass's exchange of tokens for heads.
    bool keeps_exchanged = false;

    const std::string& layout(const std::string& mask) const {
        return mask == "full" ? full : mask == "causal" ? causal : packed;
    }
};

/// What was published, or measured by us, of a ring of others, and what is predicted for it, in the table's unit.
struct PublishedFigure {
    std::string system, mask;  ///< "full", "causal", "varlen_full" or "varlen_causal"
    std::string passes;        ///< "forward", "backward" or "both"
    int gpus = 0;
    std::int64_t tokens_per_gpu = 0;
    double published = 0;  ///< NaN: not known yet
    bool fitted = false;   ///< something was fitted to it, so it is not scored
    double model = 0;      ///< as the simulator predicts it; packed documents: the mean of the packings
    double scale = 1;      ///< published over `model` of the same system, mask and pass on the GPUs fitted to
    double copied = 0;     ///< the figure published for the GPUs fitted to; 0: no scale is fitted

    bool is_scored() const { return !fitted && !std::isnan(published); }
    bool is_packed() const { return mask.starts_with("varlen"); }
    double predicted() const { return model * scale; }
    double error(double guess) const { return guess / published - 1; }
};

/// A file of experiments/published: a table of rings (TOML), or the figures of systems (CSV) that
/// published/benchmarks/cp_h100.toml describes, with a scale fitted for each system, mask and pass.
struct PublishedTable {
    std::string name, source, machine, shape;
    /// TFLOP/s over visible pairs; or a GPU's tokens alone on one GPU, as often as there are GPUs, over the time of the
    /// ring.
    std::string unit = "TFLOP/s per GPU";
    std::vector<PublishedSystem> systems = {};
    std::vector<PublishedFigure> figures = {};
    int fitted_gpus = 0;                        ///< scales are fitted to figures on this many GPUs; 0: none are fitted
    std::vector<PublishedFigure> anchors = {};  ///< those figures
    std::map<int, std::vector<std::vector<std::int64_t>>> packings = {};  ///< by GPUs: lengths of documents
    std::vector<std::pair<std::string, std::string>> files = {};          ///< entries of the provenance, and paths

    const PublishedSystem& system(const std::string& name) const;  ///< there must be one
};

/// Reads a file by its name or path. Throws Error, one line with file and, for a CSV file, line, if something is
/// missing or wrong, or a figure comes twice.
PublishedTable load_published(const std::string& name);

/// Predicts every figure by today's model. Throws Error if a scale or the packings for a number of GPUs are missing.
void predict_published(PublishedTable& table);

/// How well a guess does over figures that were not fitted to. A pair is two systems of which all else is equal and
/// whose published figures differ by more than 5 %; it is right if the guess has the same one ahead.
struct PublishedScore {
    std::map<std::string, std::vector<double>> errors;  ///< by tokens per GPU or, with scales, by kind of mask
    int right = 0, pairs = 0;
};
PublishedScore score_published(const PublishedTable& table, double (*guess)(const PublishedFigure&));

/// The columns of a run of the record.
void describe_published(RunWriter& run, const PublishedTable& table, const PublishedFigure& figure);

/// A line for each figure, then the scores.
std::string published_text(const PublishedTable& table);

/// Layouts of packed documents that only these systems have; see system_layouts.cpp.
layouts::Layout document_zigzag(const std::vector<std::int64_t>& documents, int ranks, int group);
layouts::Layout document_groups(const std::vector<std::int64_t>& documents, int ranks, std::int64_t tokens_per_rank);

}  // namespace ringlab::experiments
