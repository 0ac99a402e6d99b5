#include "gpu/ranks/fused_launches.hpp"

#include "layouts/basics/counts.hpp"

#include <algorithm>
#include <set>

namespace ringlab::gpu {

using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

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
    shape.dropout = problem.dropout;
    shape.first_query_head = rows.begin;
    return shape;
}

std::size_t FusedAttends::block_of(std::size_t attend) const {
    return static_cast<std::size_t>(std::lower_bound(attends.begin(), attends.end(), attend) - attends.begin());
}

FusedLaunches::FusedLaunches(const layouts::Schedule& pass, const layouts::RankProgram& program,
                             const PassMemory& memory, std::shared_ptr<const RowBounds> own_rows,
                             const Options& options)
    : pass_(pass), program_(program), options_(options) {
    const auto& list = options.list;
    if (!resolve(list.family, list.head_dim, list.value_dim).can_fuse()) return;
    for (const auto& fused : program.fused_launches)
        for (auto& attends : launches_of(fused)) add(std::move(attends), memory, own_rows);
}

std::vector<std::vector<std::size_t>> FusedLaunches::launches_of(const layouts::FusedLaunch& fused) const {
    if (can_fuse(fused.attends) && can_wait_for_blocks(fused.attends)) return {fused.attends};
    std::vector<std::vector<std::size_t>> launches;
    const auto end_of = [&](std::size_t section) {
        return section < fused.section_begins.size() ? fused.section_begins[section] : fused.attends.size();
    };
    for (std::size_t section = 0, begin = 0; section <= fused.section_begins.size(); begin = end_of(section++)) {
        const std::vector<std::size_t> attends(fused.attends.begin() + static_cast<std::ptrdiff_t>(begin),
                                               fused.attends.begin() + static_cast<std::ptrdiff_t>(end_of(section)));
        if (attends.size() == 1 || !can_fuse(attends)) continue;
        if (options_.start != FusedStart::local_before) {
            launches.push_back(attends);
            continue;
        }
        std::vector<std::size_t> local, rest;
        for (const auto attend : attends) (op(attend).after().empty() ? local : rest).push_back(attend);
        for (auto& part : {local, rest})
            if (!part.empty()) launches.push_back(part);
    }
    return launches;
}

/// A kernel can wait for one transfer before it reads a block, and for one before it touches the block's gradient.
bool FusedLaunches::can_wait_for_blocks(const std::vector<std::size_t>& attends) const {
    if (options_.start != FusedStart::at_once) return false;
    return std::ranges::all_of(attends, [&](std::size_t attend) {
        int blocks = 0, gradients = 0;
        for (const auto before : op(attend).after()) {
            const auto& transfer = op(size(before));
            if (!transfer.transfers()) return false;
            ++(transfer.pool == Pool::dkv ? gradients : blocks);
        }
        return blocks <= 1 && gradients <= 1;
    });
}

bool FusedLaunches::can_fuse(const std::vector<std::size_t>& attends) const {
    const auto& first = op(attends.front());
    return std::ranges::all_of(attends, [&](std::size_t attend) {
        const auto& next = op(attend);
        const bool own_rows = next.rows().block == pass_.row_block(program_.rank) && next.slot(Pool::q) == 0;
        // Attends with outputs of their own are not one softmax.
        const bool one_state = program_.pass == Pass::backward || next.slot(Pool::output) == 0;
        return own_rows && one_state && pass_.is_whole(next.rows()) && pass_.is_whole(next.part) &&
               next.part.heads.count() == first.part.heads.count() &&
               next.rows().heads.count() == first.rows().heads.count();
    });
}

