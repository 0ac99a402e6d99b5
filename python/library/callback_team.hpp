#pragma once

#include "gpu/team/team.hpp"
#include "python/library/ringlab_cuda.h"

#include <atomic>

namespace ringlab::python {

/// A team with one member in each process. The caller of the C functions carries what members send to each other, with
/// its own time-out. Clocks are not aligned.
class CallbackTeam : public gpu::Team {
public:
    CallbackTeam(const ringlab_cuda_exchange& exchange, int rank, int ranks)
        : exchange_(exchange), rank_(rank), ranks_(ranks) {}

    int size() const override { return ranks_; }
    int first_local() const override { return rank_; }
    int local_size() const override { return 1; }

    std::vector<gpu::Bytes> all_gather(int, gpu::Bytes bytes, gpu::Clock::duration) override;
    std::vector<gpu::Bytes> gather_to_root(gpu::Bytes bytes, gpu::Clock::duration timeout) override;
    bool agree(bool root_says) override;

    /// Does nothing for other processes: these notice by their time-outs.
    void give_up(const std::string&) override { cancel(); }
    void cancel() noexcept override { cancelled_ = true; }
    bool cancelled() const noexcept override { return cancelled_; }

    gpu::Clock::duration clock_offset() const override { return {}; }
    gpu::Clock::duration clock_uncertainty() const override { return {}; }

private:
    const ringlab_cuda_exchange exchange_;
    const int rank_, ranks_;
    std::atomic<bool> cancelled_ = false;
};

}  // namespace ringlab::python
