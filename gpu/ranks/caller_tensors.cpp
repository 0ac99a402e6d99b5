#include "gpu/ranks/caller_tensors.hpp"

#include "gpu/elements/elementwise.hpp"
#include "gpu/ranks/rank.hpp"

#include <algorithm>
#include <ranges>

// How a rank comes by its caller's tensors.

namespace ringlab::gpu {

using layouts::OpKind;
using layouts::Pass;
using layouts::Pool;

namespace {

// Fields of pools, see Frame.
struct FieldOf {
    static constexpr std::size_t k = 0, v = 1;    // of kv, dkv
    static constexpr std::size_t o = 0, lse = 1;  // of output
};

View as_tensor(const RowView& rows) { return {rows.data, DType::fp32, rows.strides}; }

}  // namespace

std::size_t Rank::local_bytes(Pass which) const {
    const auto& pass = of(which);
    // A backward pass has dQ and statistics of rows there. A forward pass has the running softmax, but for rows of
    // which one launch computes all.
    const auto keeps_state = [&](std::size_t i) {
        const auto& op = pass.program->code[i].op;
        const auto* launch = pass.launches->find(i);
        return op.kind == OpKind::attend && !(launch ? launch->first && launch->last : op.begins && op.ends);
    };
    const auto has_slots = [](const layouts::SlotGroup& group) { return of_rows(group.pool); };
    const bool uses = which == Pass::backward || std::ranges::any_of(pass.schedule->slots(), has_slots) ||
                      std::ranges::any_of(std::views::iota(std::size_t{0}, pass.program->code.size()), keeps_state);
    return uses ? memory_.map().local_bytes() : 0;
}

void Rank::take(Pass which, const CallerTensors& tensors, cudaStream_t stream) {
    const bool lends_rows = options_.memory.lent == Lent::rounded_and_rows, backward = which == Pass::backward;
    std::vector<Conversion> copies;
    std::vector<std::pair<Field, const DeviceBuffer*>> unused;
    const auto copy = [&](Pool pool, std::size_t field, const ConstView& from) {
        const auto to = memory_.field(which, memory_.own(pool), field);
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

void Rank::give_back(Pass which, const CallerTensors& tensors, cudaStream_t stream) {
    if (which == Pass::backward) {
        if (sinks_)
            RINGLAB_CUDA(cudaMemcpyAsync(tensors.sink_gradient, sink_gradient_->data(), sink_gradient_->bytes(),
                                         cudaMemcpyDeviceToDevice, stream));
        return;
    }
    if (options_.memory.lent == Lent::rounded_and_rows) return;
    std::vector<Conversion> copies;
    const auto copy = [&](std::size_t field, const View& to) {
        const auto from = memory_.field(which, memory_.own(Pool::output), field);
        if (from.extent.tokens > 0) copies.push_back({from.extent, to, memory_.view(from)});
    };
    copy(FieldOf::o, tensors.o_exact);
    copy(FieldOf::lse, as_tensor(tensors.lse));
    convert(copies, stream);
}

}  // namespace ringlab::gpu
