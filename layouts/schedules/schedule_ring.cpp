#include "layouts/schedules/rank_symmetry.hpp"
#include "layouts/schedules/ring.hpp"

namespace ringlab::layouts {
namespace {

/// One ring of all ranks.
class PlainRing : public RingSchedule {
public:
    PlainRing(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options)
        : RingSchedule(problem, mask, layout, options) {
        set_channels({"K,V"}, {"dK,dV"});
        find_hops(0, row_block(0), ranks());
        add_ring_slots(ranks(), query_heads().count(), kv_heads().count(), largest_rows(), layout.largest_shard());
    }

    Ops ops(int rank) const override {
        Member self;
        self.position = rank;
        self.size = ranks();
        self.heads = kv_heads();
        self.rows = rows_of(rank, query_heads());
        return options().pass == Pass::forward ? forward(self) : backward(self);
    }

    bool is_rank_symmetric() const override { return rank_symmetric_; }

private:
    bool rank_symmetric_ = has_rank_symmetric_pairs(*this);
};

const ScheduleRegistration registered_ring(
    "ring", "ring", "K/V blocks hop from rank to rank, one step at a time; their gradients follow and end at the owner",
    {"ring"},
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        require(arguments.empty(), "schedule ring takes no arguments, got '{}'", arguments);
        return std::make_unique<PlainRing>(problem, mask, layout, options);
    });

}  // namespace
}  // namespace ringlab::layouts
