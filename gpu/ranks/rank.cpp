#include "gpu/ranks/rank.hpp"

#include "gpu/device/driver.hpp"
#include "gpu/elements/elementwise.hpp"

#include <algorithm>
#include <ranges>

namespace ringlab::gpu {

using layouts::bytes_of;
using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

namespace {

View as_tensor(const RowView& rows) { return {rows.data, DType::fp32, rows.strides}; }

void require_supported(const layouts::Schedule& schedule) {
    const auto& p = schedule.problem();
    require(bytes_of(p.dtype) == 2, "the CUDA backend computes bf16 and fp16 problems, not {}", to_string(p.dtype));
    const auto gradients = schedule.options().gradient_dtype;
    if (schedule.options().pass == Pass::backward)
        require(gradients == DType::fp32 || gradients == p.dtype,
                "with a {} problem dK and dV travel as fp32 or {}, not as {}", to_string(p.dtype), to_string(p.dtype),
                to_string(gradients));
}

}  // namespace

Rank::Rank(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
           const std::vector<layouts::Program>& programs, const std::vector<SlotMap>& maps,
           std::shared_ptr<void> exchange, const RankOptions& options)
    : problem_(forward.problem()),
      rank_(rank),
      options_(options),
      memory_(forward, backward, rank, options.memory, maps.at(static_cast<std::size_t>(rank)), std::move(exchange)),
      count_(options.passes ? *options.passes : own_count_),
      memory_use_(memory_.map().memory()) {
    require_supported(forward);
    if (backward) require_supported(*backward);
    if (!options_.give_up_stream) options_.give_up_stream = own_give_up_stream_.emplace();
    for (const auto& program : programs) {
        auto& pass = of(program.pass);
        pass.schedule = program.pass == Pass::forward ? &forward : backward;
        set_up(pass, program, maps);
    }
    if (problem_.latent.is_given()) latent_ = std::make_unique<LatentProducts>(forward, backward, rank);
    if (const auto& sinks = problem_.sinks; !sinks.empty()) {
        sinks_ = uploaded(std::vector<float>(sinks.begin(), sinks.end()), *options_.tables);
        sink_gradient_ = uploaded(std::vector<float>(sinks.size()), *options_.tables);
        memory_use_.work += 2 * static_cast<std::int64_t>(sinks.size() * sizeof(float));
    }
    const auto indices = [&](const std::vector<layouts::Interval>& ranges) {
        std::vector<std::int32_t> tokens;
        for (const auto& range : ranges)
            for (auto token = range.begin; token < range.end; ++token)
                tokens.push_back(static_cast<std::int32_t>(token));
        memory_use_.work += static_cast<std::int64_t>(tokens.size() * sizeof(std::int32_t));
        return uploaded(tokens, *options_.tables);
    };
    if (options.memory.lent != Lent::nothing) {
        blind_rows_ = indices(layouts::blind_rows(forward.mask(), forward.block(forward.row_block(rank))));
        unseen_keys_ = indices(layouts::unseen_keys(forward.mask(), forward.layout().shard(rank)));
    }
    if (options.deterministic && backward) {
        const auto rows = resolve(options.kernels, problem_)
                              .work_tiles(Pass::backward, problem_.head_dim, problem_.value_dim)
                              .tile.rows;
        std::int64_t tokens = 0;  // of any rank's rows, as they may travel
        for (int other = 0; other < forward.ranks(); ++other)
            tokens = std::max(tokens, forward.block_tokens(forward.row_block(other)));
        semaphores_ = DeviceBuffer(
            static_cast<std::size_t>(problem_.batch * problem_.query_heads * ((tokens + rows - 1) / rows)) *
                sizeof(int),
            *options_.tables);
        memory_use_.work += static_cast<std::int64_t>(semaphores_.bytes());
    }
    if (!problem_.rotary.rotates()) return;
    const auto upload = [&](const std::vector<std::int64_t>& tokens) {
        const auto positions = rotary_positions(problem_.rotary, forward.mask(), tokens);
        memory_use_.work += static_cast<std::int64_t>(positions.size() * sizeof(std::int32_t));
        return uploaded(std::vector<std::int32_t>(positions.begin(), positions.end()), *options_.tables);
    };
    positions_ = upload(forward.layout().positions(rank));
    if (!problem_.queries.empty()) row_positions_ = upload(forward.row_positions(rank));
}

Rank::~Rank() {
    if (own_give_up_stream_) cudaStreamSynchronize(*own_give_up_stream_);
}

std::string Rank::kernel_choices(Pass direction) const {
    const auto& pass = of(direction);
    const auto splits = std::ranges::count_if(pass.work_lists, [](const auto& one) { return one.second->splits_kv(); });
    return fmt::format("{}{}{}", pass.program->has_unwritten_output, splits > 0, splits < std::ssize(pass.work_lists));
}

void Rank::list_pieces(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps) {
    for (const auto& instruction : pass.program->code) {
        auto& pieces = pass.pieces.emplace_back();
        const auto& op = instruction.op;
        if (!op.transfers()) continue;
        pass.moves_rows |= of_rows(op.pool);
        try {
            pieces = message_pieces(*pass.schedule, program, instruction, maps[static_cast<std::size_t>(rank_)],
                                    maps[static_cast<std::size_t>(op.peer)]);
        } catch (const Error& error) {
            fail("{}: {}", describe(rank_, static_cast<layouts::OpIndex>(pass.pieces.size()) - 1, instruction),
                 error.what());
        }
    }
}

void Rank::set_up(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps) {
    pass.program = &program.ranks[static_cast<std::size_t>(rank_)];
    pass.memory.emplace(memory_, *pass.schedule);
    list_pieces(pass, program, maps);
    for (const auto& instruction : pass.program->code) {
        const auto& op = instruction.op;
        pass.output_comes_late |= op.kind != OpKind::attend && op.pool == Pool::output && op.slot() == 0;
    }
    const auto own = pass.schedule->block(pass.schedule->row_block(rank_));
    pass.launches = std::make_unique<FusedLaunches>(
        *pass.schedule, *pass.program, *pass.memory, row_bounds({own.begin(), own.end()}),
        FusedLaunches::Options{list_options(pass), options_.fused_start, options_.most_wait, options_.give_up_stream,
                               options_.flagged_peers});
    memory_use_.work += pass.launches->device_bytes();
    find_rounded_adds(pass);
    build_work_lists(pass);
    prepare_merging(pass, program, maps);
}

/// Additions of whole gradients at the end of a pass are made by the launch that rounds dk and dv.
void Rank::find_rounded_adds(PassState& pass) const {
    if (!options_.memory.round_results || problem_.latent.is_given()) return;
    const std::span code(pass.program->code.data(), pass.program->operations);
    const auto is_rounded = [&](const layouts::Instruction& instruction) {
        const auto& op = instruction.op;
        if (op.kind != OpKind::add || op.pool != Pool::dkv || op.slot() != 0) return false;
        const auto to = pass.memory->place(instruction, Pool::dkv);
        return to.is_whole() && to.heads == memory_.own(Pool::dkv).heads;
    };
    std::size_t count = 0;
    while (count < std::min(code.size(), most_sums) && is_rounded(code[code.size() - 1 - count])) ++count;
    pass.rounded_adds = code.last(count);
}

std::shared_ptr<const RowBounds> Rank::row_bounds(const std::vector<layouts::Run>& rows) {
    for (const auto& known : row_bounds_)
        if (std::ranges::equal(known->runs(), rows)) return known;
    const auto& mask = of(Pass::forward).schedule->mask();
    return row_bounds_.emplace_back(std::make_shared<RowBounds>(mask, rows, *options_.tables));
}

std::shared_ptr<const KeyPositions> Rank::key_positions(const std::vector<layouts::Run>& keys) {
    for (const auto& known : key_positions_)
        if (std::ranges::equal(known->runs(), keys)) return known;
    const auto& mask = of(Pass::forward).schedule->mask();
    constexpr std::int64_t position_bytes = 4;
    memory_use_.work += count_tokens(keys) * position_bytes;
    return key_positions_.emplace_back(std::make_shared<KeyPositions>(mask, keys, *options_.tables));
}

WorkListOptions Rank::list_options(const PassState& pass) const {
    return {pass.program->pass,
            problem_.head_dim,
            problem_.value_dim,
            options_.deterministic,
            options_.kernels,
            options_.tables,
            problem_.query_heads_per_kv_head(),
            problem_.dropout.drops()};
}

void Rank::add_work_list(PassState& pass, const layouts::Part& rows, const layouts::Part& keys) {
    const auto& schedule = *pass.schedule;
    auto& list = pass.work_lists[{tokens_of(rows), tokens_of(keys)}];
    if (list) return;
    list = std::make_unique<WorkList>(schedule.mask(), row_bounds(schedule.runs(rows)),
                                      key_positions(schedule.runs(keys)), list_options(pass));
    memory_use_.work += list->tiles().device_bytes();
    if (const auto* tiles = list->query_tiles()) memory_use_.work += tiles->device_bytes();
}

void Rank::build_work_lists(PassState& pass) {
    for (std::size_t i = 0; i < pass.program->code.size(); ++i) {
        const auto& op = pass.program->code[i].op;
        if (op.kind == OpKind::attend && !pass.launches->find(i)) add_work_list(pass, op.rows(), op.part);
    }
}

void Rank::prepare_merging(PassState& pass, const layouts::Program& program, const std::vector<SlotMap>& maps) {
    const auto& schedule = *pass.schedule;
    const bool may = schedule.is_one_launch() && options_.merging_ranks > 0 && !problem_.dropout.drops();
    if (!may) return;
    const auto keys = schedule.part(rank_, {}), rows = schedule.part(schedule.row_block(rank_), {});
    if (rows.tokens.size() > 0) add_work_list(pass, rows, keys);  // although they may see none of the own keys
    // Less than the host waits, because the launch knows which peer is late.
    const auto most_wait = options_.most_wait / 4 * 3;
    pass.merging = std::make_unique<MergingPass>(
        schedule, program, rank_, *pass.memory, maps,
        [&](const layouts::Part& some) -> const WorkList& { return work_list(pass, some, keys); },
        MergingPass::Options{resolve(options_.kernels, problem_), most_wait, options_.merging_ranks,
                             options_.give_up_stream});
}

const WorkList& Rank::work_list(const PassState& pass, const layouts::Part& rows, const layouts::Part& keys) const {
    return *pass.work_lists.at({tokens_of(rows), tokens_of(keys)});
}

void Rank::give_up() noexcept {
    for (const auto& pass : passes_) {
        if (!pass.launches) continue;
        pass.launches->give_up();
        if (pass.merging) pass.merging->give_up();
        try {
            for (std::size_t i = 0; i < pass.program->code.size(); ++i)
                if (pass.program->code[i].receives() && has_arrival_flag(pass.program->pass, i))
                    write_value(options_.give_up_stream, memory_.arrival_flag(pass.program->pass, i), count_);
        } catch (const Error&) {
            // Streams then wait for ever, as they do for a dead peer. The process ends anyway.
        }
    }
}

void Rank::require_arrived(Pass direction) const {
    of(direction).launches->require_arrived();
    if (const auto* one = merging(direction)) one->require_arrived();
}

void Rank::load(const HostInputs& inputs) {
    memory_.load(inputs);
    if (latent_) latent_->load(inputs.v);
}

void Rank::load_random(int seed) {
    memory_.load_random(seed);
    if (latent_) latent_->load_random(seed);
}

RankOutputs Rank::download() const {
    auto outputs = memory_.download();
    if (latent_ && of(Pass::backward).program) outputs.dv = latent_->gradient();
    if (sinks_) {
        outputs.dsinks.resize(problem_.sinks.size());
        sink_gradient_->download(outputs.dsinks.data());
    }
    return outputs;
}

// How a rank comes by its caller's tensors.

std::size_t Rank::local_bytes(Pass direction) const {
    const auto& pass = of(direction);
    // A backward pass has dQ and statistics of rows there. A forward pass has the running softmax, but for rows of
    // which one launch computes all.
    const auto keeps_state = [&](std::size_t i) {
        const auto& op = pass.program->code[i].op;
        const auto* launch = pass.launches->find(i);
        return op.kind == OpKind::attend && !(launch ? launch->first && launch->last : op.begins && op.ends);
    };
    const auto has_slots = [](const layouts::SlotGroup& group) { return of_rows(group.pool); };
    const bool uses = direction == Pass::backward || std::ranges::any_of(pass.schedule->slots(), has_slots) ||
                      std::ranges::any_of(std::views::iota(std::size_t{0}, pass.program->code.size()), keeps_state);
    return uses ? memory_.map().local_bytes() : 0;
}

void Rank::take(Pass direction, const CallerTensors& tensors, cudaStream_t stream) {
    const bool lends_rows = options_.memory.lent == Lent::rounded_and_rows, backward = direction == Pass::backward;
    std::vector<Conversion> copies;
    std::vector<std::pair<Field, const DeviceBuffer*>> unused;
    const auto copy = [&](Pool pool, std::size_t field, const ConstView& from) {
        const auto to = memory_.field(direction, memory_.own(pool), field);
        if (to.extent.tokens > 0) copies.push_back({to.extent, memory_.view(to), from});
        if (pool != Pool::output) unused.push_back({to, of_rows(pool) ? &blind_rows_ : &unseen_keys_});
    };
    const auto take_rows = [&](Pool pool, std::size_t field, const ConstView& from, bool is_input = true) {
        if (lends_rows)
            memory_.lend(pool, field, {const_cast<void*>(from.data), from.dtype, from.strides});
        else if (is_input)
            copy(pool, field, from);
    };
    memory_.use_local(tensors.local);
    copy(Pool::kv, FieldOf::k, tensors.k);
    copy(Pool::kv, FieldOf::v, tensors.v);
    take_rows(Pool::q, 0, tensors.q);
    take_rows(Pool::output, FieldOf::o, tensors.o_exact, backward);
    take_rows(Pool::output, FieldOf::lse, as_tensor(tensors.lse), backward);
    if (backward) {
        take_rows(Pool::dout, 0, tensors.dout);
        memory_.lend_rounded(Pool::dq, 0, tensors.dq);
        memory_.lend_rounded(Pool::dkv, FieldOf::k, tensors.dk);
        memory_.lend_rounded(Pool::dkv, FieldOf::v, tensors.dv);
    } else {
        memory_.lend_rounded(Pool::output, FieldOf::o, tensors.o);
    }
    convert(copies, stream);
    for (const auto& [field, tokens] : unused)
        clear_tokens(field.extent, memory_.view(field), tokens->as<const std::int32_t>(),
                     static_cast<std::int64_t>(tokens->bytes() / sizeof(std::int32_t)), stream);
    if (sinks_)
        RINGLAB_CUDA(cudaMemcpyAsync(sinks_->data(), tensors.sinks, sinks_->bytes(), cudaMemcpyDeviceToDevice, stream));
}

void Rank::give_back(Pass direction, const CallerTensors& tensors, cudaStream_t stream) {
    if (direction == Pass::backward) {
        if (sinks_)
            RINGLAB_CUDA(cudaMemcpyAsync(tensors.sink_gradient, sink_gradient_->data(), sink_gradient_->bytes(),
                                         cudaMemcpyDeviceToDevice, stream));
        return;
    }
    if (options_.memory.lent == Lent::rounded_and_rows) return;
    std::vector<Conversion> copies;
    const auto copy = [&](std::size_t field, const View& to) {
        const auto from = memory_.field(direction, memory_.own(Pool::output), field);
        if (from.extent.tokens > 0) copies.push_back({from.extent, to, memory_.view(from)});
    };
    copy(FieldOf::o, tensors.o_exact);
    copy(FieldOf::lse, as_tensor(tensors.lse));
    convert(copies, stream);
}

}  // namespace ringlab::gpu
