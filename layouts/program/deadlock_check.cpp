#include "layouts/program/deadlock_check.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

std::size_t place_at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Runs all lanes without any times; a send and its receive end together.
class DeadlockCheck {
public:
    explicit DeadlockCheck(const Program& program) : program_(program), ranks_(program.ranks.size()) {
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            auto& state = ranks_[rank];
            const auto& code = program.ranks[rank].code;
            state.ended.resize(code.size());
            state.lanes.resize(place_at(program.lanes));
            for (std::size_t i = 0; i < code.size(); ++i) state.lanes[place_at(code[i].op.lane())].queue.push_back(i);
        }
    }

    std::optional<StuckOperation> run() {
        std::vector<std::size_t> helped;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) helped.push_back(rank);
        while (!helped.empty()) {
            const auto rank = helped.back();
            helped.pop_back();
            for (std::size_t lane = 0; lane < ranks_[rank].lanes.size(); ++lane)
                while (advance(rank, lane, helped)) helped.push_back(rank);
        }
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            for (const auto& lane : ranks_[rank].lanes)
                if (lane.front < lane.queue.size())
                    return StuckOperation{static_cast<int>(rank), static_cast<OpIndex>(lane.queue[lane.front])};
        return std::nullopt;
    }

private:
    struct LaneState {
        std::vector<std::size_t> queue;
        std::size_t front = 0;
    };
    struct RankState {
        std::vector<char> ended;
        std::vector<LaneState> lanes;
    };

    bool may_begin(std::size_t rank, std::size_t which) const {
        const auto& state = ranks_[rank];
        const auto& instruction = program_.ranks[rank].code[which];
        const auto& lane = state.lanes[place_at(instruction.op.lane())];
        if (lane.front == lane.queue.size() || lane.queue[lane.front] != which) return false;
        const auto has_ended = [&](OpIndex before) { return state.ended[place_at(before)]; };
        return std::ranges::all_of(instruction.op.after(), has_ended) &&
               (instruction.paced_by < 0 || has_ended(instruction.paced_by));
    }

    void end(std::size_t rank, std::size_t which) {
        auto& state = ranks_[rank];
        state.ended[which] = true;
        ++state.lanes[place_at(program_.ranks[rank].code[which].op.lane())].front;
    }

    bool advance(std::size_t rank, std::size_t lane_index, std::vector<std::size_t>& helped) {
        const auto& lane = ranks_[rank].lanes[lane_index];
        if (lane.front == lane.queue.size()) return false;
        const auto which = lane.queue[lane.front];
        const auto& instruction = program_.ranks[rank].code[which];
        if (!may_begin(rank, which)) return false;
        if (instruction.partner >= 0) {
            const auto peer = place_at(instruction.op.peer), partner = place_at(instruction.partner);
            if (!may_begin(peer, partner)) return false;
            end(peer, partner);
            helped.push_back(peer);
        }
        end(rank, which);
        return true;
    }

    const Program& program_;
    std::vector<RankState> ranks_;
};

/// The largest step of the compute operations that half of a message depends on; -1 if there are none.
int awaited_step(const RankProgram& rank, const Instruction& half) {
    int step = -1;
    for (const auto before : half.op.after())
        if (const auto& op = rank.code[place_at(before)].op; !op.transfers()) step = std::max(step, op.step);
    return step;
}

bool is_in_fused_launch(const RankProgram& rank, OpIndex attend) {
    return std::ranges::any_of(rank.fused_launches, [&](const FusedLaunch& join) {
        return std::ranges::find(join.attends, place_at(attend)) != join.attends.end();
    });
}

/// The last attend before operation `which` that has this step and shares some of these heads; -1 if there is none, or
/// if it belongs to a fused launch and may end only with it.
OpIndex attend_ahead(const RankProgram& rank, OpIndex which, int step, HeadRange heads) {
    while (--which >= 0) {
        const auto& op = rank.code[place_at(which)].op;
        const bool shares_heads = op.part.heads.begin < heads.end && heads.begin < op.part.heads.end;
        if (op.kind == OpKind::attend && op.step == step && shares_heads)
            return is_in_fused_launch(rank, which) ? -1 : which;
    }
    return -1;
}

}  // namespace

std::optional<StuckOperation> find_deadlock(const Program& program) { return DeadlockCheck(program).run(); }

void pace_messages(Program& program) {
    const auto set = [&](const auto& paced_by) {
        for (auto& rank : program.ranks)
            for (std::size_t i = 0; i < rank.code.size(); ++i)
                if (rank.code[i].partner >= 0) rank.code[i].paced_by = paced_by(rank, static_cast<OpIndex>(i));
    };
    set([&](const RankProgram& rank, OpIndex which) -> OpIndex {
        const auto& half = rank.code[place_at(which)];
        const auto& peer = program.ranks[place_at(half.op.peer)];
        const int step = awaited_step(peer, peer.code[place_at(half.partner)]);
        return step < 0 ? -1 : attend_ahead(rank, which, step, half.op.part.heads);
    });
    if (find_deadlock(program)) set([](const RankProgram&, OpIndex) { return -1; });
}

}  // namespace ringlab::layouts
