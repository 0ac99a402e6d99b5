#pragma once

#include "layouts/schedules/schedule.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "tests/reference/wrapped_world.hpp"
#include "tests/registered.hpp"
#include "tests/thinning.hpp"

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace ringlab::reference::tests {

/// A run of one problem under one mask, layout and schedule.
struct GateCase {
    layouts::Problem problem;
    std::string mask;
    std::string layout;
    std::string schedule_name = "ring";
    int ranks = 1;
    layouts::Accumulation accumulation = layouts::Accumulation::carry;
    layouts::DType gradient_dtype = layouts::DType::fp64;
};

/// 4 query heads on 2 kv heads, head dim 8, value dim 5, fp64.
layouts::Problem small_problem(std::int64_t tokens);

/// Independent normal numbers, the same for the same seed.
Inputs random_inputs(const layouts::Problem& problem, unsigned seed);

std::unique_ptr<layouts::Schedule> schedule_of(const GateCase& gate_case, layouts::Pass pass);

/// Both passes of `gate_case` on `world`.
CpuRun run_case(World& world, const GateCase& gate_case, const Inputs& inputs, const CpuOptions& options);
CpuRun run_case(const GateCase& gate_case, const Inputs& inputs, const CpuOptions& options);

/// Dense fp64 attention of the case, a latent expanded before, its q and k rotated by a formula of its own.
Outputs expected_of(const GateCase& gate_case, const Inputs& inputs);

/// Inputs of a case and what they must give, made once for all layouts, schedules and numbers of ranks.
struct Expected {
    Inputs inputs;
    Outputs outputs;
};
const Expected& expected_once(const GateCase& gate_case);

/// The gate: empty if o, lse, dq, dk and dv each agree with `expected`, in norm and in the largest element; otherwise
/// what disagrees and how far.
///
/// The tolerance is 1e-13. Unit roundoff is u = 1.1e-16. A row sums n <= 100 products whose factors carry the error of
/// a score (a dot product of 8 terms of size about 5: 8*5*u = 4e-15, taken over by exp as a relative error), so that a
/// result may be off by about n*u + 4e-15 = 1.5e-14 of the sum of the terms' magnitudes, and cancellation leaves about
/// 1/sqrt(n) of that sum as the result: at worst 1.5e-13, in truth, as roundings do not all point one way, some 2e-15.
/// A schedule that leaves out a single key is off by 1/n = 1e-2.
std::string complaint(const Outputs& measured, const Outputs& expected);

/// complaint(), or the text of the Error that the run threw.
std::string complaint_of_run(const std::function<Outputs()>& run, const Outputs& expected);

/// The cases of one schedule, each in every layout that divides 48 tokens.
struct Sweep {
    std::vector<int> ranks{4};
    std::vector<std::string> masks;
    std::vector<layouts::Accumulation> accumulations{layouts::Accumulation::carry, layouts::Accumulation::partials};
};

/// Checks that both passes equal expected_of(), under the sanitizers of one case in eight; `change` makes of each case
/// what is tested. Fails if no case suits the schedule.
void check_every_layout(const std::string& schedule_name, const Sweep& sweep,
                        const std::function<void(GateCase&)>& change);

/// Checks every `step`-th element of a gradient of sum o.dout against a central difference of expected_of(). That is
/// off by h^2/6 times the third derivative, some 1e-9 here, and by roundoff / h, 1e-15 / 1e-5.
void check_gradient(const GateCase& c, const Inputs& inputs, Tensor Inputs::*tensor, const Tensor& gradient,
                    std::size_t step);

/// Tiles so small and odd that shards of a dozen tokens have several.
CpuOptions small_tiles();

/// Rank 1 computes for `milliseconds` at first.
template <int milliseconds>
class LongComputing : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;
    void set_computing(bool computing) override {
        WrappedTransport::set_computing(computing);
        if (computing && rank() == 1 && !std::exchange(has_slept_, true))
            std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }

private:
    bool has_slept_ = false;
};

/// Messages of rank 1 never leave it.
class MutedTransport : public WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;
    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override;
};

}  // namespace ringlab::reference::tests
