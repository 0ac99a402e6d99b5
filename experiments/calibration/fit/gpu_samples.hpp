#pragma once

#include "experiments/files/written_file.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A sample: one thing that `calibrate` has timed on GPUs.
struct GpuSample {
    /// - "attend": one call of a kernel or what surrounds it, in short runs with rests
    /// - "sustained": the same without rests
    /// - "pass", "period": of passes by the executor: the whole, from one to the next
    /// - "operation": one operation of a pass by the executor, of which every operation was timed
    /// - "few_rows": a split-KV attend, of few query rows, of one rank
    /// - "kernel": as "attend", of another kernel, which head_dim, value_dim and soft_cap tell; "kernel_without_rests"
    /// - "dropout": an attend of one rank with dropout
    /// - "product": FLOP/s of matrix products, in place of seconds
    /// - "hidden", "hidden_beside", with columns blocks and flop_a_byte: in earlier records; not read
    /// - "rotation": of q and k ("forward"), or of dq and dk, of one rank
    /// - "message": between all GPUs at once beside attends; "alone" and "beside": those attends
    std::string kind = "";
    std::string call = "";                               ///< of a kernel; or "forward", "backward": the pass
    std::string mask = "", layout = "", algorithm = "";  ///< of the ring that it is taken from
    std::string transport = "";
    int ranks = 1, rank = 0, block = 0;  ///< of what is sustained: `rank` is the GPU
    std::int64_t tokens_per_rank = 0;
    std::int64_t queries = 0;                  ///< tokens that have a query row; 0: all
    std::int64_t op = -1;                      ///< of an operation: its index in the rank's schedule
    std::int64_t bytes = 0;                    ///< of a message
    double seconds = 0, spread = 0;            ///< median, and distance of the quartiles over it
    double posted = 0, begin = 0;              ///< of an operation: since the start of the pass
    double clock_hertz = 0;                    ///< of what is sustained; 0: not known
    std::int64_t head_dim = 0, value_dim = 0;  ///< 0: those of all
    double soft_cap = 0;                       ///< 0: none
};

/// Everything that is needed to fit a machine file: with this, nothing is measured on a ring, and no GPU is needed.
struct GpuSamples {
    sim::Machine machine;  ///< with no times
    std::string device;
    std::string kernels;  ///< family
    std::string heads, arithmetic;
    std::int64_t head_dim = 0, value_dim = 0;
    int gpus = 1;
    std::vector<GpuSample> samples;

    /// The samples of a kind, and of a call if one is given.
    std::vector<const GpuSample*> of(const std::string& kind, const std::string& call = "") const;
};

struct SamplesFile {
    std::filesystem::path path;
    std::optional<FileState> state;  ///< of what may be replaced; none: whatever lies there
};

/// Writes the samples as a record of `calibrate` with one run, in place of the file or, if somebody has put another
/// file there since, beside it. Returns the path and the state of what was written.
SamplesFile write_samples(const SamplesFile& file, const GpuSamples& samples, const std::string& configuration,
                          const Provenance& provenance);

/// Throws Error if the file is no such record.
GpuSamples read_samples(const std::filesystem::path& file);

}  // namespace ringlab::experiments
