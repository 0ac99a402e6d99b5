#include "layouts/program/rank_checks.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ringlab::layouts {

bool same_tokens(const Schedule& schedule, const Part& a, const Part& b) {
    return (a.block == b.block && a.tokens == b.tokens) || schedule.runs(a) == schedule.runs(b);
}

namespace {

// Checks of each operation of one rank by itself: peers, bytes, heads, slots. SlotContents checks how they interact
// within a rank, resolve() how those of all ranks do. All throw Error that says what is malformed.

void check_bytes(const Schedule& schedule, const Op& op) {
    const auto bytes = op.transfers() ? schedule.bytes(op.pool, op.slot(), op.part)
                                      : schedule.bytes(op.source_pool(), op.source, op.read());
    require(op.bytes == bytes, "it has {} bytes; its part has {}", op.bytes, bytes);
    const bool same_heads = op.source_pool() != op.pool || op.read().heads == op.part.heads;
    const bool same = op.transfers() || (same_heads && same_tokens(schedule, op.read(), op.part));
    require(same, "it reads other tokens or heads than it writes");
}

void check_heads(const Schedule& schedule, const Op& attend) {
    const auto group = static_cast<int>(schedule.problem().query_heads_per_kv_head());
    const auto rows = attend.rows().heads, keys = attend.part.heads;
    const bool all = rows.begin == keys.begin * group && rows.end == keys.end * group;
    const bool some_of_one = keys.count() == 1 && keys.begin * group <= rows.begin && rows.end <= keys.end * group;
    require(all || some_of_one, "query heads {}..{} do not read K,V heads {}..{} as one block", rows.begin,
            rows.end - 1, keys.begin, keys.end - 1);
}

void check_operand(const Schedule& schedule, int rank, const Operand& operand) {
    const auto& [pool, slot, part, access, last] = operand;
    const auto all = heads_of(schedule.problem(), pool);
    require(0 <= part.block && part.block < schedule.blocks(), "there is no block {}", part.block);
    require(0 <= part.heads.begin && part.heads.begin < part.heads.end && part.heads.end <= all,
            "there are no heads {}..{}", part.heads.begin, part.heads.end - 1);
    const auto tokens = schedule.block_tokens(part.block);
    require(0 <= part.tokens.begin && part.tokens.begin <= part.tokens.end && part.tokens.end <= tokens,
            "block {} has no tokens {}..{}", part.block, part.tokens.begin, part.tokens.end - 1);
    if (slot == 0) {
        require(schedule.keeps(pool), "the rank has no {} of its own", to_string(pool));
        const int own = schedule.own_block(pool, rank);
        require(part.block == own, "{} slot 0 is that of block {}, not {}", to_string(pool), own, part.block);
        return;
    }
    const auto* group = schedule.slot_group(pool, slot);
    int count = 0;
    for (const auto& one : schedule.slots()) count += one.pool == pool ? one.count : 0;
    require(group != nullptr, "it uses {} slot {}, but the schedule asks for scratch slots 1..{}", to_string(pool),
            slot, count);
    require(part.heads.count() <= group->heads && tokens <= group->tokens,
            "{} slot {} has room for {} heads of {} tokens, not {} of {}", to_string(pool), slot, group->heads,
            group->tokens, part.heads.count(), tokens);
}

void check_operation(const Schedule& schedule, int rank, OpIndex op_index, const Op& op) {
    for (const auto before : op.after()) require(before < op_index, "it waits for operation {}, a later one", before);
    if (op.transfers()) {
        require(0 <= op.peer && op.peer < schedule.ranks() && op.peer != rank, "there is no such peer");
        require(0 <= op.channel && op.lane() < schedule.lanes(), "channel {} of {} channels", op.channel,
                schedule.channels().size());
    }
    const bool backward = schedule.options().pass == Pass::backward;
    const bool may_add = (op.kind == OpKind::attend && backward) || op.kind == OpKind::compress;
    require(!op.adds || may_add, "only attends of the backward pass and compress operations may add to a gradient");
    const bool latent = schedule.problem().latent.is_given();
    require(op.kind != OpKind::expand || latent, "the problem has no latent");
    require(op.kind != OpKind::compress || (latent && backward), "this pass has no gradient of a latent");
    if (op.kind != OpKind::attend) check_bytes(schedule, op);
    if (op.kind == OpKind::fetch)
        require((op.pool == Pool::kv || op.pool == Pool::latent) && op.part.block == op.peer,
                "it must fetch the peer's own K,V or latent");
    if (op.kind == OpKind::receive || op.kind == OpKind::fetch || op.kind == OpKind::copy)
        require(op.slot() > 0 || !is_input(op.pool), "it would overwrite the rank's own {}", to_string(op.pool));
    if (op.kind == OpKind::attend) check_heads(schedule, op);
    for (const auto& operand : Operands(op, schedule.options().pass)) check_operand(schedule, rank, operand);
}

/// Vector clocks of one rank: which of its operations are certain to have ended before another begins, because of the
/// order of lanes and of dependencies. Waiting for peers could only add order and is not considered.
class HappensBefore {
public:
    explicit HappensBefore(int lanes) : lanes_(index(lanes)), last_(lanes_, -1), length_(lanes_, 0) {}

