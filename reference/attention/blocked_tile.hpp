#pragma once

#include "reference/attention/blocked.hpp"
#include "reference/features/dropout_factors.hpp"
#include "reference/tensors/blas.hpp"

#include <span>
#include <vector>

namespace ringlab::reference {

/// One number per row of a tile, `stride` apart.
template <class Element>
struct StridedView {
    Element* data = nullptr;
    std::int64_t stride = 0;

    Element& operator[](std::int64_t i) const { return data[i * stride]; }
};

/// Some rows and keys of one query head, as views of their tensors.
struct TileOperands {
    ConstMatrix q, k, v;
    std::span<const std::int64_t> rows, keys;  ///< global positions
    bool may_hide_pairs = false;               ///< whether some pair may be hidden by the mask
    std::int64_t batch = 0, head = 0;          ///< query head, on which dropout depends
};

/// Computes the scores of a tile of rows x keys and what follows from them, forward and backward. Each thread has one,
/// with space for tile_rows x tile_keys scores. Keeps references to `problem` and `mask`.
class Tile {
public:
    Tile(const layouts::Problem& problem, const layouts::Mask& mask, const BlockedOptions& options);

    /// Starts the running softmax of a row tile.
    void begin_rows(std::int64_t count);

    /// Forward: adds keys to the running maximum, sum and unnormalised `o` of the rows from `first_row` on.
    void attend(const TileOperands& operands, std::int64_t first_row, Matrix o);

    /// Ends the running softmax: o / sum and lse = maximum + log(sum). A fully masked row keeps o = 0 and gets lse =
    /// -inf.
    void finish_rows(Matrix o, StridedView<double> lse);

    /// Backward: computes p and ds, from which all gradients are matrix products, with the rows' final lse and delta.
    void differentiate(const TileOperands& operands, ConstMatrix dout, StridedView<const double> lse,
                       StridedView<const double> delta);

    void add_dk(const TileOperands& operands, Matrix dk);  ///< dk += scale * ds^T q
    void add_dv(ConstMatrix dout, Matrix dv);              ///< dv += p^T do
    ConstMatrix dq(const TileOperands& operands);          ///< scale * ds k, valid until the next call

private:
    void score(const TileOperands& operands);
    void hide(const TileOperands& operands);
    void draw(const TileOperands& operands);
    void drop(Matrix numbers) const;

    const layouts::Problem& problem_;
    const layouts::Mask& mask_;
    const DropoutFactors dropout_factors_;
    std::int64_t stride_;  // of s and ds: tile_keys rounded up to whole vectors
    std::vector<double> s_storage_, ds_storage_, dq_storage_;
    std::vector<double> factors_;        // dropout factors of the tile's pairs
    Matrix s_, ds_;                      // the part of the storage in use
    std::vector<double> maximum_, sum_;  // of each row of the row tile so far
    std::vector<char> key_is_valid_;
};

/// to += from, element by element.
void add(ConstMatrix from, Matrix to);

}  // namespace ringlab::reference
