#pragma once

#include "layouts/walk/op_window.hpp"

#include <bit>
#include <optional>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// The lane of the peer at the other end of a message.
constexpr Lane counterpart(Lane lane) { return lane % 2 == 1 ? lane + 1 : lane - 1; }

constexpr int channel_of(Lane lane) { return (lane - 1) / 2; }

/// An operation that can never begin.
struct StuckOperation {
    int rank = 0;
    OpIndex operation = 0;
};

/// What has started and ends at once, for walks that do not depend on the order in which operations end.
class EndedStack {
public:
    void push(int id, Lane lane) { ended_.emplace_back(id, lane); }
    bool empty() const { return ended_.empty(); }
    std::pair<int, Lane> pop() {
        const auto last = ended_.back();
        ended_.pop_back();
        return last;
    }

private:
    std::vector<std::pair<int, Lane>> ended_;
};

/// Walks the operations of a set of ranks in an order in which they can run. It knows which operation is next on every
/// lane, whether everything that it waits for has ended, and whether the two halves of a message meet. It knows nothing
/// of time: `Player`, the class that derives from it, says when an operation that has started ends. Whoever simulates
/// takes that from a queue of events; a recurrence computes it at once; a deadlock check needs no times.
///
/// `Player` has these members:
///
///     auto& rank_of(int id);               // a walked rank: an OpWindow `window`
///     int stand_in(int rank);              // the rank that is walked for `rank`; the same one if all are
///     void refill(int id);                 // reads operations until every lane has a head or nothing is left
///     bool post(int id, Lane, OpIndex);    // everything that the lane's head waits for has ended. Sets the state of
///                                          // the head; false if it must wait for something else, and `Player`
///                                          // then calls try_start() again
///     void start(int id, Lane);            // the lane's head starts; for both halves of a message, this is the sender
///     void finish(int id, Lane);           // the lane's head has ended; for a message called for either half
///     void after_finish(int id, Lane, OpKind, int peer);  // called once behind finish(), for a message when both
///                                          // halves have ended; `peer` is the receiver's id, -1 if there is none
///
/// It may define meet() for another rule of which halves belong together.
template <class Player>
class Walk {
protected:
    /// `ring_ranks`: the number of ranks of a ring; several rings may be walked side by side.
    explicit Walk(int ring_ranks) : ring_ranks_(ring_ranks) {}

    /// Starts what can start on a rank.
    void advance(int id) {
        player().refill(id);
        for (auto lanes = window(id).waiting(); lanes != 0; lanes &= lanes - 1) try_start(id, std::countr_zero(lanes));
    }

    /// Starts the head of a lane if it can start.
    void try_start(int id, Lane lane) {
        const auto head = window(id).head(lane);
        if (!window(id).may_run(head) || !player().post(id, lane, head)) return;
        const auto& op = window(id)[head];
        lane == compute_lane || op.kind() == OpKind::fetch ? player().start(id, lane) : player().meet(id, lane, op);
    }

    /// Starts a message if its other half is ready too.
    void meet(int id, Lane lane, const PendingOp& op) {
        if (!peer_is_posted(id, lane, op)) return;
        op.kind() == OpKind::send ? player().start(id, lane)
                                  : player().start(player().stand_in(op.peer), counterpart(lane));
    }

    /// Whether the other half of a message is ready.
    bool peer_is_posted(int id, Lane lane, const PendingOp& op) {
        const int by = player().stand_in(op.peer);
        auto& other = window(by);
        const auto head = other.head(counterpart(lane));
        return head != OpWindow::none && other[head].state == OpState::posted &&
               peer_awaited_by(other[head], op.peer, by) == id;
    }

    /// The head of a lane has ended, for a message the sender's. Starts what that makes possible.
    void end(int id, Lane lane) {
        const auto& op = head_of(id, lane);
        const auto kind = op.kind();
        const int peer = kind == OpKind::send ? player().stand_in(op.peer) : -1;
        player().finish(id, lane);
        if (peer >= 0) player().finish(peer, counterpart(lane));
        player().after_finish(id, lane, kind, peer);
        advance(id);
        if (peer >= 0) advance(peer);
    }

    /// Walks on until nothing more can start, if what starts ends at once.
    void end_all(EndedStack& ended) {
        while (!ended.empty()) {
            const auto [id, lane] = ended.pop();
            end(id, lane);
        }
    }

    PendingOp& head_of(int id, Lane lane) { return window(id)[window(id).head(lane)]; }

    /// The first operation of the ranks below `ranks` that has not ended.
    std::optional<StuckOperation> find_unfinished(int ranks, int lanes) {
        for (int id = 0; id < ranks; ++id)
            for (Lane lane = 0; lane < lanes; ++lane)
                if (const auto head = window(id).head(lane); head != OpWindow::none)
                    return StuckOperation{id, static_cast<OpIndex>(head)};
        return std::nullopt;
    }

private:
    Player& player() { return static_cast<Player&>(*this); }
    OpWindow& window(int id) { return player().rank_of(id).window; }

    /// The rank that the head of rank `peer` waits for, if rank `by` is walked for `peer` and `op` is by's head: the
    /// peer of `op`, shifted by the distance between the two.
    int peer_awaited_by(const PendingOp& op, int peer, int by) const {
        const int from = op.peer + (peer - by);
        return peer == by || from < ring_ranks_ ? from : from - ring_ranks_;
    }

    int ring_ranks_;
};

}  // namespace ringlab::layouts
