#include "reference/ranks/cpu_attention.hpp"

#include "reference/tensors/blas.hpp"
#include "reference/tensors/rounding.hpp"

#include <cmath>
#include <limits>
#include <xsimd/xsimd.hpp>

namespace ringlab::reference {
namespace {

using layouts::TileKind;

template <class Real>
constexpr Real infinity = std::numeric_limits<Real>::infinity();

template <class Real>
constexpr auto lanes = static_cast<std::int64_t>(xsimd::batch<Real>::size);

template <class Real>
constexpr std::int64_t whole_vectors(std::int64_t count) {
    return (count + lanes<Real> - 1) / lanes<Real> * lanes<Real>;
}

template <class Real>
Real reduce(const xsimd::batch<Real>& vector, Real (*combine)(Real, Real)) {
    Real values[xsimd::batch<Real>::size];
    vector.store_unaligned(values);
    Real result = values[0];
    for (std::size_t lane = 1; lane < xsimd::batch<Real>::size; ++lane) result = combine(result, values[lane]);
    return result;
}

/// Calls sweep(address) for each whole vector of a row; the storage of the row extends to the end of the last vector.
template <class Real, class Sweep>
void sweep_row(Real* row, std::int64_t count, Sweep sweep) {
    for (Real* at = row; at < row + count; at += lanes<Real>) sweep(at);
}

template <class Real>
Real largest_of(Real* row, std::int64_t count) {
    using Vector = xsimd::batch<Real>;
    Vector largest(-infinity<Real>);
    sweep_row(row, count, [&](Real* at) { largest = xsimd::max(largest, Vector::load_unaligned(at)); });
    return reduce<Real>(largest, [](Real a, Real b) { return std::max(a, b); });
}

/// row = exp(row - shift); returns the sum.
template <class Real>
Real exponentiate(Real* row, std::int64_t count, Real shift) {
    using Vector = xsimd::batch<Real>;
    Vector sum(Real(0));
    sweep_row(row, count, [&](Real* at) {
        const Vector p = xsimd::exp(Vector::load_unaligned(at) - Vector(shift));
        p.store_unaligned(at);
        sum += p;
    });
    return reduce<Real>(sum, [](Real a, Real b) { return a + b; });
}

/// The number to subtract from scores; 0 if all of them are -inf, so that exp gives 0 and not NaN.
template <class Real>
Real finite_or_zero(Real x) {
    return x == -infinity<Real> ? 0 : x;
}

template <class Real>
bool is_finite(const Real* row, std::int64_t count) {
    xsimd::batch<Real> differences(Real(0));  // NaN where a number is not finite
    std::int64_t i = 0;
    for (; i + lanes<Real> <= count; i += lanes<Real>) {
        const auto x = xsimd::batch<Real>::load_unaligned(row + i);
        differences += x - x;
    }
    Real sum = reduce<Real>(differences, [](Real a, Real b) { return a + b; });
    for (; i < count; ++i) sum += row[i] - row[i];
    return sum == 0;
}

template <class Element>
MatrixView<Element> rows_of(MatrixView<Element> matrix, std::int64_t begin, std::int64_t end) {
    return {matrix.row(begin), end - begin, matrix.columns, matrix.stride};
}

}  // namespace

RowTiling tile_rows_of(const layouts::Mask& mask, std::span<const layouts::Run> shard, const TileSizes& sizes) {
    RowTiling tiling{sizes.rows, {}, {}, {}};
    for (const auto& run : shard)
        for (std::int64_t i = 0; i < run.count; ++i) {
            tiling.rows.push_back(mask.row(run.at(i)));
            tiling.positions.push_back(run.at(i));
        }
    const auto count = static_cast<std::int64_t>(tiling.rows.size());
    for (std::int64_t begin = 0; begin < count; begin += sizes.rows)
        tiling.tiles.push_back(layouts::row_hull(mask, shard, begin, std::min(begin + sizes.rows, count)));
    return tiling;
}

KeyTiling tile_keys_of(const layouts::Mask& mask, std::span<const layouts::Run> shard, const TileSizes& sizes) {
    KeyTiling tiling{{}, layouts::key_tiles(mask, shard, sizes.keys)};
    const bool all_valid = mask.all_keys_valid();
    for (const auto& run : shard)
        for (std::int64_t i = 0; i < run.count; ++i)
            tiling.positions.push_back(
                all_valid || mask.key_is_valid(run.at(i)) ? run.at(i) : std::numeric_limits<std::int64_t>::max());
    return tiling;
}

template <class Real>
BlockAttention<Real>::BlockAttention(const layouts::Problem& problem, const TileSizes& sizes)
    : problem_(problem),
      dropout_factors_(problem.dropout),
      stride_(whole_vectors<Real>(sizes.keys)),
      s_storage_(static_cast<std::size_t>(sizes.rows * stride_)),
      ds_storage_(s_storage_.size()),
      factors_(problem.dropout.drops() ? s_storage_.size() : 0),
      hidden_(s_storage_.size()) {}

template <class Real>
std::int64_t BlockAttention<Real>::workspace_bytes() const {
    return static_cast<std::int64_t>((s_storage_.size() + ds_storage_.size() + factors_.size()) * sizeof(Real)) +
           static_cast<std::int64_t>(hidden_.size() + finite_.capacity() * sizeof(Real));
}

/// s = cap(scale * q k^T), and -inf where the mask hides the key.
template <class Real>
void BlockAttention<Real>::score(const TileLocation& tile, TileKind kind, ConstView q, ConstView k) {
    using Vector = xsimd::batch<Real>;
    s_ = {s_storage_.data(), q.rows, k.rows, stride_};
    ds_ = {ds_storage_.data(), q.rows, k.rows, stride_};
    is_partial_ = kind == TileKind::partial;
    multiply(static_cast<Real>(problem_.effective_scale()), q, transpose(k), s_);
    const Vector cap(static_cast<Real>(problem_.soft_cap));
    for (std::int64_t r = 0; r < s_.rows; ++r) {
        Real* s = s_.row(r);
        if (problem_.soft_cap > 0)
            sweep_row(s, s_.columns,
                      [&](Real* at) { (cap * xsimd::tanh(Vector::load_unaligned(at) / cap)).store_unaligned(at); });
        // Elements after the last key must add nothing in loops over whole vectors.
        std::fill(s + s_.columns, s + whole_vectors<Real>(s_.columns), -infinity<Real>);
        if (!is_partial_) continue;
        const auto& seen = tile.rows.rows[static_cast<std::size_t>(tile.first_row + r)];
        const auto* positions = tile.keys.positions.data() + tile.columns.begin;
        for (std::int64_t c = 0; c < s_.columns; ++c) {
            const auto key = positions[c];
            bool visible = ((seen.begin <= key) & (key < seen.end)) | (key < seen.sink);
            for (const auto& keys : seen.earlier) visible |= keys.contains(key);
            s[c] = visible ? s[c] : -infinity<Real>;
            hidden_[static_cast<std::size_t>(r * stride_ + c)] = !visible;
        }
    }
    if (dropout_factors_.drops()) draw(tile);
}

/// d of every pair of the tile, which is 0 or 1 / (1 - probability).
template <class Real>
void BlockAttention<Real>::draw(const TileLocation& tile) {
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const auto keys =
        std::span(tile.keys.positions).subspan(at(tile.columns.begin), at(tile.columns.end - tile.columns.begin));
    for (std::int64_t r = 0; r < s_.rows; ++r)
        dropout_factors_.draw(std::span(factors_.data() + r * stride_, keys.size()), keys,
                              {tile.head.batch, tile.head.head, tile.rows.positions[at(tile.first_row + r)]});
}

/// Multiplies a row of the tile's numbers by d.
template <class Real>
void BlockAttention<Real>::drop(std::int64_t row, Real* numbers) const {
    const Real* factors = factors_.data() + row * stride_;
    for (std::int64_t c = 0; c < s_.columns; ++c) numbers[c] *= factors[c];
}

/// Sets a row of the tile's numbers to 0 where the mask hides the key. They may be NaN, as 0 times infinity is.
template <class Real>
void BlockAttention<Real>::clear_hidden(std::int64_t row, Real* numbers) const {
    if (!is_partial_) return;
    const char* hidden = hidden_.data() + row * stride_;
    for (std::int64_t c = 0; c < s_.columns; ++c) numbers[c] = hidden[c] ? 0 : numbers[c];
}

/// sums += factor * weights * b for weights of the tile's pairs (by rows) or their transpose (by keys). Weights of
/// hidden pairs are 0, but 0 times NaN is NaN: rows of b that are not finite are therefore added pair by pair, where
/// the mask shows them.
template <class Real>
void BlockAttention<Real>::multiply_seen(Real factor, By by, const View& weights, ConstView b, View sums) {
    const Factor<Real> a(weights, by == By::keys);
    std::vector<std::int64_t> others;  // rows of b that are not finite
    if (is_partial_)
        for (std::int64_t i = 0; i < b.rows; ++i)
            if (!is_finite(b.row(i), b.columns)) others.push_back(i);
    if (others.empty()) return multiply_add(factor, a, b, sums);
    finite_.assign(b.data, b.data + (b.rows - 1) * b.stride + b.columns);
    const View finite{finite_.data(), b.rows, b.columns, b.stride};
    for (const auto i : others) std::fill_n(finite.row(i), b.columns, Real(0));
    multiply_add(factor, a, finite, sums);
    for (const auto i : others)
        for (std::int64_t to = 0; to < sums.rows; ++to) {
            const auto row = by == By::rows ? to : i, key = by == By::rows ? i : to;
            if (hidden_[static_cast<std::size_t>(row * stride_ + key)]) continue;
            const Real weight = factor * weights.row(row)[key];
            for (std::int64_t d = 0; d < b.columns; ++d) sums.row(to)[d] += weight * b.row(i)[d];
        }
}

/// m' = max(m, m_b); l' = l*exp(m - m') + sum exp(s - m'); o' = o*exp(m - m') + d exp(s - m') v
template <class Real>
void BlockAttention<Real>::accumulate(const TileLocation& tile, ConstView v, const Softmax& state) {
    const auto first_row = tile.first_row;
    for (std::int64_t r = 0; r < s_.rows; ++r) {
        const auto row = static_cast<std::size_t>(first_row + r);
        auto& maximum = state.maximum[row];
        const Real larger = std::max(maximum, largest_of(s_.row(r), s_.columns));
        if (larger > maximum) {
            const Real shrink = std::exp(maximum - larger);
            Real* o = state.o.row(first_row + r);
            for (std::int64_t d = 0; d < state.o.columns; ++d) o[d] *= shrink;
            state.sum[row] *= shrink;
            maximum = larger;
        }
        state.sum[row] += exponentiate(s_.row(r), s_.columns, finite_or_zero(maximum));
        if (dropout_factors_.drops()) drop(r, s_.row(r));
        round_in_place(std::span(s_.row(r), static_cast<std::size_t>(s_.columns)), problem_.dtype);
    }
    multiply_seen(1, By::rows, s_, v, rows_of(state.o, first_row, first_row + s_.rows));
}

template <class Real>
void BlockAttention<Real>::forward(const RowTiling& rows, const KeyTiling& keys, Head head, ConstView q, ConstView k,
                                   ConstView v, const Softmax& state) {
    for (std::int64_t first = 0, tile = 0; first < q.rows; first += rows.tile_rows, ++tile) {
        const auto q_tile = rows_of(q, first, std::min(first + rows.tile_rows, q.rows));
        for (const auto& columns : keys.tiles) {
            const auto kind = classify(rows.tiles[static_cast<std::size_t>(tile)], columns);
            if (kind == TileKind::empty) continue;
            const TileLocation of{head, rows, first, keys, columns};
            score(of, kind, q_tile, rows_of(k, columns.begin, columns.end));
            accumulate(of, rows_of(v, columns.begin, columns.end), state);
        }
    }
}

template <class Real>
void BlockAttention<Real>::finish(const Softmax& state) {
    for (std::int64_t r = 0; r < state.o.rows; ++r) {
        auto& maximum = state.maximum[static_cast<std::size_t>(r)];
        const Real sum = state.sum[static_cast<std::size_t>(r)];
        if (sum == 0) continue;  // o is 0 and the maximum -inf already
        Real* o = state.o.row(r);
        for (std::int64_t d = 0; d < state.o.columns; ++d) o[d] /= sum;
        maximum += std::log(sum);
    }
}

/// Replaces s by d p, with p = exp(s - lse), and computes ds = p * (d dout v^T - delta) * cap' with cap' = 1 -
/// (s/cap)^2.
template <class Real>
void BlockAttention<Real>::differentiate(const TileLocation& tile, const Rows& rows, ConstView v) {
    using Vector = xsimd::batch<Real>;
    const auto first_row = tile.first_row;
    multiply(1, rows_of(rows.dout, first_row, first_row + s_.rows), transpose(v), ds_);
    const auto cap = static_cast<Real>(problem_.soft_cap);
    for (std::int64_t r = 0; r < s_.rows; ++r) {
        const auto row = static_cast<std::size_t>(first_row + r);
        const Real delta = rows.delta[row];
        const Vector lse(finite_or_zero(rows.lse[row]));
        Real* ds = ds_.row(r);
        Real* s = s_.row(r);
        if (dropout_factors_.drops()) drop(r, ds);
        for (std::int64_t c = 0; c < s_.columns; ++c) ds[c] -= delta;
        if (cap > 0)
            for (std::int64_t c = 0; c < s_.columns; ++c) {
                // A hidden key has score -inf and p = 0; its slope must stay finite, so that ds is 0, not 0 * inf.
                const Real slope = std::max(s[c], -cap) / cap;
                ds[c] *= 1 - slope * slope;
            }
        sweep_row(s, s_.columns, [&](Real* at) {
            const Vector p = xsimd::exp(Vector::load_unaligned(at) - lse);
            Real* gradient = ds + (at - s);
            p.store_unaligned(at);
            (p * Vector::load_unaligned(gradient)).store_unaligned(gradient);
        });
        if (dropout_factors_.drops()) drop(r, s);
        clear_hidden(r, s);
        clear_hidden(r, ds);
        round_in_place(std::span(s, static_cast<std::size_t>(s_.columns)), problem_.dtype);
        round_in_place(std::span(ds, static_cast<std::size_t>(s_.columns)), problem_.dtype);
    }
}

template <class Real>
void BlockAttention<Real>::backward(const RowTiling& tiling, const KeyTiling& keys, Head head, const Rows& rows,
                                    ConstView k, ConstView v, View dk, View dv) {
    const auto scale = static_cast<Real>(problem_.effective_scale());
    for (std::int64_t first = 0, tile = 0; first < rows.q.rows; first += tiling.tile_rows, ++tile) {
        const auto last = std::min(first + tiling.tile_rows, rows.q.rows);
        const auto q = rows_of(rows.q, first, last), dout = rows_of(rows.dout, first, last);
        for (const auto& columns : keys.tiles) {
            const auto kind = classify(tiling.tiles[static_cast<std::size_t>(tile)], columns);
            if (kind == TileKind::empty) continue;
            const auto k_tile = rows_of(k, columns.begin, columns.end), v_tile = rows_of(v, columns.begin, columns.end);
            const TileLocation of{head, tiling, first, keys, columns};
            score(of, kind, q, k_tile);
            differentiate(of, rows, v_tile);
            multiply_seen(1, By::keys, s_, dout, rows_of(dv, columns.begin, columns.end));
            multiply_seen(scale, By::keys, ds_, q, rows_of(dk, columns.begin, columns.end));
            multiply_seen(scale, By::rows, ds_, k_tile, rows_of(rows.dq, first, last));
        }
    }
}

template class BlockAttention<float>;
template class BlockAttention<double>;

}  // namespace ringlab::reference
