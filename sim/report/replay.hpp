#pragma once

#include "layouts/program/program.hpp"
#include "sim/play/simulate.hpp"

#include <array>
#include <memory>
#include <vector>

namespace ringlab::sim {

class TileModel;

/// A part of the cost model that can own an error of a prediction.
enum class Owner {
    attends,   ///< attention kernels, and matrix products of a latent, at the clock of the calibration
    clock,     ///< the clock that power allows
    sums,      ///< merges, adds and copies
    messages,  ///< latency and rate of messages
    issue,     ///< when the host issues an operation, and what else passes between being ready and starting
    begin,     ///< of a pass, before its first operation of the compute lane
    end,       ///< of a pass, behind its last operation
};
inline constexpr std::array owners{Owner::attends, Owner::clock, Owner::sums, Owner::messages,
                                   Owner::issue,   Owner::begin, Owner::end};
const char* to_string(Owner owner);

/// What each owner adds to the predicted time of a pass if its measured prices replace the model's, in seconds.
struct Attribution {
    double predicted = 0, measured = 0;
    std::array<double, owners.size()> effects{};  ///< by owner
    double remainder = 0;                         ///< measured - predicted - sum of effects

    double effect(Owner owner) const { return effects[static_cast<std::size_t>(owner)]; }

    /// The one with the largest effect, without sign.
    Owner largest() const;
};

/// A pass that was measured, and the prices with which the simulator replays its spans.
///
/// A price is found by iteration: the replay shares links, memory and SMs as the measured pass did, so a price that
/// reproduces a span is free of what the span lost to others. A wrong link rate that makes attends beside messages
/// slower is therefore not an error of attends.
///
/// A host is ahead of its GPU after the first operations, and when it issued something can then not be seen. An
/// operation that was ready before the predicted time of its issue was issued when it started. For others the time
/// between being ready and starting is a lag.
class Replay {
public:
    /// All arguments but `measured` must outlive it. Throws Error if the timeline is not of this schedule.
    Replay(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
           const layouts::Timeline& measured);

    /// Whether power limits the clock of any rank, as predicted.
    bool power_limits() const { return predicted_.clock < 1; }

    /// Measured over predicted time of attends, both alone and at the predicted clock: mean over all ranks, weighted by
    /// the predicted time.
    double attend_ratio() const { return attend_ratio_; }

    /// By rank: end of the last span, and the predicted time behind it.
    const std::vector<Picoseconds>& last_ends() const { return last_ends_; }
    Picoseconds end_of_pass(int rank) const { return model_ends_[static_cast<std::size_t>(rank)]; }

    /// Splits the error of the pass, which took `seconds`, among the owners. `ends` are measured times behind the last
    /// operation, by rank. `price_ratio` is the part of attend_ratio() that is an error of prices and not of the clock;
    /// it is used only if power_limits().
    ///
    /// An effect is the owner's Shapley value: what its measured prices change, as a mean over all orders in which the
    /// owners' prices can be replaced. So effects add up to the whole change in any case, an owner whose measured
    /// prices are the model's has none, and no order is preferred.
    Attribution attribute(double seconds, const std::vector<Picoseconds>& ends, double price_ratio) const;

private:
    void find_waits(const layouts::Timeline& measured);
    void find_prices(const layouts::Timeline& measured);

    /// When the operations that this one waits for on its own rank, one of its lane among them, had ended.
    Picoseconds ready(const layouts::Timeline& timeline, std::size_t rank, std::size_t op) const;

    /// When the host issued it.
    Picoseconds issued(std::size_t rank, std::size_t op) const;

    /// When it could start: ready and issued, for a message on both sides.
    Picoseconds can_start(const layouts::Timeline& timeline, std::size_t rank, std::size_t op) const;

    Prediction play(const MeasuredPrices& prices, bool trace) const;

    const layouts::Schedule& schedule_;
    const Machine& machine_;
    SimOptions options_;
    std::shared_ptr<TileModel> tiles_;
    layouts::Program program_;
    std::vector<std::size_t> first_;                   // by rank, of its spans
    std::vector<std::vector<std::ptrdiff_t>> before_;  // by rank and operation: the one before it on its lane, or -1
    Prediction predicted_;
    MeasuredPrices prices_;  // that replay the pass at the predicted clocks
    double attend_ratio_ = 1;
    std::vector<Picoseconds> last_ends_, attends_, model_begins_, model_ends_;  // by rank
};

}  // namespace ringlab::sim
