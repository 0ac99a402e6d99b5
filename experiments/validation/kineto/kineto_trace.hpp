#pragma once

#include "layouts/timeline/timeline.hpp"

#include <array>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What a trace of PyTorch's profiler (Kineto) says of one rank.
struct KinetoTrace {
    std::string file;
    int rank = 0;
    int world = 1;                         ///< ranks of the job
    std::vector<std::vector<int>> groups;  ///< ranks of each process group
    double begin_us = 0;                   ///< of the first event that counts, on the clock of the rank's host
    /// By begin; 0 is at begin_us. Attention is OpKind::attend and other compute OpKind::copy, both on the compute
    /// lane. Messages are OpKind::send and receive, on lanes 1 and 2.
    std::vector<layouts::Span> spans;
    /// Time of attention in the forward and in the backward pass, each the length of the union of its kernels.
    std::array<layouts::Picoseconds, 2> attention{};
};

/// Reads Chrome-trace JSON that torch.profiler wrote. If the trace has GPU activities these alone count: kernels and
/// copies. Otherwise operators do (cpu_op), and messages of gloo. Names say what is attention, forward and backward,
/// and what is a message: kernels of NCCL and NVSHMEM, copies between GPUs, gloo:... Everything else is other compute;
/// on the CPU this is aten:: and ringlab:: alone. An operator of attention within another one is the one that counts.
///
/// A file may be compressed by gzip, if the build has zlib. Throws Error, one line, if the file is not whole, does not
/// say its rank, or has no attention.
KinetoTrace read_kineto(const std::string& file);

/// Several ranks on one clock that begins with the first event of any of them.
struct MeasuredRanks {
    std::vector<int> ranks;                                      ///< numbers in the job, ascending
    layouts::Timeline timeline;                                  ///< ranks are counted from 0, in the order of `ranks`
    std::vector<std::array<layouts::Picoseconds, 2>> attention;  ///< by rank, as in KinetoTrace
    bool clocks_disagree = false;  ///< some ranks never ran at the same time, so each begins at 0
};

/// Throws Error, one line, if two files are of one rank, files are of different jobs, or ranks are missing: the ranks
/// must be all of the job, or all of one process group.
MeasuredRanks join_ranks(std::vector<KinetoTrace> traces);

/// Where the time of one rank goes, up to the end of the last rank.
struct RankShare {
    layouts::Picoseconds compute = 0;        ///< something computes
    layouts::Picoseconds communication = 0;  ///< some message is under way
    layouts::Picoseconds exposed = 0;        ///< a message is under way and nothing computes
    layouts::Picoseconds idle = 0;           ///< neither
};

/// The RankShare of each rank, of a measured or a predicted timeline.
std::vector<RankShare> rank_shares(const layouts::Timeline& timeline);

}  // namespace ringlab::experiments
