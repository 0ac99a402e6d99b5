#include "gpu/elements/elementwise.hpp"
#include "gpu/kernels/rows.hpp"
#include "gpu/ranks/rank.hpp"

#include <algorithm>
#include <limits>

// The operations of a rank in a pass.

namespace ringlab::gpu {

using layouts::bytes_of;
using layouts::HeadRange;
using layouts::Instruction;
using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

namespace {

/// Statistics are pairs of numbers.
Statistics statistics_of(const RowView& numbers) {
    const auto& strides = numbers.strides;
    return {numbers.data, {strides.batch / 2, strides.token / 2, strides.head / 2}};
}

}  // namespace

void Rank::clear(Pass direction, cudaStream_t stream) {
    auto& pass = of(direction);
    number_ = ++count_;
    pass.launches->begin_pass(number_);
    if (direction == Pass::backward && latent_) latent_->begin_gradient(stream);
    for (const auto pool : pass.program->needs_zeroed) {
        const auto sum = pass.memory->field(pass.memory->own(pool));  // K and V parts of all heads, one after another
        const auto bytes = static_cast<std::size_t>(sum.extent.heads * sum.strides.head * bytes_of(sum.dtype));
        if (bytes > 0) RINGLAB_CUDA(cudaMemsetAsync(memory_.address(sum), 0, bytes, stream));
    }
}

void Rank::start(Pass direction, cudaStream_t stream) {
    const auto& pass = of(direction);
    const auto& memory = *pass.memory;
    const auto output = memory.own(Pool::output);
    const auto extent = memory.field(output).extent;
    if (extent.tokens == 0) return;
    if (direction == Pass::backward) {
        // dq may share its memory with o. Then each row of dq is set to 0 when the row of o has been read, or all of dq
        // is set to 0 afterwards if the rows of dq and o have different widths.
        const bool with_o = !backward_overwrites_output() || problem_.head_dim == problem_.value_dim;
        const auto dout = memory.own(Pool::dout), dq = memory.own(Pool::dq);
        prepare_backward({extent, memory.view(output), memory.view(dout), memory.rows(output, FieldOf::lse),
                          statistics_of(memory.rows(dout, FieldOf::statistics)), with_o ? memory.view(dq) : View{},
                          problem_.head_dim},
                         stream);
        if (!with_o) memory_.fill(memory.field(dq), 0, stream);
        if (sinks_)
            sink_gradient(
                {extent.batch, extent.tokens, extent.heads, statistics_of(memory.rows(dout, FieldOf::statistics)),
                 sinks_->as<const float>(), sink_gradient_->as<float>()},
                stream);
        return;
    }
    // Rows that no attend covers see nothing: o = 0, lse = -inf.
    if (!pass.program->has_unwritten_output) return;
    memory_.fill(memory.field(output), 0, stream);
    if (memory_.map().rounds_output()) memory_.fill(memory_.rounded(Pool::output), 0, stream);
    fill_rows(extent, memory.rows(output, FieldOf::lse), -std::numeric_limits<float>::infinity(), stream);
}

void Rank::launch_merging(cudaStream_t stream) {
    const auto& pass = of(Pass::forward);
    const auto& memory = *pass.memory;
    const auto output = memory.own(Pool::output);
    ForwardResult result{.o = memory.view(output), .lse = memory.rows(output, FieldOf::lse)};
    if (memory_.map().rounds_output()) result.o_rounded = memory_.view(memory_.rounded(output));
    pass.merging->launch(number_, result, stream);
}

void Rank::compute(Pass direction, std::size_t index, cudaStream_t stream) {
    const auto& pass = of(direction);
    const auto& instruction = pass.program->code[index];
    if (!pass.rounded_adds.empty() && &instruction >= pass.rounded_adds.data()) return;  // finish() makes it
    if (const auto* fused = pass.launches->find(index)) {
        if (fused->attends.front() == index) attend_fused(pass, *fused, stream);
        return;
    }
    switch (instruction.op.kind) {
        case OpKind::attend:
            return direction == Pass::forward ? attend_forward(pass, instruction, stream)
                                              : attend_backward(pass, instruction, stream);
        case OpKind::merge: return merge(pass, instruction, stream);
        case OpKind::add: return add(pass, instruction, stream);
        case OpKind::copy: return copy(pass, instruction, stream);
        case OpKind::expand: return expand(pass, instruction, stream);
        case OpKind::compress: return compress(pass, instruction, stream);
        case OpKind::send:
        case OpKind::receive:
        case OpKind::fetch: fail("rank {}: a {} is on the compute lane", rank_, to_string(instruction.op.kind));
    }
}

ForwardArgs Rank::forward_args(const PassState& pass, const Instruction& attend, HeadRange heads, bool first,
                               bool last) const {
    const auto& memory = *pass.memory;
    const auto rows_of = [&](Pool pool) {
        auto place = memory.place(attend, pool);
        place.heads = heads;
        return place;
    };
    ForwardArgs args;
    args.q = memory.view(rows_of(Pool::q));
    args.first = first;
    args.last = last;
    if (!first || !last) {
        const auto state = rows_of(Pool::state);
        args.carry = {memory.view(state), memory.rows(state, FieldOf::maximum), memory.rows(state, FieldOf::total)};
    }
    if (!last) return args;
    const auto output = rows_of(Pool::output);
    args.result.o = memory.view(output);
    args.result.lse = memory.rows(output, FieldOf::lse);
    if (const auto& map = memory_.map(); output.slot == 0 && map.rounds_output())
        args.result.o_rounded = memory_.view(memory_.rounded(output));
    return args;
}

void Rank::attend_forward(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& op = instruction.op;
    const auto kv = pass.memory->place(instruction, Pool::kv);
    auto args = forward_args(pass, instruction, op.rows().heads, op.begins, op.ends);
    args.shape = attend_shape(problem_, op.rows().heads, op.part.heads);
    args.k = pass.memory->view(kv);
    args.v = pass.memory->view(kv, FieldOf::v);
    gpu::attend_forward(args, work_list(pass, op.rows(), op.part), stream);
}

BackwardArgs Rank::backward_args(const PassState& pass, const Instruction& attend, HeadRange heads) const {
    const auto& memory = *pass.memory;
    const auto rows_of = [&](Pool pool) {
        auto place = memory.place(attend, pool);
        place.heads = heads;
        return place;
    };
    const auto dout = rows_of(Pool::dout);
    BackwardArgs args;
    args.q = memory.view(rows_of(Pool::q));
    args.dout = memory.view(dout);
    args.statistics = statistics_of(memory.rows(dout, FieldOf::statistics));
    args.dq = memory.view(rows_of(Pool::dq));
    args.semaphores = semaphores_.as<int>();
    return args;
}

void Rank::attend_backward(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& op = instruction.op;
    const auto& memory = *pass.memory;
    const auto kv = memory.place(instruction, Pool::kv), dkv = memory.place(instruction, Pool::dkv);
    const auto dq = memory.place(instruction, Pool::dq);
    if (op.begins && dq.slot > 0) memory_.fill(memory.field(dq), 0, stream);  // slot 0 is 0 from the start of the pass
    if (op.rows().tokens.size() == 0) {
        // A rank without query rows still passes on gradients of keys that others see. They start from 0, which is set
        // here, because kernels need at least one row.
        if (!op.adds)
            for (const auto tensor : {FieldOf::k, FieldOf::v}) memory_.fill(memory.field(dkv, tensor), 0, stream);
        return;
    }
    auto args = backward_args(pass, instruction, op.rows().heads);
    args.shape = attend_shape(problem_, op.rows().heads, op.part.heads);
    args.k = memory.view(kv);
    args.v = memory.view(kv, FieldOf::v);
    args.dk = memory.view(dkv);
    args.dv = memory.view(dkv, FieldOf::v);
    args.adds = op.adds;
    gpu::attend_backward(args, work_list(pass, op.rows(), op.part), stream);
}

void Rank::attend_fused(const PassState& pass, const FusedAttends& launch, cudaStream_t stream) {
    const auto& first = pass.program->code[launch.attends.front()];
    const auto shape = attend_shape(problem_, launch.rows, launch.keys);
    if (pass.program->pass == Pass::forward) {
        auto args = forward_args(pass, first, launch.rows, launch.first, launch.last);
        args.shape = shape;
        launch.work->attend_forward(args, stream);
    } else {
        auto args = backward_args(pass, first, launch.rows);
        args.shape = shape;
        launch.work->attend_backward(args, stream);
    }
}

void Rank::merge(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& memory = *pass.memory;
    const auto to = memory.place(instruction, Pool::output), from = memory.source(instruction);
    gpu::merge({memory.field(to).extent, instruction.op.begins, memory.view(to), memory.rows(to, FieldOf::lse),
                memory.view(from), memory.rows(from, FieldOf::lse)},
               stream);
}

void Rank::add(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& memory = *pass.memory;
    const auto to = memory.place(instruction, instruction.op.pool), from = memory.source(instruction);
    if (!of_rows(to.pool) && to.is_whole() && from.is_whole()) {
        // The K and V parts of a head are adjacent, padding included. Both are added in one call, as rows of
        // SlotMap::padding elements.
        const auto target = memory.field(to), source = memory.field(from);
        constexpr std::int64_t row = SlotMap::padding;
        const auto flat = [&](const Field& field) {
            return View{memory_.address(field), field.dtype, {0, row, field.strides.head}};
        };
        return gpu::add({1, target.strides.head / row, target.extent.heads, row}, flat(target), flat(source), stream);
    }
    for (std::size_t field = 0; field < memory_.map().fields(to.pool); ++field)
        gpu::add(memory.field(to, field).extent, memory.view(to, field), memory.view(from, field), stream);
}

void Rank::copy(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& memory = *pass.memory;
    const auto to = memory.place(instruction, instruction.op.pool), from = memory.source(instruction);
    for (std::size_t field = 0; field < memory_.map().fields(to.pool); ++field)
        copy_field(memory.field(to, field), memory.field(from, field), stream);
}

void Rank::expand(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& memory = *pass.memory;
    const auto to = memory.place(instruction, Pool::kv), from = memory.source(instruction);
    latent_->expand(memory.field(to).extent, memory.view(from), memory.view(to), memory.view(to, FieldOf::v),
                    to.heads.begin, stream);
}

void Rank::compress(const PassState& pass, const Instruction& instruction, cudaStream_t stream) {
    const auto& memory = *pass.memory;
    const auto to = memory.place(instruction, Pool::dlatent), from = memory.source(instruction);
    latent_->compress(
        {memory.field(from).extent, memory.view(from), memory.view(from, FieldOf::v),
         memory.view(memory.place(instruction, Pool::latent)), memory.view(to), from.heads.begin, instruction.op.adds},
        stream);
}

void Rank::copy_field(const Field& to, const Field& from, cudaStream_t stream) const {
    if (to.dtype != from.dtype || to.lent || from.lent)
        return convert(std::array{Conversion{to.extent, memory_.view(to), memory_.view(from)}}, stream);
    const auto& [batch, tokens, heads, dim] = to.extent;
    const auto element = static_cast<std::size_t>(bytes_of(to.dtype));
    const auto bytes = static_cast<std::size_t>(tokens * dim) * element;
    if (bytes == 0) return;
    for (std::int64_t b = 0; b < batch; ++b) {
        const auto at = [&](const Field& field) {
            return memory_.address(field) + static_cast<std::size_t>(b * field.strides.batch) * element;
        };
        const auto pitch = [&](const Field& field) {
            return std::max(bytes, static_cast<std::size_t>(field.strides.head) * element);
        };
        copy_rows(at(to), pitch(to), at(from), pitch(from), bytes, static_cast<std::size_t>(heads), stream);
    }
}

void Rank::arrived(Pass direction, std::size_t index, cudaStream_t stream) {
    const auto& pass = of(direction);
    const auto& instruction = pass.program->code[index];
    if (instruction.receives()) {
        const auto& map = memory_.map();
        const auto to = pass.memory->place(instruction, instruction.op.pool);
        if (map.converts_arrivals(to))
            for (std::size_t field = 0; field < map.fields(to.pool); ++field)
                copy_field(pass.memory->field(to, field), map.field(map.message_frame(direction, to), to, field),
                           stream);
    }
    pass.launches->arrived(index, stream);
}

void Rank::rotate(Pass direction, cudaStream_t stream) {
    const bool gradients = direction == Pass::backward;
    const auto keys = latent_ ? (gradients ? Pool::dlatent : Pool::latent) : gradients ? Pool::dkv : Pool::kv;
    for (const auto pool : {gradients ? Pool::dq : Pool::q, keys}) {
        auto from = memory_.field(direction, memory_.own(pool));
        auto to = gradients && options_.memory.round_results ? memory_.rounded(pool) : from;
        const auto& positions = of_rows(pool) && row_positions_ ? *row_positions_ : *positions_;
        if (from.extent.tokens == 0) continue;
        auto table = layouts::rotary_table(problem_.rotary, problem_.head_dim);
        if (latent_ && !of_rows(pool)) {
            // With a latent: the dims that heads share, which come after a head's own dims.
            table.first -= problem_.own_key_dim();
            for (auto* field : {&from, &to}) {
                field->begin += static_cast<std::size_t>(problem_.latent.rank * bytes_of(field->dtype));
                field->extent.dim = problem_.latent.shared;
            }
        }
        gpu::rotate(
            {from.extent, memory_.view(to), memory_.view(from), positions.as<const std::int32_t>(), table, gradients},
            stream);
    }
}

void Rank::add_sinks(cudaStream_t stream) {
    const auto output = memory_.own(Pool::output);
    const auto field = memory_.field(Pass::forward, output);
    if (!sinks_ || field.extent.tokens == 0) return;
    const bool rounds = memory_.map().rounds_output();
    gpu::add_sinks({field.extent, memory_.view(field), rounds ? memory_.view(memory_.rounded(Pool::output)) : View{},
                    memory_.rows(memory_.field(Pass::forward, output, FieldOf::lse)), sinks_->as<const float>()},
                   stream);
}

void Rank::finish(Pass direction, cudaStream_t stream) {
    if (direction == Pass::forward) add_sinks(stream);
    if (!options_.memory.round_results) return;
    const auto& pass = of(direction);
    std::vector<Conversion> conversions;
    const auto round = [&](Pool pool, std::size_t field) {
        const auto from = pass.memory->field(memory_.own(pool), field);
        if (from.extent.tokens == 0) return;
        conversions.push_back({from.extent, memory_.view(memory_.rounded(pool, field)), memory_.view(from)});
        if (pool == Pool::dkv)
            for (const auto& add : pass.rounded_adds)
                conversions.back().sums.push_back(pass.memory->view(pass.memory->source(add), field));
    };
    if (direction == Pass::forward) {
        // Otherwise the last attends, or the launch that adds sinks, have written both.
        const bool comes_late = pass.output_comes_late && !is_one_launch(direction);
        if (memory_.map().rounds_output() && comes_late && !sinks_) round(Pool::output, 0);
    } else {
        round(Pool::dq, 0);
        round(latent_ ? Pool::dlatent : Pool::dkv, 0);
        if (!latent_) round(Pool::dkv, FieldOf::v);
    }
    convert(conversions, stream);
}

}  // namespace ringlab::gpu
