#include "gpu/joined_launches.hpp"

#include <algorithm>
#include <set>

namespace ringlab::gpu {

using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

AttendShape attend_shape(const layouts::Problem& problem, layouts::HeadRange rows, layouts::HeadRange keys) {
    AttendShape shape;
    shape.batch = problem.batch;
    shape.kv_heads = keys.count();
    shape.query_heads_per_kv_head = rows.count() / keys.count();
    shape.head_dim = problem.head_dim;
    shape.value_dim = problem.value_dim;
    shape.scale = problem.effective_scale();
    shape.soft_cap = problem.soft_cap;
    shape.dtype = problem.dtype;
    return shape;
}

std::size_t JoinedLaunch::place_of(std::size_t attend) const {
    return static_cast<std::size_t>(std::lower_bound(attends.begin(), attends.end(), attend) - attends.begin());
}

JoinedLaunches::JoinedLaunches(const layouts::Schedule& pass, const layouts::RankProgram& program,
                               const PassMemory& memory, std::shared_ptr<const RowBounds> own_rows,
                               const Options& options)
    : pass_(pass), program_(program), options_(options) {
    const auto& list = options.list;
    if (resolve(list.family, list.head_dim, list.value_dim) != KernelFamily::hopper) return;
    for (const auto& join : program.joins) {
        if (!can_join(join)) continue;
        if (options_.waits != JoinedWaits::apart) {
            add(join, memory, own_rows);
            continue;
        }
        std::vector<std::size_t> ahead, rest;
        for (const auto attend : join) (op(attend).after().empty() ? ahead : rest).push_back(attend);
        for (auto* part : {&ahead, &rest})
            if (!part->empty()) add(*part, memory, own_rows);
    }
}

bool JoinedLaunches::can_join(const std::vector<std::size_t>& attends) const {
    const auto& first = op(attends.front());
    return std::ranges::all_of(attends, [&](std::size_t attend) {
        const auto& next = op(attend);
        const bool own_rows = next.rows().block == pass_.row_block(program_.rank) && next.slot(Pool::q) == 0;
        // Each with an output of its own is no one softmax.
        const bool one_state = program_.pass == Pass::backward || next.slot(Pool::output) == 0;
        return own_rows && one_state && pass_.is_whole(next.rows()) && pass_.is_whole(next.part) &&
               next.part.heads.count() == first.part.heads.count() &&
               next.rows().heads.count() == first.rows().heads.count();
    });
}

void JoinedLaunches::add(std::vector<std::size_t> attends, const PassMemory& memory,
                         const std::shared_ptr<const RowBounds>& rows) {
    JoinedLaunch launch;
    launch.rows = op(attends.front()).rows().heads;
    launch.keys = op(attends.front()).part.heads;
    const auto include = [](layouts::HeadRange& all, layouts::HeadRange more) {
        all = {std::min(all.begin, more.begin), std::max(all.end, more.end)};
    };
    launch.first = launch.last = false;
    // One wait for each block is all that the kernel has.
    launch.waits_inside = options_.waits == JoinedWaits::inside;
    for (const auto attend : attends) {
        const auto& next = op(attend);
        include(launch.rows, next.rows().heads);
        include(launch.keys, next.part.heads);
        launch.first |= next.begins;
        launch.last |= next.ends;
        launch.waits_inside &= next.after_count <= 1;
    }
    launch.runs_ahead =
        launch.waits_inside && std::ranges::all_of(attends, [&](std::size_t attend) {
            return std::ranges::all_of(op(attend).after(), [&](layouts::OpIndex before) {
                const auto& transfer = program_.code[size(before)];
                return transfer.op.kind == OpKind::fetch && transfer.partner < 0 && transfer.op.after_count == 0;
            });
        });
    std::set<std::size_t> awaited;  // by others than the compute lane
    for (const auto& instruction : program_.code)
        if (instruction.op.transfers())
            for (const auto before : instruction.op.after()) awaited.insert(size(before));

    std::vector<JoinedWork::Block> blocks;
    for (const auto attend : attends) {
        const auto& instruction = program_.code[attend];
        const auto& block = instruction.op.part;
        const auto kv = memory.place(instruction, Pool::kv), dkv = memory.place(instruction, Pool::dkv);
        JoinedWork::Block one{.owner = block.block,
                              .keys = pass_.block(block.block),
                              .first_head = block.heads.begin - launch.keys.begin,
                              .k = memory.view(kv),
                              .v = memory.view(kv, 1),
                              .dk = {},
                              .dv = {}};
        one.arrives = launch.waits_inside && instruction.op.after_count > 0;
        if (program_.pass == Pass::backward) {
            one.dk = memory.view(dkv);
            one.dv = memory.view(dkv, 1);
            one.is_awaited = awaited.contains(attend);
        }
        blocks.push_back(one);
        of_attend_[attend] = launches_.size();
        if (one.arrives) waiting_.emplace(size(instruction.op.after().front()), attend);
    }
    launch.attends = std::move(attends);
    const auto keys_each = op(launch.attends.front()).part.heads.count();
    auto list = options_.list;
    list.family = KernelFamily::hopper;
    launch.work =
        std::make_unique<JoinedWork>(pass_.mask(), rows, blocks,
                                     JoinedWork::Options{list, attend_shape(pass_.problem(), launch.rows, launch.keys),
                                                         keys_each, options_.most_wait});
    launches_.push_back(std::move(launch));
}

const JoinedLaunch* JoinedLaunches::find(std::size_t instruction) const {
    const auto found = of_attend_.find(instruction);
    return found == of_attend_.end() ? nullptr : &launches_[found->second];
}

void JoinedLaunches::begin_pass() {
    for (auto& launch : launches_) launch.work->begin_pass();
}

void JoinedLaunches::arrived(std::size_t transfer, cudaStream_t stream) const {
    const auto [begin, end] = waiting_.equal_range(transfer);
    for (auto waiting = begin; waiting != end; ++waiting) {
        const auto& launch = *find(waiting->second);
        launch.work->arrived(launch.place_of(waiting->second), stream);
    }
}

bool JoinedLaunches::wait_until_ended(std::size_t attend, cudaStream_t stream) const {
    const auto* joined = find(attend);
    if (!joined || program_.pass == Pass::forward) return false;
    joined->work->wait_until_ended(joined->place_of(attend), stream);
    return true;
}

void JoinedLaunches::require_arrived() const {
    for (const auto& launch : launches_) {
        const auto late = launch.work->late();
        if (!late) continue;
        const auto transfer = op(launch.attends[*late]).after().front();
        fail(
            "a launch of {} attends has waited {} s for what {} brings; its peer is dead or stuck, or the time-out is "
            "too "
            "short",
            launch.attends.size(), std::chrono::duration<double>(options_.most_wait).count(),
            describe(program_.rank, transfer, program_.code[size(transfer)]));
    }
}

void JoinedLaunches::give_up() noexcept {
    for (auto& launch : launches_) launch.work->give_up();
}

std::int64_t JoinedLaunches::device_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& launch : launches_) bytes += launch.work->device_bytes();
    return bytes;
}

}  // namespace ringlab::gpu
