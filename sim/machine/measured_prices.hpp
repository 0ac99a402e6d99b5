#pragma once

#include "layouts/basics/basic_types.hpp"

#include <optional>
#include <vector>

namespace ringlab::sim {

/// Prices of single operations and ranks that replace the model's, to replay a measured pass. Everything that is not
/// given keeps the price of the model.
struct MeasuredPrices {
    struct OfOp {
        double factor = 1;                     ///< on the time that the operation takes alone
        layouts::Picoseconds lag = 0;          ///< added to it: time between being ready and starting
        layouts::Picoseconds issue_delay = 0;  ///< how much later than predicted the host issues it
    };
    struct OfRank {
        std::vector<OfOp> ops;  ///< by index in the rank's schedule; empty: the model's. A message is its sender's.
        std::optional<layouts::Picoseconds> begin, end;  ///< of a pass
    };
    std::vector<OfRank> ranks;   ///< all of them, or none
    std::vector<double> clocks;  ///< by rank, relative to the calibration; empty: those that power allows

    OfOp of(int rank, layouts::OpIndex op) const {
        if (ranks.empty()) return {};
        const auto& ops = ranks[static_cast<std::size_t>(rank)].ops;
        return ops.empty() ? OfOp{} : ops[static_cast<std::size_t>(op)];
    }
    std::optional<layouts::Picoseconds> begin(int rank) const {
        return ranks.empty() ? std::nullopt : ranks[static_cast<std::size_t>(rank)].begin;
    }
    std::optional<layouts::Picoseconds> end(int rank) const {
        return ranks.empty() ? std::nullopt : ranks[static_cast<std::size_t>(rank)].end;
    }
};

}  // namespace ringlab::sim
