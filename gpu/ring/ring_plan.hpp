#pragma once

#include "gpu/execution/issuer.hpp"
#include "gpu/ring/plan_tables.hpp"
#include "gpu/ring/ring_exchange.hpp"
#include "layouts/program/program.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// A forward and a backward schedule of one problem (bf16 or fp16), mask and layout, as one rank of a ring runs them:
/// programs, work lists, and the addresses of everything in the ring's memory. ReadyRing makes it and runs its passes.
class RingPlan {
public:
    /// Parts of a ring that all of its plans use. Everything outlives them.
    struct Ring {
        Team& team;
        RingExchange& exchange;
        TableStore& tables;
        const int device;
        const FusedStart fused_start;
        const Clock::duration timeout;
        const cudaStream_t give_up_stream;
    };

    /// Makes programs, and nothing on the device. Throws the same Error on all ranks.
    RingPlan(const Ring& ring, std::unique_ptr<const layouts::Schedule> forward,
             std::unique_ptr<const layouts::Schedule> backward, bool deterministic);

    const layouts::Schedule& schedule(layouts::Pass pass) const { return *schedules_[index(pass)]; }
    const layouts::Program& program(layouts::Pass pass) const { return programs_[index(pass)]; }

    /// Text of all that the choice of a pass's kernels depends on, on this device; once the plan is placed.
    const std::string& kernels(layouts::Pass pass) const { return kernels_[index(pass)]; }

    /// The exchange memory that this plan needs, with as many flags as there are now, or as it needs.
    RingExchange::Needs needs() const;

    /// Numbers of streams and events that the ring must have for the plan.
    std::size_t lanes() const;
    std::size_t instructions() const;

    /// Makes work lists and addresses for the exchange memory that there is now. Their copy is enqueued; it does not
    /// wait for the device. Throws Error if that cannot be, on this rank alone.
    void place(const std::vector<cudaStream_t>& lanes);
    bool is_placed() const { return generation_ == ring_.exchange.generation(); }

    /// By pass: its kernels have to be rehearsed first, see ReadyRing.
    std::array<bool, 2> must_rehearse{};

    Rank& work() { return *work_; }
    Issuer& issuer() { return *issuer_; }
    /// Bytes of its caller's memory that a pass needs, see CallerTensors.
    std::size_t local_bytes(layouts::Pass pass) const { return work_->local_bytes(pass); }

private:
    static std::size_t index(layouts::Pass pass) { return static_cast<std::size_t>(pass); }
    MapOptions map_options() const;

    const Ring& ring_;
    const int rank_;
    const bool deterministic_;
    std::array<std::unique_ptr<const layouts::Schedule>, 2> schedules_;  // by pass
    std::vector<layouts::Program> programs_;                             // by pass
    std::array<std::string, 2> kernels_;                                 // by pass
    bool lends_rows_ = false;  // callers' tensors of rows are read and written in place, see Lent
    int generation_ = 0;       // of the exchange memory, for which everything below is
    std::unique_ptr<PlanTables> tables_;
    std::unique_ptr<Rank> work_;
    std::unique_ptr<Issuer> issuer_;
};

}  // namespace ringlab::gpu
