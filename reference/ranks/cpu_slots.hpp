#pragma once

#include "layouts/program/program.hpp"
#include "reference/ranks/transport.hpp"
#include "reference/tensors/blas.hpp"

#include <array>
#include <span>
#include <vector>

namespace ringlab::reference {

using layouts::Place;

/// The slots of one rank (see layouts::Op). All are stored in the type of the arithmetic; numbers of a slot with a
/// narrower element type are rounded to that type when they are written.
///
/// A block is stored head by head, and a head field by field, each field as (batch, tokens, width): K, then V; o, then
/// lse; and so on. So consecutive heads of a whole block are contiguous in memory.
template <class Real>
class CpuSlots {
public:
    /// `own_rows` and `own_tokens`: number of tokens in slot 0 of pools of rows, and of pools of keys.
    CpuSlots(const layouts::Problem& problem, std::int64_t own_rows, std::int64_t own_tokens);

    /// Allocates slot 0 of a pool, if necessary, and fills it with 0.
    void make_own(layouts::Pool pool);

    /// Allocates the scratch slots of a pass and frees those of the pass before.
    void begin(const layouts::Schedule& pass);
    void drop_scratch();

    /// Fields of a pool: its tensors by layouts::pool_table, but each number of a statistic is a field of width 1, so
    /// that the lse and the delta of rows are two vectors. Statistics are a pool's last tensors.
    std::size_t fields(layouts::Pool pool) const;

    /// One field of one head and batch element of a place: (tokens, width).
    MatrixView<Real> matrix(const Place& place, int head, std::int64_t batch, std::size_t field = 0);
    MatrixView<const Real> matrix(const Place& place, int head, std::int64_t batch, std::size_t field = 0) const;

    /// A field that is a statistic, by token.
    std::span<Real> vector(const Place& place, int head, std::int64_t batch, std::size_t field);

    /// Rounds the numbers at a place to the slot's element type.
    void round(const Place& place);

    /// Converts a place to the bytes of a message, which has the slot's element type, and back.
    void pack(const Place& place, Bytes& message);
    void unpack(const Place& place, std::span<const std::byte> message);

    std::int64_t own_bytes() const;
    std::int64_t scratch_bytes() const;

private:
    layouts::DType dtype(const Place& place) const;
    std::int64_t width_of(layouts::Pool pool, std::size_t field) const;
    std::int64_t head_numbers(layouts::Pool pool, std::int64_t tokens) const;
    const std::vector<Real>& memory(const Place& place) const;
    std::int64_t offset(const Place& place, int head, std::int64_t batch, std::size_t field) const;

    /// Calls visit(numbers of one field of one head and batch element, whether the field is a statistic), in the order
    /// of messages.
    template <class Visit>
    void for_each_piece(const Place& place, Visit visit);

    const layouts::Problem& problem_;
    std::int64_t own_rows_, own_tokens_;
    const layouts::Schedule* pass_ = nullptr;
    std::array<std::vector<Real>, layouts::pool_count> own_;
    std::array<std::vector<std::vector<Real>>, layouts::pool_count> scratch_;
};

}  // namespace ringlab::reference
