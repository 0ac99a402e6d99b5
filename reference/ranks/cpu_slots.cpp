#include "reference/ranks/cpu_slots.hpp"

#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringlab::reference {

using layouts::DType;
using layouts::Pool;

namespace {

constexpr std::size_t index(Pool pool) { return static_cast<std::size_t>(pool); }

template <class Real>
constexpr DType native = sizeof(Real) == 8 ? DType::fp64 : DType::fp32;

/// Writes numbers as elements of a 16-bit `dtype`, rounded to nearest even, or as they are; and reads them back.
template <class Real>
void store_elements(std::span<const Real> numbers, DType dtype, std::span<std::byte> memory) {
    if (layouts::bytes_of(dtype) == 2)
        to_bits(numbers, dtype, {reinterpret_cast<std::uint16_t*>(memory.data()), numbers.size()});
    else if (!numbers.empty())
        std::memcpy(memory.data(), numbers.data(), numbers.size_bytes());
}
template <class Real>
void load_elements(std::span<const std::byte> memory, DType dtype, std::span<Real> numbers) {
    if (layouts::bytes_of(dtype) == 2)
        from_bits({reinterpret_cast<const std::uint16_t*>(memory.data()), numbers.size()}, dtype, numbers);
    else if (!numbers.empty())
        std::memcpy(numbers.data(), memory.data(), numbers.size_bytes());
}

}  // namespace

template <class Real>
CpuSlots<Real>::CpuSlots(const layouts::Problem& problem, std::int64_t own_rows, std::int64_t own_tokens)
    : problem_(problem), own_rows_(own_rows), own_tokens_(own_tokens) {}

template <class Real>
std::size_t CpuSlots<Real>::fields(Pool pool) const {
    std::size_t fields = 0;
    for (const auto& tensor : layouts::tensors(pool)) fields += tensor.statistic ? size(width(problem_, tensor)) : 1;
    return fields;
}

template <class Real>
std::int64_t CpuSlots<Real>::width_of(Pool pool, std::size_t field) const {
    const auto& tensor = layouts::tensors(pool)[std::min(field, layouts::tensors(pool).size() - 1)];
    return tensor.statistic ? 1 : width(problem_, tensor);
}

template <class Real>
std::int64_t CpuSlots<Real>::head_numbers(Pool pool, std::int64_t tokens) const {
    return problem_.batch * tokens * width(problem_, pool);
}

template <class Real>
void CpuSlots<Real>::make_own(Pool pool) {
    const auto heads = heads_of(problem_, pool);
    own_[index(pool)].assign(size(heads * head_numbers(pool, of_rows(pool) ? own_rows_ : own_tokens_)), 0);
}

template <class Real>
void CpuSlots<Real>::begin(const layouts::Schedule& pass) {
    drop_scratch();
    pass_ = &pass;
    for (const auto& group : pass.slots())
        for (int slot = 0; slot < group.count; ++slot)
            scratch_[index(group.pool)].emplace_back(size(group.heads * head_numbers(group.pool, group.tokens)));
}

template <class Real>
void CpuSlots<Real>::drop_scratch() {
    for (auto& slots : scratch_) slots.clear();
}

template <class Real>
const std::vector<Real>& CpuSlots<Real>::memory(const Place& place) const {
    return place.slot == 0 ? own_[index(place.pool)] : scratch_[index(place.pool)].at(size(place.slot - 1));
}

template <class Real>
std::int64_t CpuSlots<Real>::offset(const Place& place, int head, std::int64_t batch, std::size_t field) const {
    auto offset = (head - place.first_head) * head_numbers(place.pool, place.block_tokens);
    for (std::size_t before = 0; before < field; ++before)
        offset += problem_.batch * place.block_tokens * width_of(place.pool, before);
    return offset + (batch * place.block_tokens + place.tokens.begin) * width_of(place.pool, field);
}

template <class Real>
MatrixView<const Real> CpuSlots<Real>::matrix(const Place& place, int head, std::int64_t batch,
                                              std::size_t field) const {
    const auto columns = width_of(place.pool, field);
    return {memory(place).data() + offset(place, head, batch, field), place.tokens.size(), columns, columns};
}

template <class Real>
MatrixView<Real> CpuSlots<Real>::matrix(const Place& place, int head, std::int64_t batch, std::size_t field) {
    const auto view = std::as_const(*this).matrix(place, head, batch, field);
    return {const_cast<Real*>(view.data), view.rows, view.columns, view.stride};
}

template <class Real>
std::span<Real> CpuSlots<Real>::vector(const Place& place, int head, std::int64_t batch, std::size_t field) {
    return {matrix(place, head, batch, field).data, size(place.tokens.size())};
}

template <class Real>
DType CpuSlots<Real>::dtype(const Place& place) const {
    return pass_->dtype(place.pool, place.slot);
}

template <class Real>
template <class Visit>
void CpuSlots<Real>::for_each_piece(const Place& place, Visit visit) {
    for (int head = place.heads.begin; head < place.heads.end; ++head)
        for (std::size_t field = 0; field < fields(place.pool); ++field)
            for (std::int64_t b = 0; b < problem_.batch; ++b) {
                const auto numbers = matrix(place, head, b, field);
                visit(std::span<Real>(numbers.data, size(numbers.rows * numbers.columns)),
                      field > 0 && of_rows(place.pool));
            }
}

template <class Real>
void CpuSlots<Real>::round(const Place& place) {
    const auto narrow = dtype(place);
    if (narrow == native<Real>) return;
    for_each_piece(place, [&](std::span<Real> numbers, bool statistic) {
        if (!statistic) round_in_place(numbers, narrow);
    });
}

template <class Real>
void CpuSlots<Real>::pack(const Place& place, Bytes& message) {
    std::size_t bytes = 0;
    const auto type_of = [&](bool statistic) { return statistic ? native<Real> : dtype(place); };
    for_each_piece(place, [&](std::span<Real> numbers, bool statistic) {
        bytes += numbers.size() * size(bytes_of(type_of(statistic)));
    });
    message.resize(bytes);
    std::span<std::byte> rest(message);
    for_each_piece(place, [&](std::span<Real> numbers, bool statistic) {
        const auto piece = rest.first(numbers.size() * size(bytes_of(type_of(statistic))));
        store_elements<Real>(numbers, type_of(statistic), piece);
        rest = rest.subspan(piece.size());
    });
}

template <class Real>
void CpuSlots<Real>::unpack(const Place& place, std::span<const std::byte> message) {
    for_each_piece(place, [&](std::span<Real> numbers, bool statistic) {
        const auto type = statistic ? native<Real> : dtype(place);
        const auto piece = message.first(numbers.size() * size(bytes_of(type)));
        load_elements<Real>(piece, type, numbers);
        message = message.subspan(piece.size());
    });
}

template <class Real>
std::int64_t CpuSlots<Real>::own_bytes() const {
    std::size_t numbers = 0;
    for (const auto& slot : own_) numbers += slot.size();
    return static_cast<std::int64_t>(numbers * sizeof(Real));
}

template <class Real>
std::int64_t CpuSlots<Real>::scratch_bytes() const {
    std::size_t numbers = 0;
    for (const auto& slots : scratch_)
        for (const auto& slot : slots) numbers += slot.size();
    return static_cast<std::int64_t>(numbers * sizeof(Real));
}

template class CpuSlots<float>;
template class CpuSlots<double>;

}  // namespace ringlab::reference
