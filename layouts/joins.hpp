#pragma once

#include "layouts/schedule.hpp"

#include <vector>

namespace ringlab::layouts {

/// Attends that the schedule joins (Op::fused), two or more in the order in which it has them, by index.
///
/// Forward, none waits for another one's end. Backward, one may, by way of messages: what joins them must then begin
/// them in order, with all that they wait for still to come, and say of each when it has ended. What cannot do that
/// takes each stretch by itself, up to the next of `breaks`.
struct Join {
    std::vector<std::size_t> attends;
    std::vector<std::size_t> breaks;  ///< places of attends that wait for one since the break before, here or elsewhere
};

/// Finds the joins of a rank from its operations, which are added in their order.
class JoinFinder {
public:
    JoinFinder(Pass pass, int lanes) : pass_(pass), lane_needs_(static_cast<std::size_t>(lanes)) {}

    void add(const Op& op);
    std::vector<Join> found() &&;

private:
    void finish();

    Pass pass_;
    std::vector<Join> joins_;
    Join join_;
    std::size_t stretch_ = 0;  // place of its first attend in the join
    // By operation: 1 + the last attend that must have ended before it can begin, apart from the compute lane's order;
    // what comes from attends of others may have waited for any.
    std::vector<std::size_t> needs_;
    std::vector<std::size_t> lane_needs_;
    std::vector<bool> attends_;  // by operation
};

}  // namespace ringlab::layouts
