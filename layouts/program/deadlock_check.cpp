#include "layouts/program/deadlock_check.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

std::size_t place_at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// A walk without any times: what has started has ended.
class DeadlockCheck : public Walk<DeadlockCheck> {
public:
    explicit DeadlockCheck(const Program& program) : Walk(static_cast<int>(program.ranks.size())), program_(program) {
        for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) ranks_.push_back({OpWindow(program.lanes)});
    }

    std::optional<StuckOperation> run() {
        const auto ranks = static_cast<int>(ranks_.size());
        for (int rank = 0; rank < ranks; ++rank) advance(rank);
        end_all(ended_);
        return find_unfinished(ranks, program_.lanes);
    }

private:
    friend class Walk<DeadlockCheck>;
    struct Rank {
        OpWindow window;
    };

    Rank& rank_of(int rank) { return ranks_[place_at(rank)]; }
    static int stand_in(int rank) { return rank; }

    void refill(int rank) {
        const auto& code = program_.ranks[place_at(rank)].code;
        for (auto& window = rank_of(rank).window; window.end() < code.size() && !window.every_lane_has_head();) {
            const auto& instruction = code[window.end()];
            auto op = instruction.op;
            if (instruction.receives()) op.kind = OpKind::receive;  // also a fetch that its owner serves
            window.push(op, 0, 0, 0);
        }
    }

    bool post(int rank, Lane lane, std::uint32_t op_index) {
        auto& window = rank_of(rank).window;
        const auto paced_by = program_.ranks[place_at(rank)].code[op_index].paced_by;
        if (paced_by >= 0 && !window.has_ended(static_cast<std::uint32_t>(paced_by))) return false;
        window.set_head_state(lane, OpState::posted);
        return true;
    }

    void start(int rank, Lane lane) { ended_.push(rank, lane); }
    void finish(int rank, Lane lane) { rank_of(rank).window.finish_head(lane); }
    static void after_finish(int, Lane, OpKind, int) {}

    const Program& program_;
    std::vector<Rank> ranks_;
    EndedStack ended_;
};

/// The computation of the largest step that half of a message depends on; null if there is none.
const Op* awaited_computation(const RankProgram& rank, const Instruction& half) {
    const Op* awaited = nullptr;
    for (const auto before : half.op.after()) {
        const auto& op = rank.code[place_at(before)].op;
        if (!op.transfers() && (!awaited || op.step > awaited->step)) awaited = &op;
    }
    return awaited;
}

bool is_in_fused_launch(const RankProgram& rank, OpIndex attend) {
    return std::ranges::any_of(rank.fused_launches, [&](const FusedLaunch& join) {
        return std::ranges::find(join.attends, place_at(attend)) != join.attends.end();
    });
}

/// The last operation before `which` that has a peer's step, is an attend or of the peer's kind, and shares some of
/// these heads; -1 if there is none, or if it belongs to a fused launch and may end only with it.
OpIndex counterpart_ahead(const RankProgram& rank, OpIndex op_index, const Op& of_peer, HeadRange heads) {
    while (--op_index >= 0) {
        const auto& op = rank.code[place_at(op_index)].op;
        const bool shares_heads = op.part.heads.begin < heads.end && heads.begin < op.part.heads.end;
        if ((op.kind == OpKind::attend || op.kind == of_peer.kind) && op.step == of_peer.step && shares_heads)
            return is_in_fused_launch(rank, op_index) ? -1 : op_index;
    }
    return -1;
}

}  // namespace

std::optional<StuckOperation> find_deadlock(const Program& program) { return DeadlockCheck(program).run(); }

void pace_messages(Program& program, const std::function<bool(int rank, int peer)>& is_kernel) {
    const auto set = [&](const auto& paced_by) {
        for (auto& rank : program.ranks)
            for (std::size_t i = 0; i < rank.code.size(); ++i)
                if (rank.code[i].partner >= 0 && is_kernel(rank.rank, rank.code[i].op.peer))
                    rank.code[i].paced_by = paced_by(rank, static_cast<OpIndex>(i));
    };
    set([&](const RankProgram& rank, OpIndex op_index) -> OpIndex {
        const auto& half = rank.code[place_at(op_index)];
        const auto& peer = program.ranks[place_at(half.op.peer)];
        const auto* awaited = awaited_computation(peer, peer.code[place_at(half.partner)]);
        return awaited ? counterpart_ahead(rank, op_index, *awaited, half.op.part.heads) : -1;
    });
    if (find_deadlock(program)) set([](const RankProgram&, OpIndex) { return -1; });
}

}  // namespace ringlab::layouts
