#pragma once

#include "layouts/schedule.hpp"

#include <algorithm>
#include <vector>

namespace ringlab::layouts {

/// Which operations of a rank have ended for sure before another begins: by lane, how many of them. Rendezvous with
/// peers only adds order.
class HappensBefore {
public:
    explicit HappensBefore(int lanes) : lanes_(index(lanes)), last_(lanes_, -1), length_(lanes_, 0) {}

    /// Operations come in schedule order.
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

    bool operator()(OpIndex first, OpIndex second) const {
        const auto [lane, place] = places_[index(first)];
        return clocks_[index(second) * lanes_ + lane] > place;
    }

private:
    static constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    std::size_t lanes_;
    std::vector<OpIndex> last_;                                 // by lane
    std::vector<std::int32_t> length_;                          // by lane
    std::vector<std::pair<std::size_t, std::int32_t>> places_;  // by operation: its lane and place in it
    std::vector<std::int32_t> clocks_;                          // by operation and lane
};

}  // namespace ringlab::layouts
