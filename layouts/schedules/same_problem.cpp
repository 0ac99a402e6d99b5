#include "layouts/schedules/same_problem.hpp"

#include <algorithm>

namespace ringlab::layouts {

void require_same_problem(const Schedule& forward, const Schedule& backward) {
    const auto& a = forward.problem();
    const auto& b = backward.problem();
    const bool same_problem = a.batch == b.batch && a.tokens == b.tokens && a.queries == b.queries &&
                              a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
                              a.value_dim == b.value_dim && a.effective_scale() == b.effective_scale() &&
                              a.soft_cap == b.soft_cap && a.dtype == b.dtype && a.rotary == b.rotary &&
                              a.latent == b.latent && a.dropout == b.dropout && a.sinks == b.sinks &&
                              forward.keeps(Pool::kv) == backward.keeps(Pool::kv) &&
                              forward.options().keeps_rows_together == backward.options().keeps_rows_together;
    require(same_problem, "the forward and the backward schedule have different problems; they must be the same");
    bool same_layout = forward.ranks() == backward.ranks();
    for (int rank = 0; same_layout && rank < forward.ranks(); ++rank)
        same_layout = std::ranges::equal(forward.layout().shard(rank), backward.layout().shard(rank));
    require(same_layout,
            "the forward schedule has layout {} over {} ranks, the backward schedule {} over {}; they must be the same",
            forward.layout().name(), forward.ranks(), backward.layout().name(), backward.ranks());
    require(forward.mask().name() == backward.mask().name(),
            "the forward schedule has mask {}, the backward schedule {}; they must be the same", forward.mask().name(),
            backward.mask().name());
}

}  // namespace ringlab::layouts
