#include "gpu/ranks/rank_memory.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/elements/elementwise.hpp"
#include "gpu/kernels/attention.hpp"
#include "layouts/basics/counts.hpp"

#include <algorithm>
#include <array>

namespace ringlab::gpu {

using layouts::bytes_of;
using layouts::OpKind;
using layouts::Pass;
using layouts::Place;
using layouts::Pool;

namespace {

constexpr std::uint8_t nan_byte = 0xff;  // a float, bf16 or fp16 of such bytes is a NaN

View dense_view(const DeviceBuffer& buffer, DType dtype, const Extent& extent) {
    return {buffer.data(), dtype, dense_strides(extent.tokens, extent.heads, extent.dim)};
}

/// Elements from a field's first to the end of its last head.
std::size_t span(const Field& field) {
    const auto& [batch, tokens, heads, dim] = field.extent;
    return heads == 0 ? 0 : size((heads - 1) * field.strides.head + batch * tokens * dim);
}

}  // namespace

std::shared_ptr<void> make_exchange_memory(Fabric& fabric, std::size_t bytes, std::size_t zeroed_bytes) {
    auto memory = fabric.allocate(bytes);
    RINGLAB_CUDA(cudaMemsetAsync(memory.get(), 0, zeroed_bytes, nullptr));
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
    return memory;
}

Field RankMemory::where_lent(const TensorTable& tensors, const Place& place, std::size_t field, Field found) {
    const auto& tensor = tensors[static_cast<std::size_t>(place.pool)][field];
    if (place.slot > 0 || !tensor.data) return found;
    const auto& strides = tensor.strides;
    const auto elements = (place.heads.begin - place.first_head) * strides.head + place.tokens.begin * strides.token;
    found.lent = static_cast<char*>(tensor.data) + elements * bytes_of(tensor.dtype);
    found.dtype = tensor.dtype;
    found.strides = strides;
    return found;
}

void RankMemory::fill(const Field& field, std::uint8_t byte, cudaStream_t stream) const {
    const auto& [batch, tokens, heads, dim] = field.extent;
    const auto element = size(bytes_of(field.dtype));
    if (field.lent)
        return RINGLAB_CUDA(cudaMemsetAsync(field.lent, byte, size(batch * tokens * heads * dim) * element, stream));
    const bool together = batch == 1 || field.strides.batch == tokens * dim;
    const auto width = size((together ? batch : 1) * tokens * dim) * element;
    if (width == 0 || heads == 0) return;
    for (std::int64_t b = 0; b < (together ? 1 : batch); ++b)
        fill_rows(address(field) + size(b * field.strides.batch) * element,
                  std::max(width, size(field.strides.head) * element), byte, width, size(heads), stream);
}

void RankMemory::poison(Pass pass, cudaStream_t stream) const {
    const auto [begin, end] = map_.undefined_at_start(pass);
    if (begin < end) RINGLAB_CUDA(cudaMemsetAsync(data() + begin, nan_byte, end - begin, stream));
}

void RankMemory::upload(const char* name, const HostTensor<std::uint16_t>& from, const Field& to, bool of_rows) const {
    const auto& p = forward_.problem();
    const auto tokens = of_rows ? p.rows() : p.tokens;
    const std::array<std::int64_t, 4> expected{p.batch, tokens, to.extent.heads, to.extent.dim};
    require(from.shape == expected, "{} has shape ({}), expected ({})", name, fmt::join(from.shape, ", "),
            fmt::join(expected, ", "));
    const auto positions = of_rows ? forward_.row_indices(rank_) : forward_.layout().positions(rank_);
    const auto row = static_cast<std::ptrdiff_t>(to.extent.heads * to.extent.dim);
    std::vector<std::uint16_t> dense;
    dense.reserve(size(p.batch * row) * positions.size());
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (const auto position : positions) {
            const auto* const values = from.values.data() + from.row(b, position);
            dense.insert(dense.end(), values, values + row);
        }
    if (dense.empty()) return;
    const auto buffer = uploaded(dense);
    convert(std::array{Conversion{to.extent, view(to), dense_view(buffer, p.dtype, to.extent)}}, nullptr);
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
}

void RankMemory::load(const HostInputs& inputs) const {
    upload("q", inputs.q, field(Pass::forward, own(Pool::q)), true);
    if (has_latent()) {
        upload("k, the latent,", inputs.k, field(Pass::forward, own(Pool::latent)), false);
    } else {
        upload("k", inputs.k, field(Pass::forward, own(Pool::kv), FieldOf::k), false);
        upload("v", inputs.v, field(Pass::forward, own(Pool::kv), FieldOf::v), false);
    }
    if (with_gradients_) upload("dout", inputs.dout, field(Pass::backward, own(Pool::dout)), true);
}

void RankMemory::load_random(int seed) const {
    const auto dtype = forward_.problem().dtype;
    std::size_t tensor = 0;
    const auto fill_random = [&](const Field& from, const Field& to) {
        const auto elements = static_cast<std::int64_t>((to.begin - from.begin) / size(bytes_of(dtype)) + span(to));
        if (span(to) == 0) return;
        fill_normal(data() + from.begin, dtype, elements, 16u * static_cast<std::uint64_t>(seed) + ++tensor, nullptr);
    };
    const auto q = field(Pass::forward, own(Pool::q));
    fill_random(q, q);
    const auto given = field(Pass::forward, own(has_latent() ? Pool::latent : Pool::kv));
    fill_random(given, has_latent() ? given : field(Pass::forward, own(Pool::kv), FieldOf::v));
    if (with_gradients_) {
        const auto dout = field(Pass::backward, own(Pool::dout));
        fill_random(dout, dout);
    }
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
}

/// (batch, tokens, heads, dim), dense.
std::vector<float> RankMemory::download(const Field& field) const {
    const auto& [batch, tokens, heads, dim] = field.extent;
    std::vector<float> dense(size(batch * tokens * heads * dim));
    if (dense.empty()) return dense;
    const DeviceBuffer buffer(dense.size() * sizeof(float));
    convert(std::array{Conversion{field.extent, dense_view(buffer, DType::fp32, field.extent), view(field)}}, nullptr);
    buffer.download(dense.data());
    return dense;
}

RankOutputs RankMemory::download() const {
    RankOutputs out;
    const auto output = own(Pool::output);
    out.o = download(map_.rounds_output() ? rounded(Pool::output) : field(Pass::forward, output));
    out.lse = download(field(Pass::forward, output, 1));
    if (!with_gradients_) return out;
    const auto gradient = [&](Pool pool, std::size_t field_index) {
        return download(options_.round_results ? rounded(pool, field_index)
                                               : field(Pass::backward, own(pool), field_index));
    };
    out.dq = gradient(Pool::dq, 0);
    out.dk = gradient(has_latent() ? Pool::dlatent : Pool::dkv, FieldOf::k);
    if (!has_latent()) out.dv = gradient(Pool::dkv, FieldOf::v);
    return out;
}

std::vector<Piece> message_pieces(const layouts::Schedule& pass, const layouts::Program& program,
                                  const layouts::Instruction& instruction, const SlotMap& own, const SlotMap& peer) {
    const auto& op = instruction.op;
    const auto direction = program.pass;
    const auto here = place_of(pass, instruction, op.pool);
    // Who has no part in a fetch from it has the block in slot 0.
    auto there = own_place(pass, op.peer, op.pool);
    if (instruction.partner >= 0) {
        const auto& peer_code = program.ranks[static_cast<std::size_t>(op.peer)].code;
        there = place_of(pass, peer_code[static_cast<std::size_t>(instruction.partner)], op.pool);
    } else {
        there.heads = op.part.heads;
        there.tokens = op.part.tokens;
    }
    const auto& own_frame = own.message_frame(direction, here);
    const auto& peer_frame = peer.message_frame(direction, there);
    if (op.kind == OpKind::send) return pieces_between(own, own_frame, here, peer, peer_frame, there);
    return pieces_between(peer, peer_frame, there, own, own_frame, here);
}

}  // namespace ringlab::gpu