void FusedLaunches::add(std::vector<std::size_t> attends, const PassMemory& memory,
                        const std::shared_ptr<const RowBounds>& rows) {
    FusedAttends launch;
    launch.rows = op(attends.front()).rows().heads;
    launch.keys = op(attends.front()).part.heads;
    const auto include = [](layouts::HeadRange& all, layouts::HeadRange more) {
        all = {std::min(all.begin, more.begin), std::max(all.end, more.end)};
    };
    launch.first = launch.last = false;
    launch.waits_for_blocks = can_wait_for_blocks(attends);
    for (const auto attend : attends) {
        const auto& next = op(attend);
        include(launch.rows, next.rows().heads);
        include(launch.keys, next.part.heads);
        launch.first |= next.begins;
        launch.last |= next.ends;
    }
    std::set<std::size_t> awaited;  // by transfers
    for (const auto& instruction : program_.code)
        if (instruction.op.transfers())
            for (const auto before : instruction.op.after()) awaited.insert(size(before));

    std::vector<FusedBlock> blocks;
    for (const auto attend : attends) {
        const auto& instruction = program_.code[attend];
        const auto& block = instruction.op.part;
        const auto kv = memory.place(instruction, Pool::kv), dkv = memory.place(instruction, Pool::dkv);
        FusedBlock one{.owner = block.block,
                       .keys = pass_.block(block.block),
                       .first_head = block.heads.begin - launch.keys.begin,
                       .k = memory.view(kv),
                       .v = memory.view(kv, 1),
                       .dk = {},
                       .dv = {}};
        if (launch.waits_for_blocks)
            for (const auto before : instruction.op.after()) {
                const bool gradient = op(size(before)).pool == Pool::dkv;
                (gradient ? one.gradient_arrives : one.arrives) = true;
                // A send that this rank waits for (its slot is written again) sets no flag here: its receiver's is set.
                if (options_.flagged_peers.contains(op(size(before)).peer) && program_.code[size(before)].receives() &&
                    program_.code[size(before)].may_arrive_early)
                    (gradient ? one.gradient_flag : one.arrival_flag) =
                        memory.arrival_flag(program_.pass, size(before));
                else
                    waiting_.emplace(size(before), Waiting{attend, gradient});
            }
        if (program_.pass == Pass::backward) {
            one.dk = memory.view(dkv);
            one.dv = memory.view(dkv, 1);
            one.adds = instruction.op.adds;
            one.is_awaited = awaited.contains(attend);
        }
        blocks.push_back(one);
        of_attend_[attend] = launches_.size();
    }
    launch.attends = std::move(attends);
    const auto keys_each = op(launch.attends.front()).part.heads.count();
    const auto& list = options_.list;
    launch.work = resolve(list.family, list.head_dim, list.value_dim)
                      .make_fused(pass_.mask(), rows, blocks,
                                  {list, attend_shape(pass_.problem(), launch.rows, launch.keys), keys_each,
                                   options_.most_wait, options_.give_up_stream});
    launches_.push_back(std::move(launch));
}

const FusedAttends* FusedLaunches::find(std::size_t instruction) const {
    const auto found = of_attend_.find(instruction);
    return found == of_attend_.end() ? nullptr : &launches_[found->second];
}

void FusedLaunches::begin_pass(std::uint32_t number) {
    for (auto& launch : launches_) launch.work->begin_pass(number);
}

void FusedLaunches::arrived(std::size_t transfer, cudaStream_t stream) const {
    const auto [begin, end] = waiting_.equal_range(transfer);
    for (auto waiting = begin; waiting != end; ++waiting) {
        const auto [attend, gradient] = waiting->second;
        const auto& launch = *find(attend);
        const auto block = launch.block_of(attend);
        gradient ? launch.work->gradient_arrived(block, stream) : launch.work->arrived(block, stream);
    }
}

bool FusedLaunches::wait_until_done(std::size_t attend, cudaStream_t stream) const {
    const auto* launch = find(attend);
    if (!launch || program_.pass == Pass::forward) return false;
    launch->work->wait_until_done(launch->block_of(attend), stream);
    return true;
}

void FusedLaunches::require_arrived() const {
    for (const auto& launch : launches_) {
        const auto late = launch.work->late();
        if (!late) continue;
        const auto after = op(launch.attends[late->block]).after();
        const auto transfer = *std::ranges::find_if(
            after, [&](layouts::OpIndex before) { return (op(size(before)).pool == Pool::dkv) == late->gradient; });
        fail(
            "a launch of {} attends has waited {} s for what {} brings; its peer is dead or stuck, or the time-out is "
            "too short",
            launch.attends.size(), std::chrono::duration<double>(options_.most_wait).count(),
            describe(program_.rank, transfer, program_.code[size(transfer)]));
    }
}

void FusedLaunches::give_up() noexcept {
    for (auto& launch : launches_) launch.work->give_up();
}

std::int64_t FusedLaunches::device_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& launch : launches_) bytes += launch.work->device_bytes();
    return bytes;
}

}  // namespace ringlab::gpu
