#include "tests/layouts/schedule_checker.hpp"

#include "tests/layouts/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace ringlab::layouts::testing {
namespace {

std::string name_of(int rank, std::size_t index, const Op& op) {
    return fmt::format("rank {} op {} ({} step {} owner {} heads {}-{} slot {} gradient slot {} peer {})", rank, index,
                       to_string(op.kind), op.step, op.owner, op.heads.begin, op.heads.end, op.slot, op.gradient_slot,
                       op.peer);
}

bool is_transfer(const Op& op) {
    return op.kind == OpKind::send || op.kind == OpKind::receive || op.kind == OpKind::fetch;
}

/// For each operation, which others end before it begins.
std::vector<std::vector<bool>> order_of(const std::vector<Op>& ops) {
    std::vector<std::vector<bool>> before(ops.size(), std::vector<bool>(ops.size()));
    std::array<OpIndex, lane_count> last{};
    last.fill(-1);
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const auto follow = [&](OpIndex index) {
            const auto p = static_cast<std::size_t>(index);
            if (index < 0 || p >= i || before[i][p]) return;
            before[i][p] = true;
            for (std::size_t q = 0; q < p; ++q)
                if (before[p][q]) before[i][q] = true;
        };
        auto& lane = last[static_cast<std::size_t>(ops[i].lane)];
        follow(lane);
        for (const auto index : ops[i].after()) follow(index);
        lane = static_cast<OpIndex>(i);
    }
    return before;
}

/// Writes down what is wrong, part by part of violations()'s list.
class Checker {
public:
    Checker(const Schedule& schedule, const Program& program, const CellTable& cells)
        : schedule_(schedule), program_(program), cells_(cells), plan_(schedule.slots()) {}

