#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/features/dropout_factors.hpp"
#include "reference/tensors/blas.hpp"

#include <span>
#include <vector>

namespace ringlab::reference {

/// Size of the tiles of rows x keys that the CPU backend computes at a time: small enough to skip most hidden pairs,
/// large enough for BLAS to be efficient.
struct TileSizes {
    std::int64_t rows = 64;
    std::int64_t keys = 64;
};

/// The keys that the query rows of a shard see, in local order and tile by tile.
struct RowTiling {
    std::int64_t tile_rows = 0;
    std::vector<layouts::RowKeys> rows;
    std::vector<std::int64_t> positions;
    std::vector<layouts::RowHull> tiles;
};
RowTiling tile_rows_of(const layouts::Mask& mask, std::span<const layouts::Run> shard, const TileSizes& sizes);

/// Positions of a block's keys in local order, and their tiles. A key that is not valid has a position that no row
/// sees.
struct KeyTiling {
    std::vector<std::int64_t> positions;
    std::vector<layouts::KeyTile> tiles;
};
KeyTiling tile_keys_of(const layouts::Mask& mask, std::span<const layouts::Run> shard, const TileSizes& sizes);

/// Attention of one query head's rows to one block of keys, in the arithmetic of `Real` (float or double). With a
/// 16-bit dtype the operands of every matrix product have that type, as on a GPU: p is rounded before p*v, p and ds
/// before the products of the backward pass. Sums stay in Real.
///
/// Formulas: Dao et al. 2022 (arXiv 2205.14135). Tiles without visible pairs are skipped, and only elements of partial
/// tiles are tested against the mask, so the time is about proportional to the visible pairs. A NaN or an infinity
/// reaches only rows and keys that see each other. One object per thread.
template <class Real>
class BlockAttention {
public:
    using View = MatrixView<Real>;
    using ConstView = MatrixView<const Real>;

    BlockAttention(const layouts::Problem& problem, const TileSizes& sizes);

    /// Running softmax of all rows: o is not yet divided by `sum`.
    struct Softmax {
        View o;
        std::span<Real> maximum;  ///< -inf before the first visible key
        std::span<Real> sum;      ///< 0 before the first visible key
    };

    /// Batch element and query head, on which dropout depends.
    struct Head {
        std::int64_t batch = 0, head = 0;
    };

    /// Adds the block to the running softmax.
    void forward(const RowTiling& rows, const KeyTiling& keys, Head head, ConstView q, ConstView k, ConstView v,
                 const Softmax& state);

    /// Ends the running softmax: divides o by the sum and replaces the maximum by lse. Fully masked rows get 0 and
    /// -inf.
    static void finish(const Softmax& state);

    /// Tensors of the rows in the backward pass. `lse` and `delta` = dout.o are over all keys, not those of a block.
    struct Rows {
        ConstView q, dout;
        std::span<const Real> lse, delta;
        View dq;
    };

    /// Adds the contribution of this block to dq, and that of these rows to dk and dv.
    void backward(const RowTiling& tiling, const KeyTiling& keys, Head head, const Rows& rows, ConstView k, ConstView v,
                  View dk, View dv);

    std::int64_t workspace_bytes() const;

private:
    /// Where a tile is: head, first row and keys.
    struct TileLocation {
        Head head;
        const RowTiling& rows;
        std::int64_t first_row;
        const KeyTiling& keys;
        const layouts::KeyTile& columns;
    };
    void score(const TileLocation& tile, layouts::TileKind kind, ConstView q, ConstView k);
    void draw(const TileLocation& tile);
    void drop(std::int64_t row, Real* numbers) const;
    void clear_hidden(std::int64_t row, Real* numbers) const;
    enum class By { rows, keys };
    void multiply_seen(Real factor, By by, const View& weights, ConstView b, View sums);
    void accumulate(const TileLocation& tile, ConstView v, const Softmax& state);
    void differentiate(const TileLocation& tile, const Rows& rows, ConstView v);

    const layouts::Problem& problem_;
    const DropoutFactors dropout_factors_;
    std::int64_t stride_;  // of s and ds: the tile's keys in whole vectors
    std::vector<Real> s_storage_, ds_storage_;
    std::vector<Real> factors_;  // dropout factors of the tile's pairs
    View s_, ds_;                // of the current tile
    std::vector<char> hidden_;   // of the current tile's pairs, if it is partial
    bool is_partial_ = false;
    std::vector<Real> finite_;  // a factor without its rows that are not finite
};

}  // namespace ringlab::reference