    /// Adds the next operation in schedule order.
    void add(const Op& op) {
        const auto lane = index(op.lane());
        const auto begin = clocks_.size();
        clocks_.resize(begin + lanes_, 0);
        const auto follow = [&](OpIndex before) {
            if (before < 0) return;
            for (std::size_t l = 0; l < lanes_; ++l)
                clocks_[begin + l] = std::max(clocks_[begin + l], clocks_[index(before) * lanes_ + l]);
            const auto [its_lane, place] = places_[index(before)];
            clocks_[begin + its_lane] = std::max(clocks_[begin + its_lane], place + 1);
        };
        follow(last_[lane]);
        for (const auto before : op.after()) follow(before);
        last_[lane] = static_cast<OpIndex>(places_.size());
        places_.emplace_back(lane, length_[lane]++);
    }

    /// Whether operation `first` is certain to have ended before `second` begins.
    bool operator()(OpIndex first, OpIndex second) const {
        const auto [lane, place] = places_[index(first)];
        return clocks_[index(second) * lanes_ + lane] > place;
    }

private:
    static constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    std::size_t lanes_;
    std::vector<OpIndex> last_;                                 // by lane
    std::vector<std::int32_t> length_;                          // by lane
    std::vector<std::pair<std::size_t, std::int32_t>> places_;  // by operation: its lane and index in it
    std::vector<std::int32_t> clocks_;                          // by operation and lane: how many have ended
};

constexpr std::size_t index(Pool pool) { return static_cast<std::size_t>(pool); }

bool overlap(HeadRange a, HeadRange b) { return a.begin < b.end && b.begin < a.end; }
bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }

