#pragma once

#include "layouts/schedule.hpp"

namespace ringlab::layouts {

/// What all-gather and pull have in common: a rank brings in the blocks that it needs straight from their owners, a
/// group of kv heads at a time, and attends to them one after another, its own first; in the backward pass it sends
/// each block's gradient straight home, where the owner sums the parts in a fixed order.
class GatheredSchedule : public Schedule {
public:
    struct Style {
        bool one_sided;  ///< fetch block after block from its owner's memory and attend to each as it comes, in one
                         ///< launch; otherwise a collective: send and receive, then attend to all blocks of the head
                         ///< group
        int groups;      ///< kv heads are brought in this many equal parts
    };

    GatheredSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                     Style style);

    Ops ops(int rank) const override;

private:
    enum Channel : int { kv_channel, dkv_channel };

    HeadRange group_heads(int group) const;
    int last_needed(int rank) const;

    Style style_;
};

}  // namespace ringlab::layouts
