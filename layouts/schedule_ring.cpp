#include "layouts/ring.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// Whether of each shard there is a key that all ranks' last rows see: enough for each rank to see something of each
/// shard, and found without a look at every pair of them.
bool last_rows_see_all_shards(const Mask& mask, const Layout& layout) {
    if (!mask.all_keys_valid()) return false;
    Interval seen{0, mask.tokens()};
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        std::int64_t last = 0;
        for (const auto& run : layout.shard(rank)) last = std::max(last, run.last());
        const auto row = mask.row(last);
        seen = {std::max(seen.begin, row.begin), std::min(seen.end, row.end)};
    }
    for (int owner = 0; owner < layout.ranks(); ++owner) {
        const KeyCounter keys(layout.shard(owner));
        if (keys.below(seen.end) <= keys.below(seen.begin)) return false;
    }
    return true;
}

/// One ring of all ranks.
class PlainRing : public RingSchedule {
public:
    PlainRing(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options)
        : RingSchedule(problem, mask, layout, options) {
        set_channels({"K,V"}, {"dK,dV"});
        find_hops(0, row_block(0), ranks());
        add_ring_slots(ranks(), query_heads().count(), kv_heads().count(), largest_rows(), layout.largest_shard());
        alike_ = problem.queries.empty() && layout.largest_shard() * ranks() == layout.tokens() &&
                 last_rows_see_all_shards(mask, layout);
    }

    Ops ops(int rank) const override {
        Member self;
        self.position = rank;
        self.size = ranks();
        self.heads = kv_heads();
        self.rows = rows_of(rank, query_heads());
        return options().pass == Pass::forward ? forward(self) : backward(self);
    }

    bool ranks_are_alike() const override { return alike_; }

private:
    bool alike_;
};

const ScheduleRegistration registered_ring(
    "ring", "ring", "K/V blocks hop from rank to rank, one step at a time; their gradients follow and end at home",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        require(arguments.empty(), "schedule ring takes no arguments, got '{}'", arguments);
        return std::make_unique<PlainRing>(problem, mask, layout, options);
    });

}  // namespace
}  // namespace ringlab::layouts
