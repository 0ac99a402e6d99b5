#pragma once

#include "layouts/program/program.hpp"
#include "reference/ranks/cpu_backend.hpp"

namespace ringlab::reference {

/// Memory and times of one rank, see CpuRun.
struct RankFacts {
    std::int64_t own_bytes = 0, scratch_bytes = 0, workspace_bytes = 0;
    double clock_uncertainty = 0;
    std::array<double, 2> rotation_seconds{};  ///< by pass: CPU time of rotating q and k, and dq and dk
};

/// Results of one rank, in the order of scatter(): its rows of o, lse and dq, its tokens of dk and dv. With a latent,
/// dk is the latent's gradient and dv the rank's part of the matrices' gradient.
struct RankResult : RankFacts {
    std::vector<double> o = {}, o_unrounded = {}, lse = {}, dq = {}, dk = {}, dv = {};
    std::vector<double> dsinks = {};  ///< by query head, from its own rows
    std::vector<layouts::Span> forward = {}, backward = {};
};

/// Where a rank's own tensors come from. Each is asked for when the rank copies it: rows of q and dout and tokens of k
/// and v, in the order of scatter().
class RankInputs {
public:
    virtual ~RankInputs() = default;
    virtual std::vector<double> q() const = 0;
    virtual std::vector<double> k() const = 0;
    virtual std::vector<double> v() const = 0;  ///< not asked for with a latent
    virtual std::vector<double> dout() const = 0;

    /// With a latent, its matrices, which stand in V's place (layouts::Problem).
    virtual const Tensor& matrices() const = 0;
};

/// One rank's tensors, slots and arithmetic, for a forward pass and optionally a backward pass.
class CpuRank {
public:
    virtual ~CpuRank() = default;

    /// Prepares a pass. Schedule and program must outlive the matching end(). A backward pass must follow its forward
    /// pass or resume().
    virtual void begin(const layouts::Schedule& pass, const layouts::Program& program) = 0;
    virtual void end() = 0;

    /// Takes the place of a forward pass: sets RankResult::o_unrounded and RankResult::lse as one has left them.
    virtual void resume(const std::vector<double>& o_unrounded, const std::vector<double>& lse) = 0;

    /// The bytes that other ranks may fetch: K/V slot 0, packed like a message of all heads; empty if no rank fetches.
    virtual std::span<const std::byte> exposed() = 0;

    /// Executes an operation of the compute lane. This, and what follows up to exposed_offset(), is called by
    /// execute().
    virtual void compute(const layouts::Instruction& instruction) = 0;

    /// The bytes that a send reads, and those that a receive or fetch writes; valid until transfer_ended().
    virtual std::span<const std::byte> outgoing(const layouts::Instruction& instruction) = 0;
    virtual std::span<std::byte> incoming(const layouts::Instruction& instruction) = 0;

    /// Called once when a transfer has ended.
    virtual void transfer_ended(const layouts::Instruction& instruction) = 0;

    /// Offset in bytes, within the memory that the owner exposes, of what a fetch reads.
    virtual std::size_t exposed_offset(const layouts::Instruction& instruction) const = 0;

    /// Fills in tensors, memory and times.
    virtual void collect(RankResult& result) = 0;
};

/// Makes a rank whose arithmetic is double for an fp64 problem and float for all others. `schedule` is the forward
/// pass; it, `inputs` and `options` must outlive the rank.
std::unique_ptr<CpuRank> make_cpu_rank(const layouts::Schedule& schedule, int rank, const Inputs& inputs,
                                       const CpuOptions& options);

/// The same for a rank that has only its own tensors. `problem` is the schedule's, except for the sink logits and the
/// seed of dropout, which may be those of this run.
std::unique_ptr<CpuRank> make_cpu_rank(const layouts::Schedule& schedule, int rank,
                                       std::unique_ptr<const RankInputs> inputs, const layouts::Problem& problem,
                                       const CpuOptions& options);

}  // namespace ringlab::reference
