#include "layouts/schedules/schedule.hpp"

#include <algorithm>

namespace ringlab::layouts {
Schedule::Schedule(Problem problem, Mask mask, Layout layout, ScheduleOptions options)
    : problem_(std::move(problem)), mask_(std::move(mask)), layout_(std::move(layout)), options_(std::move(options)) {
    problem_.validate();
    require(problem_.tokens == mask_.tokens() && problem_.tokens == layout_.tokens(),
            "the problem has {} tokens, mask {} has {} and layout {} has {}; they must agree", problem_.tokens,
            mask_.name(), mask_.tokens(), layout_.name(), layout_.tokens());
    for (int owner = 0; owner < ranks(); ++owner)
        blocks_.push_back({{}, layout_.shard_tokens(owner), KeyCounter(layout_.shard(owner))});
    if (problem_.queries.empty()) return;
    first_row_block_ = ranks();
    if (options_.keeps_rows_together)
        add_blocks_of_whole_intervals();
    else
        for (int owner = 0; owner < ranks(); ++owner) add_block(intersect_runs(layout_.shard(owner), problem_.queries));
}

std::string Schedule::lane_name(Lane lane) const {
    if (lane == compute_lane) return "compute";
    return fmt::format("{} {}", lane % 2 == 1 ? "send" : "receive",
                       channels_.at(static_cast<std::size_t>(lane - 1) / 2));
}

std::span<const Run> Schedule::block(int index) const {
    return index < ranks() ? layout_.shard(index) : blocks_[static_cast<std::size_t>(index)].runs;
}

std::vector<Run> Schedule::runs(const Part& part) const {
    std::vector<Run> runs;
    for_each_part(block(part.block), part.tokens.begin, part.tokens.end, [&](const Run& run) { runs.push_back(run); });
    return runs;
}

std::int64_t Schedule::pair_count(int rows_block, int keys_block) const {
    return visible_pairs(mask_, block(rows_block), blocks_[static_cast<std::size_t>(keys_block)].keys);
}

bool Schedule::sees(int rows_block, int keys_block) const {
    return any_visible(mask_, block(rows_block), blocks_[static_cast<std::size_t>(keys_block)].keys);
}

std::int64_t Schedule::pair_count(const Part& rows, const Part& keys) const {
    if (is_whole(rows) && is_whole(keys)) return pair_count(rows.block, keys.block);
    return visible_pairs(mask_, runs(rows), KeyCounter(runs(keys)));
}

DType Schedule::dtype(Pool pool, int slot) const {
    if (const auto* group = slot_group(pool, slot)) return group->dtype;
    return description(pool).sum ? accumulator() : problem_.dtype;
}

const SlotGroup* Schedule::slot_group(Pool pool, int slot) const {
    int end = 1;
    for (const auto& group : slots_)
        if (group.pool == pool && slot > 0 && slot < (end += group.count)) return &group;
    return nullptr;
}

std::int64_t Schedule::token_bytes(Pool pool, int slot) const {
    std::int64_t sum = 0;
    for (const auto& tensor : tensors(pool))
        sum += width(problem_, tensor) * bytes_of(tensor.statistic ? accumulator() : dtype(pool, slot));
    return sum;
}

double Schedule::flop(const Op& attend) const {
    const auto flop_per_pair =
        options_.pass == Pass::forward ? problem_.forward_flop_per_pair() : problem_.backward_flop_per_pair();
    return flop_per_pair * static_cast<double>(attend.pair_count) *
           static_cast<double>(attend.rows().heads.count() * problem_.batch);
}

std::int64_t Schedule::scratch_bytes() const {
    std::int64_t sum = 0;
    std::array<int, pool_count> last{};
    for (const auto& group : slots_) {
        auto& slot = last[index(static_cast<int>(group.pool))] += group.count;
        sum += group.count * bytes(group.pool, slot, {0, {0, group.heads}, {0, group.tokens}});
    }
    return sum;
}

int Schedule::farthest_needed(int rank) const {
    int distance = ranks() - 1;
    while (distance >= 0 && !needs(rank, behind(rank, distance))) --distance;
    return distance;
}

void Schedule::find_rank_symmetry() {
    const int other = ranks() - 1;
    rank_symmetric_ = problem_.queries.empty() && pairs_depend_on_rank_order(mask_, layout_) && needs(0, 0) &&
                      needs(0, other) && needs(other, 0);
}

HeadRange Schedule::query_heads(HeadRange kv_heads) const {
    const auto group = static_cast<int>(problem_.query_heads_per_kv_head());
    return {kv_heads.begin * group, kv_heads.end * group};
}

int Schedule::head_groups_of_fused_launch(int given) const {
    const int heads = kv_heads().count();
    if (options_.pass == Pass::backward) return heads % 2 == 0 ? 2 : 1;
    if (given > 0) return given;
    constexpr std::int64_t worth_a_message = std::int64_t{4} << 20;  // bytes
    std::int64_t head_bytes = 0;
    for (int owner = 0; owner < ranks(); ++owner)
        head_bytes = std::max(head_bytes, bytes(Pool::kv, 0, part(owner, {0, 1})));
    int groups = heads;
    while (groups > 1 && (heads % groups != 0 || heads / groups * head_bytes < worth_a_message)) --groups;
    return groups;
}

HeadRange Schedule::heads_of_group(int group, int groups) const {
    const int size = kv_heads().count() / groups;
    return {group * size, (group + 1) * size};
}

void Schedule::set_channels(std::vector<std::string> names, const std::vector<std::string>& backward_names) {
    if (options_.pass == Pass::backward) names.insert(names.end(), backward_names.begin(), backward_names.end());
    set_channels(std::move(names));
}

void Schedule::add_slots(Pool pool, int count, int heads, std::int64_t tokens, DType dtype) {
    if (count > 0) slots_.push_back({pool, count, heads, tokens, dtype});
}

void Schedule::add_slots(Pool pool, int count, int heads, std::int64_t tokens) {
    add_slots(pool, count, heads, tokens, dtype(pool, 0));
}

void Schedule::add_blocks_of_whole_intervals() {
    std::vector<std::vector<Run>> rows(static_cast<std::size_t>(ranks()));
    for (const auto& interval : problem_.queries)
        rows[static_cast<std::size_t>(layout_.owner_of(interval.end - 1).rank)].push_back(
            {interval.begin, 1, interval.size()});
    for (auto& runs : rows) add_block(std::move(runs));
}

void Schedule::add_block(std::vector<Run> runs) {
    const auto tokens = count_of(runs);
    const KeyCounter keys(runs);
    blocks_.push_back({std::move(runs), tokens, keys});
}

std::int64_t Schedule::largest_rows() const {
    std::int64_t most = 0;
    for (int owner = 0; owner < ranks(); ++owner) most = std::max(most, block_tokens(row_block(owner)));
    return most;
}

Op Schedule::attend(int step, const Part& rows, const Part& keys, int row_slot, int kv_slot) const {
    Op op;
    op.kind = OpKind::attend;
    op.step = step;
    op.part = keys;
    op.rows() = rows;
    for (const auto pool : {Pool::q, Pool::state, Pool::output, Pool::dout, Pool::dq}) op.slot(pool) = row_slot;
    op.slot(Pool::kv) = kv_slot;
    if (partials()) {
        ++op.slot(Pool::output);
        op.begins = op.ends = true;
    }
    op.pair_count = pair_count(rows, keys);
    return op;
}

Op Schedule::from_source(OpKind kind, Pool pool, int step, const Part& part, int slot, const Part& read,
                         int source) const {
    Op op;
    op.kind = kind;
    op.pool = pool;
    op.step = step;
    op.part = part;
    op.slot(pool) = slot;
    op.read() = read;
    op.source = source;
    op.bytes = bytes(op.source_pool(), source, read);
    return op;
}

Op Schedule::expand(int step, const Part& keys, int slot, int source) const {
    return from_source(OpKind::expand, Pool::kv, step, keys, slot, {keys.block, {0, 1}, keys.tokens}, source);
}

Op Schedule::compress(int step, const Part& keys, int slot, int latent_slot, int source) const {
    auto op = from_source(OpKind::compress, Pool::dlatent, step, {keys.block, {0, 1}, keys.tokens}, slot, keys, source);
    op.slot(Pool::latent) = latent_slot;
    return op;
}

Op Schedule::transfer(OpKind kind, int channel, Pool pool, int step, int peer, const Part& part, int slot) const {
    Op op;
    op.kind = kind;
    op.pool = pool;
    op.channel = static_cast<std::int16_t>(channel);
    op.step = step;
    op.peer = peer;
    op.part = part;
    op.slot(pool) = slot;
    op.bytes = bytes(pool, slot, part);
    return op;
}

Registry<ScheduleFactory>& schedules() {
    static Registry<ScheduleFactory> registry("schedule");
    return registry;
}

std::unique_ptr<Schedule> make_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                        const ScheduleOptions& options) {
    const auto [factory, arguments] = schedules().find_spec(options.schedule);
    if (problem.latent.is_given() && Spec::parse(options.schedule).name != expanded_schedule_name)
        return make_latent_schedule({problem, mask, layout, options});
    return factory(arguments, {problem, mask, layout, options});
}