    std::vector<std::string> run() {
        check_form();
        check_messages();
        check_order();
        if (found_.empty()) execute();
        return std::move(found_);
    }

private:
    int ranks() const { return schedule_.ranks(); }
    int heads() const { return static_cast<int>(schedule_.problem().kv_heads); }
    bool backward() const { return schedule_.options().pass == Pass::backward; }
    std::int64_t cells(int rank, int owner) const {
        return cells_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(owner)];
    }
    const std::vector<Op>& ops(int rank) const { return program_[static_cast<std::size_t>(rank)]; }

    template <class Visit>
    void for_each_op(Visit visit) {
        for (int rank = 0; rank < ranks(); ++rank)
            for (std::size_t i = 0; i < ops(rank).size(); ++i) visit(rank, i, ops(rank)[i]);
    }

    std::int64_t expected_bytes(int rank, const Op& op) const {
        const auto& problem = schedule_.problem();
        const auto& layout = schedule_.layout();
        const auto element =
            op.payload == Payload::kv ? bytes_of(problem.dtype) : bytes_of(schedule_.options().gradient_dtype);
        if (op.kind == OpKind::attend) return 0;
        if (op.kind == OpKind::merge)
            return problem.batch * layout.shard_tokens(rank) * op.heads.count() *
                   (problem.query_heads / problem.kv_heads) * (problem.value_dim * bytes_of(problem.dtype) + 4);
        return problem.batch * layout.shard_tokens(op.owner) * op.heads.count() *
               (problem.head_dim + problem.value_dim) * element;
    }

    static Lane lane_of(const Op& op) {
        if (!is_transfer(op)) return Lane::compute;
        if (op.payload == Payload::kv) return op.kind == OpKind::send ? Lane::send_kv : Lane::receive_kv;
        return op.kind == OpKind::send ? Lane::send_dkv : Lane::receive_dkv;
    }

    void check_form() {
        for (int rank = 0; rank < ranks(); ++rank) {
            const Op* compute = nullptr;  // the operation before on the compute lane
            for (std::size_t i = 0; i < ops(rank).size(); ++i) {
                const auto& op = ops(rank)[i];
                const auto expect = [&](bool right, const char* what) {
                    if (!right) found_.push_back(name_of(rank, i, op) + ": " + what);
                };
                for (const auto index : op.after())
                    expect(0 <= index && index < static_cast<OpIndex>(i), "a dependency points forwards");
                expect(op.lane == lane_of(op), "on the wrong lane");
                expect(0 <= op.owner && op.owner < ranks(), "no such owner");
                expect(0 <= op.heads.begin && op.heads.begin < op.heads.end && op.heads.end <= heads(),
                       "no such heads");
                expect(op.bytes == expected_bytes(rank, op), "wrong bytes");
                expect(op.step >= 0 && op.step <= ranks(), "no such step");
                if (is_transfer(op)) {
                    expect(0 <= op.peer && op.peer < ranks() && op.peer != rank, "no such peer");
                    expect(op.kind == OpKind::send || op.payload == Payload::dkv || op.slot != 0,
                           "would overwrite the rank's own block");
                    expect(op.kind != OpKind::fetch || (op.peer == op.owner && op.payload == Payload::kv),
                           "fetches what is not the peer's own block");
                } else {
                    expect(op.peer == -1, "has a peer");
                }
                const bool uses_kv = op.kind == OpKind::attend || (is_transfer(op) && op.payload == Payload::kv);
                if (uses_kv) expect_slot(rank, i, op, op.slot, plan_.kv_slots, plan_.kv_slot_heads);
                if (op.payload == Payload::dkv)
                    expect_slot(rank, i, op, op.slot, plan_.gradient_slots, plan_.gradient_slot_heads);
                const bool uses_gradient = op.kind == OpKind::add || (op.kind == OpKind::attend && backward());
                expect(uses_gradient == (op.gradient_slot >= 0), "has a gradient slot, or lacks one");
                if (uses_gradient)
                    expect_slot(rank, i, op, op.gradient_slot, plan_.gradient_slots, plan_.gradient_slot_heads);
                if (op.kind == OpKind::attend)
                    expect(op.cells == cells(rank, op.owner) && op.cells > 0, "wrong cells");
                else
                    expect(op.cells == 0, "has cells");
                expect(backward() || (op.kind != OpKind::add && op.payload == Payload::kv), "gradient in forward pass");
                expect(!op.fused || (op.kind == OpKind::attend && compute && compute->kind == OpKind::attend),
                       "continues no attend");
                const bool merges = !backward() && schedule_.options().accumulation == Accumulation::partials;
                const bool follows_attend = compute && compute->kind == OpKind::attend && compute->owner == op.owner &&
                                            compute->heads == op.heads;
                if (op.kind == OpKind::merge) expect(merges && follows_attend, "merges no partial");
                if (op.lane == Lane::compute) {
                    expect(!merges || !compute || compute->kind != OpKind::attend || op.kind == OpKind::merge,
                           "comes before the partial of the last attend is merged");
                    compute = &op;
                }
            }
            if (compute && compute->kind == OpKind::attend && !backward() &&
                schedule_.options().accumulation == Accumulation::partials)
                found_.push_back(fmt::format("rank {}: the last partial is not merged", rank));
        }
    }

    void expect_slot(int rank, std::size_t i, const Op& op, int slot, int slots, int slot_heads) {
        if (slot < 0 || slot > slots)
            found_.push_back(name_of(rank, i, op) + fmt::format(": slot {} of {}", slot, slots));
        else if (slot > 0 && op.heads.count() > slot_heads)
            found_.push_back(name_of(rank, i, op) + fmt::format(": more heads than slot {} holds", slot));
    }

    void check_messages() {
        struct Message {
            std::string name;
            int owner;
            HeadRange heads;
            std::int64_t bytes;
        };
        using Key = std::tuple<int, int, Payload>;
        std::map<Key, std::array<std::vector<Message>, 2>> traffic;
        for_each_op([&](int rank, std::size_t i, const Op& op) {
            const Message message{name_of(rank, i, op), op.owner, op.heads, op.bytes};
            if (op.kind == OpKind::send) traffic[{rank, op.peer, op.payload}][0].push_back(message);
            if (op.kind == OpKind::receive) traffic[{op.peer, rank, op.payload}][1].push_back(message);
        });
        for (const auto& [key, messages] : traffic) {
            const auto& [sent, received] = messages;
            if (sent.size() != received.size())
                found_.push_back(fmt::format("{} sends of {} from rank {} to {}, {} receives", sent.size(),
                                             to_string(std::get<2>(key)), std::get<0>(key), std::get<1>(key),
                                             received.size()));
            for (std::size_t k = 0; k < std::min(sent.size(), received.size()); ++k)
                if (sent[k].owner != received[k].owner || !(sent[k].heads == received[k].heads) ||
                    sent[k].bytes != received[k].bytes)
                    found_.push_back(sent[k].name + " meets " + received[k].name);
        }
    }

    struct Access {
        std::size_t op;
        Payload payload;
        int slot;
        bool writes;
    };

    std::vector<Access> accesses(int rank) const {
        std::vector<Access> all;
        for (std::size_t i = 0; i < ops(rank).size(); ++i) {
            const auto& op = ops(rank)[i];
            if (op.kind == OpKind::attend) {
                all.push_back({i, Payload::kv, op.slot, false});
                if (op.gradient_slot >= 0) all.push_back({i, Payload::dkv, op.gradient_slot, true});
            } else if (op.kind == OpKind::add) {
                all.push_back({i, Payload::dkv, op.slot, true});
                all.push_back({i, Payload::dkv, op.gradient_slot, false});
            } else if (is_transfer(op)) {
                all.push_back({i, op.payload, op.slot, op.kind != OpKind::send});
            }
        }
        return all;
    }

    void check_order() {
        for (int rank = 0; rank < ranks(); ++rank) {
            const auto before = order_of(ops(rank));
            const auto all = accesses(rank);
            for (auto a = all.begin(); a != all.end(); ++a)
                for (auto b = std::next(a); b != all.end(); ++b) {
                    const bool conflict =
                        a->op != b->op && a->payload == b->payload && a->slot == b->slot && (a->writes || b->writes);
                    if (conflict && !before[b->op][a->op])
                        found_.push_back(name_of(rank, b->op, ops(rank)[b->op]) + " need not wait for " +
                                         name_of(rank, a->op, ops(rank)[a->op]) + ", both of one slot");
                }
        }
    }

    /// What one head of a slot holds: nothing known (owner -1), a block, or a gradient with the number of times that
    /// each rank's part is in it.
    struct Content {
        int owner = -1;
        std::vector<int> parts;
        friend bool operator==(const Content&, const Content&) = default;
    };

    struct RankState {
        std::array<std::map<int, std::vector<Content>>, 2> slots;  // by payload, slot and head
        std::vector<bool> done;
        std::array<std::vector<std::size_t>, lane_count> queue;
        std::array<std::size_t, lane_count> front{};
        std::map<std::pair<int, int>, int> attended;  // by owner and head
    };

    std::vector<Content>& slot(RankState& state, Payload payload, int number) const {
        auto& contents = state.slots[static_cast<std::size_t>(payload)][number];
        contents.resize(static_cast<std::size_t>(heads()));
        return contents;
    }

    /// Puts contents into the heads of a slot; a scratch slot holds nothing else from then on.
    void put(RankState& state, Payload payload, int number, HeadRange range,
             const std::vector<Content>& contents) const {
        auto& to = slot(state, payload, number);
        if (number > 0) to.assign(to.size(), {});
        std::copy(contents.begin() + range.begin, contents.begin() + range.end, to.begin() + range.begin);
    }

    void expect_content(int rank, std::size_t i, const Op& op, Payload payload, int number) {
        const auto& contents = slot(state_[static_cast<std::size_t>(rank)], payload, number);
        for (int head = op.heads.begin; head < op.heads.end; ++head)
            if (contents[static_cast<std::size_t>(head)].owner != op.owner)
                found_.push_back(name_of(rank, i, op) + fmt::format(": {} slot {} holds head {} of the block of {}",
                                                                    to_string(payload), number, head,
                                                                    contents[static_cast<std::size_t>(head)].owner));
    }

    void start() {
        state_.assign(static_cast<std::size_t>(ranks()), {});
        for (int rank = 0; rank < ranks(); ++rank) {
            auto& state = state_[static_cast<std::size_t>(rank)];
            state.done.resize(ops(rank).size());
            for (std::size_t i = 0; i < ops(rank).size(); ++i)
                state.queue[static_cast<std::size_t>(ops(rank)[i].lane)].push_back(i);
            slot(state, Payload::kv, 0).assign(static_cast<std::size_t>(heads()), {rank, {}});
            const std::vector<int> none(static_cast<std::size_t>(ranks()));
            slot(state, Payload::dkv, 0).assign(static_cast<std::size_t>(heads()), {rank, none});
        }
    }

    bool ready(int rank, std::size_t i) const {
        const auto& done = state_[static_cast<std::size_t>(rank)].done;
        const auto after = ops(rank)[i].after();
        return std::all_of(after.begin(), after.end(),
                           [&](OpIndex index) { return done[static_cast<std::size_t>(index)]; });
    }

    /// The operation at the head of a lane, or -1.
    std::ptrdiff_t head_of(int rank, Lane lane) const {
        const auto& state = state_[static_cast<std::size_t>(rank)];
        const auto l = static_cast<std::size_t>(lane);
        return state.front[l] < state.queue[l].size() ? static_cast<std::ptrdiff_t>(state.queue[l][state.front[l]])
                                                      : -1;
    }

    void finish(int rank, std::size_t i) {
        auto& state = state_[static_cast<std::size_t>(rank)];
        state.done[i] = true;
        ++state.front[static_cast<std::size_t>(ops(rank)[i].lane)];
    }

    void execute() {
        start();
        for (bool progress = true; progress && found_.empty();) {
            progress = false;
            for (int rank = 0; rank < ranks(); ++rank)
                for (int lane = 0; lane < lane_count; ++lane)
                    while (found_.empty() && advance(rank, static_cast<Lane>(lane))) progress = true;
        }
        if (!found_.empty()) return;
        for_each_op([&](int rank, std::size_t i, const Op& op) {
            if (!state_[static_cast<std::size_t>(rank)].done[i])
                found_.push_back("deadlock: " + name_of(rank, i, op) + " never runs");
        });
        if (found_.empty()) check_result();
    }

    /// Runs the next operation of a lane if it may begin; a receive runs with its send.
    bool advance(int rank, Lane lane) {
        const auto next = head_of(rank, lane);
        if (next < 0 || !ready(rank, static_cast<std::size_t>(next))) return false;
        const auto i = static_cast<std::size_t>(next);
        const auto& op = ops(rank)[i];
        auto& state = state_[static_cast<std::size_t>(rank)];
        switch (op.kind) {
            case OpKind::receive: return false;
            case OpKind::send: {
                const auto theirs = head_of(op.peer, op.payload == Payload::kv ? Lane::receive_kv : Lane::receive_dkv);
                if (theirs < 0 || !ready(op.peer, static_cast<std::size_t>(theirs))) return false;
                const auto j = static_cast<std::size_t>(theirs);
                const auto& receive = ops(op.peer)[j];
                if (receive.kind != OpKind::receive || receive.peer != rank) return false;
                expect_content(rank, i, op, op.payload, op.slot);
                put(state_[static_cast<std::size_t>(op.peer)], op.payload, receive.slot, op.heads,
                    slot(state, op.payload, op.slot));
                finish(op.peer, j);
                break;
            }
            case OpKind::fetch:
                put(state, op.payload, op.slot, op.heads,
                    slot(state_[static_cast<std::size_t>(op.peer)], Payload::kv, 0));
                break;
            case OpKind::attend: {
                expect_content(rank, i, op, Payload::kv, op.slot);
                for (int head = op.heads.begin; head < op.heads.end; ++head) ++state.attended[{op.owner, head}];
                if (!backward()) break;
                std::vector<int> own_part(static_cast<std::size_t>(ranks()));
                own_part[static_cast<std::size_t>(rank)] = 1;
                put(state, Payload::dkv, op.gradient_slot, op.heads,
                    std::vector<Content>(static_cast<std::size_t>(heads()), {op.owner, own_part}));
                break;
            }
            case OpKind::add: {
                expect_content(rank, i, op, Payload::dkv, op.slot);
                expect_content(rank, i, op, Payload::dkv, op.gradient_slot);
                if (!found_.empty()) return false;
                const auto& from = slot(state, Payload::dkv, op.gradient_slot);
                auto& to = slot(state, Payload::dkv, op.slot);
                for (auto head = static_cast<std::size_t>(op.heads.begin);
                     head < static_cast<std::size_t>(op.heads.end); ++head)
                    std::transform(from[head].parts.begin(), from[head].parts.end(), to[head].parts.begin(),
                                   to[head].parts.begin(), std::plus<>());
                break;
            }
            case OpKind::merge: break;
        }
        finish(rank, i);
        return true;
    }

    void check_result() {
        for (int rank = 0; rank < ranks(); ++rank) {
            auto& state = state_[static_cast<std::size_t>(rank)];
            for (int head = 0; head < heads(); ++head) {
                for (int owner = 0; owner < ranks(); ++owner) {
                    const int times = state.attended[{owner, head}], right = cells(rank, owner) > 0;
                    if (times != right)
                        found_.push_back(fmt::format("rank {} attends to head {} of the block of {} {} times, not {}",
                                                     rank, head, owner, times, right));
                }
                if (!backward()) continue;
                const auto& gradient = slot(state, Payload::dkv, 0)[static_cast<std::size_t>(head)];
                for (int other = 0; other < ranks(); ++other) {
                    const int times = gradient.parts[static_cast<std::size_t>(other)], right = cells(other, rank) > 0;
                    if (gradient.owner != rank || times != right)
                        found_.push_back(
                            fmt::format("gradient of head {} of rank {} holds rank {}'s part {} times, "
                                        "not {}",
                                        head, rank, other, times, right));
                }
            }
        }
    }

    const Schedule& schedule_;
    const Program& program_;
    const CellTable& cells_;
    SlotPlan plan_;
    std::vector<RankState> state_;
    std::vector<std::string> found_;
};

}  // namespace

Program program_of(const Schedule& schedule) {
    Program program;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        program.emplace_back();
        auto stream = schedule.ops(rank);
        while (const Op* op = stream.next()) program.back().push_back(*op);
    }
    return program;
}

CellTable count_cells(const Mask& mask, const Layout& layout) {
    CellTable cells;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        cells.emplace_back();
        for (int owner = 0; owner < layout.ranks(); ++owner)
            cells.back().push_back(count_visible(mask, layout.positions(rank), layout.positions(owner)));
    }
    return cells;
}

std::vector<std::string> violations(const Schedule& schedule, const Program& program, const CellTable& cells) {
    return Checker(schedule, program, cells).run();
}

bool happens_before(const std::vector<Op>& ops, OpIndex first, OpIndex second) {
    return order_of(ops)[static_cast<std::size_t>(second)][static_cast<std::size_t>(first)];
}

}  // namespace ringlab::layouts::testing
