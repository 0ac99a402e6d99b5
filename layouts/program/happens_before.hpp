#pragma once

#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <vector>

namespace ringlab::layouts {

/// Vector clocks of one rank: which of its operations are certain to have ended before another begins, because of the
/// order of lanes and of dependencies. Waiting for peers could only add order and is not considered.
class HappensBefore {
public:
    explicit HappensBefore(int lanes) : lanes_(index(lanes)), last_(lanes_, -1), length_(lanes_, 0) {}

    /// Adds the next operation in schedule order.
    void add(const Op& op) {
        const auto lane = index(op.lane());
        const auto begin = clocks_.size();
        clocks_.resize(begin + lanes_, 0);
        const auto follow = [&](OpIndex before) {
            if (before < 0) return;
            for (std::size_t l = 0; l < lanes_; ++l)
                clocks_[begin + l] = std::max(clocks_[begin + l], clocks_[index(before) * lanes_ + l]);
            const auto [its_lane, place] = places_[index(before)];
            clocks_[begin + its_lane] = std::max(clocks_[begin + its_lane], place + 1);
        };
        follow(last_[lane]);
        for (const auto before : op.after()) follow(before);
        last_[lane] = static_cast<OpIndex>(places_.size());
        places_.emplace_back(lane, length_[lane]++);
    }

    /// Whether operation `first` is certain to have ended before `second` begins.
    bool operator()(OpIndex first, OpIndex second) const {
        const auto [lane, place] = places_[index(first)];
        return clocks_[index(second) * lanes_ + lane] > place;
    }

private:
    static constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    std::size_t lanes_;
    std::vector<OpIndex> last_;                                 // by lane
    std::vector<std::int32_t> length_;                          // by lane
    std::vector<std::pair<std::size_t, std::int32_t>> places_;  // by operation: its lane and index in it
    std::vector<std::int32_t> clocks_;                          // by operation and lane: how many have ended
};

}  // namespace ringlab::layouts
