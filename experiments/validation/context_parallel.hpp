#pragma once

#include "experiments/record/provenance.hpp"
#include "experiments/record/run_writer.hpp"
#include "layouts/layouts/layout.hpp"
#include "layouts/problem/problem.hpp"

#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

// Figures of context-parallel systems that others have published as a CSV file, predicted and scored.

/// How the systems of such a file were measured, and how each of them works: a file of published/benchmarks.
struct ContextParallelBenchmark {
    struct System {
        std::string name, implementation;
        std::string schedule, policy, packed_schedule, packed_policy;
        std::string full, causal, packed;  ///< layout by mask; also "document-zigzag[:RANKS]" and "groups"
        /// The backward pass keeps Q, K and V from the forward pass's exchange of tokens for heads.
        bool keeps_exchanged = false;
    };

    std::string name, source, machine, shape;
    std::int64_t tokens_per_gpu = 0;
    int fitted_gpus = 0;        ///< figures on this many GPUs are fitted to, and not scored
    std::string fitted_rows;    ///< path of the CSV file that has them
    std::string packings_file;  ///< path
    std::map<int, std::vector<std::vector<std::int64_t>>> packings;  ///< by GPUs: lengths of documents
    std::vector<System> systems;

    const System* find(const std::string& system) const;
};

/// Reads experiments/published/benchmarks/NAME.toml and its packings, or a file. Throws Error, one line, if something
/// is missing or wrong.
ContextParallelBenchmark load_benchmark(const std::string& name);

/// One line of a CSV file.
struct ContextParallelRow {
    std::string mask;  ///< "full", "causal", "varlen_full" or "varlen_causal"
    layouts::Pass pass = layouts::Pass::forward;
    std::string system;
    int gpus = 0;
    double teraflops = 0;  ///< per GPU, over visible pairs

    bool packed() const { return mask.starts_with("varlen"); }
};

/// Reads a CSV file with the columns mask,pass,system,gpus,tflops_per_gpu; lines that begin with '#' are comments.
/// Throws Error with file and line if a column, a system or a number is wrong, or a row comes twice.
std::vector<ContextParallelRow> load_rows(const std::string& file, const ContextParallelBenchmark& benchmark);

/// A published figure and what is said of it.
struct ContextParallelFigure {
    ContextParallelRow row;
    bool fitted = false;
    double model = 0;   ///< TFLOP/s per GPU as the simulator predicts it
    double scale = 1;   ///< published over `model` of the same system, mask and pass on the GPUs fitted to
    double copied = 0;  ///< the figure published for the GPUs fitted to
    double predicted() const { return model * scale; }
    double error() const { return predicted() / row.teraflops - 1; }
    double error_unscaled() const { return model / row.teraflops - 1; }
    double error_copied() const { return copied / row.teraflops - 1; }
};

/// Predicts every row, and the rows with the fitted number of GPUs that they are scaled by. Throws Error if one of the
/// latter is missing, or the benchmark has no packings for a number of GPUs.
std::vector<ContextParallelFigure> predict_rows(const std::vector<ContextParallelRow>& rows,
                                                const std::vector<ContextParallelRow>& fitted,
                                                const ContextParallelBenchmark& benchmark);

/// What figures that were not fitted to amount to. Errors are means of relative errors without their signs. A pair is
/// two systems with the same mask, pass and number of GPUs whose published figures differ by more than 5 %; it is right
/// if the guess has the same one ahead.
struct ContextParallelScore {
    struct Guess {
        double plain = 0, packed = 0;  ///< mean error; NaN without figures
        int right = 0;                 ///< pairs
    };
    int plain_figures = 0, packed_figures = 0, pairs = 0;
    Guess scaled, unscaled, copied;
};
ContextParallelScore score_rows(const std::vector<ContextParallelFigure>& figures);

void add_provenance(Provenance& provenance, const ContextParallelBenchmark& benchmark);

/// The columns of a run of the record.
void describe_row(RunWriter& run, const ContextParallelBenchmark& benchmark, const ContextParallelFigure& figure);

/// A line for each figure, then the score.
std::string rows_text(const std::string& name, const ContextParallelBenchmark& benchmark,
                      const std::vector<ContextParallelFigure>& figures);

/// Layouts of packed documents that only these systems have; see system_layouts.cpp.
layouts::Layout document_zigzag(const std::vector<std::int64_t>& documents, int ranks, int group);
layouts::Layout document_groups(const std::vector<std::int64_t>& documents, int ranks, std::int64_t tokens_per_rank);

}  // namespace ringlab::experiments