/// Follows what each slot of one rank holds, operation by operation, and which operations last accessed it, to check
/// that a schedule uses its slots correctly.
class SlotContents {
public:
    SlotContents(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {
        std::array<int, pool_count> scratch{};
        for (const auto& group : schedule.slots()) scratch[index(group.pool)] += group.count;
        for (std::size_t pool = 0; pool < slots_.size(); ++pool) {
            slots_[pool].resize(static_cast<std::size_t>(scratch[pool]) + 1);
            auto& own = slots_[pool].front();
            own.block = schedule.own_block(static_cast<Pool>(pool), rank);
            own.heads = {0, heads_of(schedule.problem(), static_cast<Pool>(pool))};
        }
    }

    /// Notes that operation `which` accesses `operand`; returns the first head that the slot holds. Throws Error if the
    /// slot does not hold what is read, or if the access conflicts with that of an earlier operation and `before` does
    /// not put the two in order.
    int use(OpIndex op_index, const Operand& operand, const HappensBefore& before) {
        const auto& [pool, number, part, access, last] = operand;
        auto& slot = slots_[index(pool)][static_cast<std::size_t>(number)];
        const bool reads = access != Access::write, writes = access != Access::read;
        if (!reads) replace_contents(slot, operand);
        const Rectangle where{part.heads, part.tokens};
        if (reads) {
            require(slot.block == part.block && slot.heads.contains(part.heads),
                    "{} slot {} is read for heads {}..{} of block {}, but {}", to_string(pool), number,
                    part.heads.begin, part.heads.end - 1, part.block,
                    slot.block < 0 ? "nothing is in it"
                                   : fmt::format("holds heads {}..{} of block {}", slot.heads.begin, slot.heads.end - 1,
                                                 slot.block));
            const bool there = covered(where, slot.written);
            require(there || is_given(operand), "{} slot {} is read before all of it was written", to_string(pool),
                    number);
            if (number == 0 && !there) read_before_write_[index(pool)] = true;
        }
        check_order(op_index, operand, slot, before);
        if (writes) {
            std::erase_if(slot.visits, [&](const SlotAccess& visit) {
                return before(visit.op, op_index) &&
                       (visit.generation != slot.generation ||
                        (part.heads.contains(visit.where.heads) && part.tokens.begin <= visit.where.tokens.begin &&
                         visit.where.tokens.end <= part.tokens.end));
            });
        }
        if (writes || last)
            std::erase_if(slot.written, [&](const Rectangle& old) {
                return part.heads.contains(old.heads) && part.tokens.begin <= old.tokens.begin &&
                       old.tokens.end <= part.tokens.end;
            });
        if (writes && !last) slot.written.push_back(where);
        const bool never_written = number == 0 && is_input(pool);
        if (!never_written) slot.visits.push_back({op_index, slot.generation, where, writes});
        return slot.heads.begin;
    }

    /// Throws Error if the running softmax of some rows was begun and never ended.
    void require_finished() const {
        for (const auto& slot : slots_[index(Pool::state)])
            require(slot.written.empty(), "rank {}: attends of rows of block {} begin and never end", rank_,
                    slot.block);
    }

    /// Whether slot 0 of a gradient must be 0 at the start: it is added to before it is written, or not all of it is
    /// ever written.
    bool needs_zeroed(Pool gradient) const {
        return schedule_.keeps(gradient) && (read_before_write_[index(gradient)] || !covers_own(gradient));
    }
    /// Whether some of slot 0 of the output is never written.
    bool has_unwritten_output() const { return !covers_own(Pool::output); }

private:
    struct Rectangle {
        HeadRange heads;
        Interval tokens;
    };
    struct SlotAccess {
        OpIndex op;
        int generation;
        Rectangle where;
        bool writes;
    };
    struct Slot {
        int generation = 0;  // counts how often the contents were replaced
        int block = -1;
        HeadRange heads;
        std::vector<Rectangle> written;
        std::vector<SlotAccess> visits;
    };

    static bool covered(Rectangle wanted, std::span<const Rectangle> by) {
        const auto& [heads, tokens] = wanted;
        if (heads.count() <= 0 || tokens.size() == 0) return true;
        for (std::size_t i = 0; i < by.size(); ++i) {
            const auto& piece = by[i];
            if (!overlap(heads, piece.heads) || !overlap(tokens, piece.tokens)) continue;
            const auto rest = by.subspan(i + 1);
            const Interval middle{std::max(tokens.begin, piece.tokens.begin), std::min(tokens.end, piece.tokens.end)};
            const HeadRange shared{std::max(heads.begin, piece.heads.begin), std::min(heads.end, piece.heads.end)};
            return covered({heads, {tokens.begin, middle.begin}}, rest) &&
                   covered({heads, {middle.end, tokens.end}}, rest) &&
                   covered({{heads.begin, shared.begin}, middle}, rest) &&
                   covered({{shared.end, heads.end}, middle}, rest);
        }
        return false;
    }

    /// With a latent, K and V are no inputs, because they are expanded from it.
    bool is_input(Pool pool) const {
        return layouts::is_input(pool) && (pool != Pool::kv || !schedule_.problem().latent.is_given());
    }

    /// Whether an operand may be read before it was written: the rank's own inputs, and its sums of gradients, which
    /// start from 0.
    bool is_given(const Operand& operand) const {
        return operand.slot == 0 &&
               (is_input(operand.pool) || operand.pool == Pool::dkv || operand.pool == Pool::dlatent);
    }

    bool covers_own(Pool pool) const {
        const auto& own = slots_[index(pool)].front();
        return covered({own.heads, {0, schedule_.block_tokens(own.block)}}, own.written);
    }

    /// A write to a scratch slot that is of another block, or of heads that the slot does not hold, discards its
    /// contents.
    void replace_contents(Slot& slot, const Operand& operand) const {
        const auto& part = operand.part;
        const bool fits = slot.block == part.block && slot.heads.contains(part.heads);
        if (operand.slot == 0 || fits) return;
        ++slot.generation;
        slot.block = part.block;
        slot.heads = part.heads;
        slot.written.clear();
    }

    void check_order(OpIndex op_index, const Operand& operand, const Slot& slot, const HappensBefore& before) const {
        const bool writes = operand.access != Access::read;
        for (const auto& visit : slot.visits) {
            if (visit.op == op_index || (!writes && !visit.writes) || before(visit.op, op_index)) continue;
            const bool apart =
                visit.generation == slot.generation &&
                (!overlap(visit.where.heads, operand.part.heads) || !overlap(visit.where.tokens, operand.part.tokens));
            require(apart, "nothing makes it wait for operation {}, which also accesses {} slot {}", visit.op,
                    to_string(operand.pool), operand.slot);
        }
    }

    const Schedule& schedule_;
    int rank_;
    std::array<bool, pool_count> read_before_write_{};
    std::array<std::vector<Slot>, pool_count> slots_;
};

/// Checks one rank's operations in schedule order. This is valid for every order that lanes and dependencies allow,
/// because it is an error if they do not put conflicting accesses in order.
class Resolver {
public:
    Resolver(const Schedule& schedule, int rank)
        : schedule_(schedule),
          before_(schedule.lanes()),
          arrival_order_(schedule.lanes()),
          slots_(schedule, rank),
          fused_launches_(schedule.options().pass, schedule.lanes()) {
        program_.rank = rank;
        program_.query_heads = static_cast<int>(schedule.problem().query_heads);
        program_.pass = schedule.options().pass;
    }

