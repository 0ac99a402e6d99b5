#pragma once

#include "reference/cpu/cpu_backend.hpp"
#include "reference/cpu/executor.hpp"

namespace ringlab::reference {

/// What a rank hands back: its rows of o, lse and dq, its tokens of dk and dv, as scatter() orders them; with a
/// latent its own part of the matrices' gradient as dv.
struct RankResult {
    std::vector<double> o, o_unrounded, lse, dq, dk, dv;
    std::vector<double> dsinks;  ///< by query head, of its own rows
    std::vector<layouts::Span> forward, backward;
    std::int64_t own_bytes = 0;
    std::int64_t scratch_bytes = 0;
    std::int64_t workspace_bytes = 0;
    double clock_uncertainty = 0;
    std::array<double, 2> rotation_seconds{};  ///< by pass: processor time of what rotates q and k, and dq and dk
};

/// A rank's own tensors, each asked for when the rank takes it in: rows of q and dout and tokens of k and v, as scatter()
/// orders them.
class RankInputs {
public:
    virtual ~RankInputs() = default;
    virtual std::vector<double> q() const = 0;
    virtual std::vector<double> k() const = 0;
    virtual std::vector<double> v() const = 0;  ///< not asked for with a latent
    virtual std::vector<double> dout() const = 0;

    /// With a latent, what stands in V's place (layouts::Problem).
    virtual const Tensor& matrices() const = 0;
};

/// One rank's tensors and slots, over a forward and perhaps a backward pass.
class CpuRank : public RankWork {
public:
    /// Prepares a pass; both must outlive the matching end(). The backward pass needs the forward pass before it, or
    /// what resume() is given.
    virtual void begin(const layouts::Schedule& pass, const layouts::Program& program) = 0;
    virtual void end() = 0;

    /// In place of a forward pass: the RankResult::o_unrounded and RankResult::lse that one has left.
    virtual void resume(const std::vector<double>& o_unrounded, const std::vector<double>& lse) = 0;

    /// What other ranks may fetch from: K/V slot 0, as a message of all heads; nothing if no rank fetches.
    virtual std::span<const std::byte> exposed() = 0;

    /// Adds the tensors and figures of memory and time.
    virtual void collect(RankResult& result) = 0;
};

/// The arithmetic follows from the problem's dtype: fp64 in double, all others in float. `schedule` is the forward
/// pass; it, `inputs` and `options` must outlive the rank.
std::unique_ptr<CpuRank> make_cpu_rank(const layouts::Schedule& schedule, int rank, const Inputs& inputs,
                                       const CpuOptions& options);

/// The same of a rank that has its own tensors alone. `problem` is the schedule's, but for the sink logits and the seed
/// of dropout, which may be those of this run.
std::unique_ptr<CpuRank> make_cpu_rank(const layouts::Schedule& schedule, int rank,
                                       std::unique_ptr<const RankInputs> inputs, const layouts::Problem& problem,
                                       const CpuOptions& options);

}  // namespace ringlab::reference