int parse_head_groups(const std::string& arguments, const Problem& problem) {
    if (arguments.empty()) return 0;
    const auto groups = parse_count(arguments, "the number of head groups", 1);
    require(groups <= problem.kv_heads, "{} head groups of {} kv heads; at most one group per kv head", groups,
            problem.kv_heads);
    require(problem.kv_heads % groups == 0,
            "{} kv heads do not divide into {} head groups; the groups must divide the kv heads", problem.kv_heads,
            groups);
    return static_cast<int>(groups);
}

namespace {

/// Whether the runs with index `number` of all ranks are ordered by rank, ascending or descending, either one after
/// another or interleaved, and none begins before `begin`, where the runs of lower index end. Sets `end` to the end of
/// these runs.
bool runs_are_in_rank_order(const Layout& layout, std::size_t number, std::int64_t begin, std::int64_t& end) {
    const auto run = [&](int rank) { return layout.shard(rank)[number]; };
    const auto like = run(0);
    auto least = like.first, most = like.first;
    bool rises = true, falls = true, apart = true;
    for (int rank = 1; rank < layout.ranks(); ++rank) {
        const auto before = run(rank - 1), now = run(rank);
        if (now.count != like.count || now.stride != like.stride) return false;
        rises &= before.first < now.first;
        falls &= before.first > now.first;
        apart &= before.last() < now.first || now.last() < before.first;
        least = std::min(least, now.first);
        most = std::max(most, now.first);
    }
    end = most + like.last() - like.first + 1;
    return least >= begin && (rises || falls) && (apart || most - least < like.stride);
}

}  // namespace

bool pairs_depend_on_rank_order(const Mask& mask, const Layout& layout) {
    const auto& rule = mask.segments().front();
    if (layout.largest_shard() * layout.ranks() != layout.tokens() || !mask.all_keys_valid() ||
        mask.segments().size() != 1 || rule.sink != 0 || !rule.earlier.empty() || rule.begin != Bound{0, 0})
        return false;
    if (rule.end == Bound{mask.tokens(), 0}) return true;
    if (rule.end != Bound{1, 1}) return false;
    const auto runs = layout.shard(0).size();
    for (int rank = 1; rank < layout.ranks(); ++rank)
        if (layout.shard(rank).size() != runs) return false;
    std::int64_t end = 0;
    for (std::size_t number = 0; number < runs; ++number)
        if (!runs_are_in_rank_order(layout, number, end, end)) return false;
    return true;
}

void require_same_problem(const Schedule& forward, const Schedule& backward) {
    auto problem = forward.problem(), other = backward.problem();
    for (auto* one : {&problem, &other}) one->scale = one->effective_scale();
    const bool same_problem = problem == other && forward.keeps(Pool::kv) == backward.keeps(Pool::kv) &&
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
