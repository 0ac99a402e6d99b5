#include "layouts/joins.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringlab::layouts {

void JoinFinder::finish() {
    if (join_.attends.size() > 1) joins_.push_back(std::move(join_));
    join_ = {};
    stretch_ = 0;
}

void JoinFinder::add(const Op& op) {
    const auto self = needs_.size();
    std::size_t needs = 0;
    for (const auto before : op.after()) {
        const auto which = static_cast<std::size_t>(before);
        needs = std::max({needs, needs_[which], attends_[which] ? which + 1 : 0});
    }
    if (op.transfers()) {
        const bool is_computed = !is_input(op.pool);
        if (op.kind != OpKind::send && is_computed) needs = std::numeric_limits<std::size_t>::max();
        auto& lane = lane_needs_[static_cast<std::size_t>(op.lane())];
        lane = needs = std::max(needs, lane);
    }
    needs_.push_back(needs);
    attends_.push_back(op.kind == OpKind::attend);
    if (op.transfers()) return;
    if (op.kind != OpKind::attend || !op.fused) finish();
    if (op.kind != OpKind::attend) return;
    if (!join_.attends.empty() && needs > join_.attends[stretch_]) {
        if (pass_ == Pass::forward) {
            finish();
        } else {
            stretch_ = join_.attends.size();
            join_.breaks.push_back(stretch_);
        }
    }
    join_.attends.push_back(self);
}

std::vector<Join> JoinFinder::found() && {
    finish();
    return std::move(joins_);
}

}  // namespace ringlab::layouts