    RankProgram run() {
        auto stream = schedule_.ops(program_.rank);
        while (const auto* op = stream.next()) add(*op);
        program_.operations = program_.code.size();
        for (auto& instruction : program_.code) {
            const auto& op = instruction.op;
            instruction.may_arrive_early &= op.kind != OpKind::receive || !arrival_order_.matters(op.lane());
        }
        slots_.require_finished();
        program_.fused_launches = std::move(fused_launches_).found();
        if (schedule_.options().pass == Pass::backward)
            for (const auto pool : {Pool::dkv, Pool::dlatent})
                if (slots_.needs_zeroed(pool)) program_.needs_zeroed.push_back(pool);
        program_.has_unwritten_output = schedule_.options().pass == Pass::forward && slots_.has_unwritten_output();
        return std::move(program_);
    }

private:
    void add(const Op& op) {
        const auto op_index = static_cast<OpIndex>(program_.code.size());
        auto& instruction = program_.code.emplace_back();
        instruction.op = op;
        try {
            check_operation(schedule_, program_.rank, op_index, op);
            before_.add(op);
            fused_launches_.add(op);
            const Operands operands(op, schedule_.options().pass);
            arrival_order_.add(op_index, op, operands);
            for (const auto& operand : operands) {
                const bool is_source = op.has_source() && &operand + 1 == operands.end();
                const bool is_first = used_.emplace(operand.pool, operand.slot).second;
                if (op.kind == OpKind::receive)
                    instruction.may_arrive_early = is_first && operand.slot > 0 && !of_rows(operand.pool);
                const auto first = slots_.use(op_index, operand, before_);
                (is_source ? instruction.source_first_head : instruction.first_head[index(operand.pool)]) = first;
            }
        } catch (const Error& error) {
            fail("{}: {}", describe(program_.rank, op_index, op), error.what());
        }
    }

    const Schedule& schedule_;
    HappensBefore before_;
    ArrivalOrder arrival_order_;
    SlotContents slots_;
    FusedLaunchFinder fused_launches_;
    std::set<std::pair<Pool, int>> used_;  // slots used so far
    RankProgram program_;
};

}  // namespace

RankProgram resolve_rank(const Schedule& schedule, int rank) { return Resolver(schedule, rank).run(); }

void FusedLaunchFinder::finish() {
    if (launch_.attends.size() > 1) fused_launches_.push_back(std::move(launch_));
    launch_ = {};
    section_begin_ = 0;
}

void FusedLaunchFinder::add(const Op& op) {
    const auto self = needs_.size();
    std::size_t needs = 0;
    for (const auto before : op.after()) {
        const auto op_index = static_cast<std::size_t>(before);
        needs = std::max({needs, needs_[op_index], attends_[op_index] ? op_index + 1 : 0});
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
