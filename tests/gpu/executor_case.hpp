#pragma once

#include "gpu/execution/executor.hpp"
#include "reference/error/deviations.hpp"
#include "reference/error/error_model.hpp"
#include "reference/tensors/tensors.hpp"
#include "tests/error_of.hpp"

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::tests {

/// A forward and a backward pass over ranks, by the executor.
struct RingCase {
    layouts::Problem problem;
    std::string mask = "causal";
    std::string layout = "contiguous";
    std::string schedule = "ring";
    int ranks = 1;
    layouts::Accumulation accumulation = layouts::Accumulation::carry;
    layouts::DType gradient_dtype = layouts::DType::fp32;
    gpu::GpuOptions options = {};  ///< group.ring is set from ranks
    bool keeps_rows_together = false;
};
std::ostream& operator<<(std::ostream& out, const RingCase& c);

/// 576 tokens, 4 query heads on 2 kv heads of dim 64, bf16: layouts over 1, 2, 3, 4 and 8 ranks divide them, tiles do
/// not.
layouts::Problem small_problem();

gpu::HostInputs host_inputs(const reference::Inputs& inputs, layouts::DType dtype);
/// Random ones.
gpu::HostInputs host_inputs(const layouts::Problem& problem, std::uint64_t seed);
reference::Outputs to_reference(const gpu::HostOutputs& outputs);

/// The schedules of a case.
struct Passes {
    std::unique_ptr<layouts::Schedule> forward, backward;
};
Passes make_passes(const RingCase& c);

/// Runs on a team of threads, scratch and results poisoned; with inputs of each replica, or none.
std::vector<gpu::GpuRun> run_rings(const RingCase& c, std::span<const gpu::HostInputs> inputs,
                                   const gpu::FabricFactory& make_fabric = {});
gpu::GpuRun run_case(const RingCase& c, const gpu::HostInputs& inputs, const gpu::FabricFactory& make_fabric = {});

/// What a case is compared with: results in fp64, and how far off they may be.
struct Expected {
    std::uint64_t seed = 0;
    reference::Inputs inputs;
    reference::Outputs outputs;
    reference::Bounds bounds;
};
std::uint64_t new_seed();
/// Of fresh inputs, which `change` may change. `threads`: of BLAS; 0: all.
Expected expected_of(const RingCase& c, std::uint64_t seed, const std::function<void(reference::Inputs&)>& change = {},
                     int threads = 0);
/// Of a case without latent and rotary embedding, by the errors that a GPU may have with its inputs.
reference::Bounds bounds_of(const RingCase& c, const reference::ErrorModel& errors, const reference::Inputs& inputs);

/// Checks every result by norm and by largest element.
void check_against(const RingCase& c, const gpu::HostOutputs& measured, const reference::Outputs& expected,
                   const reference::Bounds& bounds);

/// Runs and checks.
void agrees(const RingCase& c, const Expected& with);
void agrees_with_the_reference(const RingCase& c);

/// For what no layout is likely to matter to: a layout by the number of the case.
std::string layout_in_turn(std::size_t number);

/// Every bit of every result.
void check_identical(const gpu::HostOutputs& measured, const gpu::HostOutputs& expected);

/// Results with o, dq, dk and dv rounded to bf16.
gpu::HostOutputs in_bf16(gpu::HostOutputs results);

/// The fabric of `kind`, except that one rank's sends never leave: what the others see when it dies. `instead` is
/// called in their place.
gpu::FabricFactory silent_rank_fabric(
    gpu::TransportKind kind, int silent_rank, std::function<void()> instead = [] {});

/// The copy fabric, except that what one rank fetches never comes.
gpu::FabricFactory stuck_fetches_fabric(int rank);

}  // namespace ringlab::tests
