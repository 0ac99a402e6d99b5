#include "layouts/program/fused_launch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringlab::layouts {

void FusedLaunchFinder::finish() {
    if (launch_.attends.size() > 1) fused_launches_.push_back(std::move(launch_));
    launch_ = {};
    section_begin_ = 0;
}

void FusedLaunchFinder::add(const Op& op) {
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
    if (!launch_.attends.empty() && needs > launch_.attends[section_begin_]) {
        if (pass_ == Pass::forward) {
            finish();
        } else {
            section_begin_ = launch_.attends.size();
            launch_.section_begins.push_back(section_begin_);
        }
    }
    launch_.attends.push_back(self);
}

std::vector<FusedLaunch> FusedLaunchFinder::found() && {
    finish();
    return std::move(fused_launches_);
}

}  // namespace ringlab::layouts
