#pragma once

#include "experiments/record/provenance.hpp"
#include "experiments/record/run_writer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What others have published of their rings, or we have measured of them: a file of experiments/published.
struct PublishedTable {
    enum class Unit {
        teraflops,         ///< TFLOP/s per GPU over visible pairs
        share_of_one_gpu,  ///< a rank's tokens alone on one GPU, as often as there are ranks, over the time of the ring
    };
    struct System {
        std::string name, implementation, layout;
        std::vector<double> forward, both;  ///< by tokens_per_rank; both passes together
    };

    std::string name, source, machine, shape, mask;
    int ranks = 1;
    std::vector<std::int64_t> tokens_per_rank;
    std::vector<std::int64_t> fitted;  ///< sizes that an implementation was fitted to
    Unit unit = Unit::teraflops;
    std::vector<System> systems;
};

const char* to_string(PublishedTable::Unit unit);

/// Reads experiments/published/NAME.toml, or a file. Throws Error, one line, if it is no such table.
PublishedTable load_published(const std::string& name);

struct PublishedFigure {
    std::string system, implementation, layout;
    std::int64_t tokens_per_rank = 0;
    bool fitted = false;
    struct Pair {
        double published = 0, predicted = 0;
        double error() const { return predicted / published - 1; }
    };
    Pair forward, both;
};

/// The table again, by today's model: rings that merge 16-bit partials and send fp32 gradients, on the table's machine
/// with each system's implementation.
std::vector<PublishedFigure> predict_published(const PublishedTable& table);

/// Machine and implementation files of the table, in full.
void add_provenance(Provenance& provenance, const PublishedTable& table);

/// The columns of a run of the record.
void describe_published(RunWriter& run, const PublishedTable& table, const PublishedFigure& figure);

/// A line for each system and size, and the mean and largest error by size.
std::string published_text(const PublishedTable& table, const std::vector<PublishedFigure>& figures);

}  // namespace ringlab::experiments
