#include "reference/attention/blocked.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "reference/attention/blocked_tile.hpp"
#include "reference/attention/dense.hpp"
#include "reference/features/sinks.hpp"

#include <atomic>
#include <memory>
#include <thread>

namespace ringlab::reference {
namespace {

template <class AnyTensor>
auto tokens_view(AnyTensor& tensor, std::int64_t batch, std::int64_t head, layouts::Interval tokens) {
    return head_view(tensor, batch, head, tokens.begin, tokens.size());
}

// The numbers of one batch element and head, from row `first` on.
template <class AnyLse>
auto rows_view(AnyLse& lse, std::int64_t batch, std::int64_t head, std::int64_t first) {
    const auto heads = static_cast<std::int64_t>(lse.shape(2));
    const auto offset = (batch * static_cast<std::int64_t>(lse.shape(1)) + first) * heads + head;
    return StridedView<std::remove_pointer_t<decltype(lse.data())>>{lse.data() + offset, heads};
}

std::span<const std::int64_t> part(std::span<const std::int64_t> positions, layouts::Interval range) {
    return positions.subspan(size(range.begin), size(range.size()));
}

/// The rows and keys of a patch that a Tile processes at once, as ranges of indices.
struct Piece {
    layouts::Interval rows, keys;
    bool may_hide_pairs;  // whether some pair may be hidden by the mask
};

/// A patch cut into tiles, with what is needed to find out which tiles have visible pairs. Memory is linear in rows and
/// keys.
class TiledPatch {
public:
    TiledPatch(const Patch& patch, const BlockedOptions& options) : patch_(patch) {
        require(options.tile_rows > 0 && options.tile_keys > 0, "tiles of {} rows x {} keys; both must be at least 1",
                options.tile_rows, options.tile_keys);
        const auto rows = static_cast<std::int64_t>(patch.rows.size());
        for (std::int64_t begin = 0; begin < rows; begin += options.tile_rows) {
            row_tiles_.push_back({begin, std::min(begin + options.tile_rows, rows)});
            hulls_.push_back(hull(row_tiles_.back()));
        }
        key_tiles_ = layouts::key_tiles(patch.mask, layouts::runs_of(patch.keys), options.tile_keys);
    }

    std::int64_t row_tiles() const { return static_cast<std::int64_t>(hulls_.size()); }
    std::int64_t key_tiles() const { return static_cast<std::int64_t>(key_tiles_.size()); }
    layouts::Interval rows(std::int64_t i) const { return row_tiles_[size(i)]; }
    layouts::Interval keys(std::int64_t j) const { return {key_tiles_[size(j)].begin, key_tiles_[size(j)].end}; }
    layouts::TileKind kind(std::int64_t i, std::int64_t j) const {
        return layouts::classify(hulls_[size(i)], key_tiles_[size(j)]);
    }

    /// The first key tile from `j` on that is not empty for row tile `i`; key_tiles() if there is none.
    std::int64_t next_tile(std::int64_t i, std::int64_t j) const {
        while (j < key_tiles() && kind(i, j) == layouts::TileKind::empty) ++j;
        return j;
    }

    /// Calls visit(Piece) for the pieces of a tile. A full tile is one piece. A partial tile has a piece for each strip
    /// of rows, with the keys from the first to the last that the strip sees, which saves half or more of the wasted
    /// work along a causal diagonal.
    template <class Visit>
    void for_each_piece(std::int64_t i, std::int64_t j, Visit visit) const {
        const auto tile_kind = kind(i, j);
        if (tile_kind == layouts::TileKind::empty) return;
        if (tile_kind == layouts::TileKind::full) return visit(Piece{rows(i), keys(j), false});
        for (auto begin = rows(i).begin; begin < rows(i).end; begin += strip_rows) {
            const layouts::Interval strip{begin, std::min(begin + strip_rows, rows(i).end)};
            const auto seen = seen_keys(hull(strip), keys(j));
            if (seen.size() > 0) visit(Piece{strip, seen, true});
        }
    }

private:
    static constexpr std::int64_t strip_rows = 64;

    layouts::RowHull hull(layouts::Interval rows) const {
        return layouts::row_hull(patch_.mask, layouts::runs_of(part(patch_.rows, rows)), 0, rows.size());
    }

    /// The keys in `range` from the first to the last that a row of the hull sees.
    layouts::Interval seen_keys(const layouts::RowHull& hull, layouts::Interval range) const {
        const auto first = patch_.keys.begin() + range.begin, last = patch_.keys.begin() + range.end;
        const auto index = [&](std::int64_t position) {
            return std::lower_bound(first, last, position) - patch_.keys.begin();
        };
        return {*first < hull.max_sink ? range.begin : index(std::min(hull.min_begin, hull.min_earlier)),
                index(hull.max_end)};
    }

    const Patch& patch_;
    std::vector<layouts::Interval> row_tiles_;
    std::vector<layouts::RowHull> hulls_;
    std::vector<layouts::KeyTile> key_tiles_;
};

/// Runs work(tile, task) for all tasks on several threads, each with its own Tile. Tasks start in order.
template <class Work>
void run_tasks(const Patch& patch, const BlockedOptions& options, std::int64_t tasks, Work work) {
    const auto available = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
    const auto threads = std::min(tasks, options.threads > 0 ? options.threads : available);
    // Allocated before any thread starts, because a thread that failed later would leave others waiting for its
    // results.
    std::vector<Tile> tiles;
    for (std::int64_t n = 0; n < threads; ++n) tiles.emplace_back(patch.problem, patch.mask, options);

    const SingleThreadedBlas guard;
    std::atomic<std::int64_t> next = 0;
    std::vector<std::jthread> workers;
    for (auto& tile : tiles)
        workers.emplace_back([&] {
            for (std::int64_t task = next++; task < tasks; task = next++) work(tile, task);
        });
}

TileOperands operands(const Patch& patch, const Piece& piece, std::int64_t batch, std::int64_t query_head) {
    const auto kv_head = query_head / patch.problem.query_heads_per_kv_head();
    return {tokens_view(patch.q, batch, query_head, piece.rows),
            tokens_view(patch.k, batch, kv_head, piece.keys),
            tokens_view(patch.v, batch, kv_head, piece.keys),
            part(patch.rows, piece.rows),
            part(patch.keys, piece.keys),
            piece.may_hide_pairs,
            batch,
            query_head};
}

void wait_for(const std::atomic<std::int64_t>& turn, std::int64_t value) {
    for (auto now = turn.load(); now != value; now = turn.load()) turn.wait(now);
}

}  // namespace

void patch_forward(const Patch& patch, Tensor& o, Lse& lse, const BlockedOptions& options) {
    const auto& problem = patch.problem;
    const TiledPatch tiled(patch, options);
    o = Tensor({size(problem.batch), patch.rows.size(), size(problem.query_heads), size(problem.value_dim)}, 0.0);
    lse = Lse({size(problem.batch), patch.rows.size(), size(problem.query_heads)});

    // The last rows of a causal mask see most keys. They come first, so that no thread has a long task at the end.
    const auto heads = problem.batch * problem.query_heads;
    run_tasks(patch, options, tiled.row_tiles() * heads, [&](Tile& tile, std::int64_t task) {
        const auto i = tiled.row_tiles() - 1 - task / heads;
        const auto b = task % heads / problem.query_heads, h = task % problem.query_heads;
        const auto rows = tiled.rows(i);
        tile.begin_rows(rows.size());
        for (auto j = tiled.next_tile(i, 0); j < tiled.key_tiles(); j = tiled.next_tile(i, j + 1))
            tiled.for_each_piece(i, j, [&](const Piece& piece) {
                tile.attend(operands(patch, piece, b, h), piece.rows.begin - rows.begin,
                            tokens_view(o, b, h, piece.rows));
            });
        tile.finish_rows(tokens_view(o, b, h, rows), rows_view(lse, b, h, rows.begin));
    });
}

void patch_backward(const Patch& patch, const Tensor& dout, const Lse& lse, const Lse& delta,
                    const PatchGradients& gradients, const BlockedOptions& options) {
    const auto& problem = patch.problem;
    const TiledPatch tiled(patch, options);
    for (const auto& [gradient, like] :
         {std::pair{gradients.dq, &patch.q}, {gradients.dk, &patch.k}, {gradients.dv, &patch.v}})
        if (gradient != nullptr) *gradient = Tensor(like->shape(), 0.0);

    // A task owns the dk and dv of one key tile. The tasks of all key tiles add to the dq of a row tile, in the order
    // of key tiles (ordered accumulation), so the sum is the same for any number of threads. A task waits only for
    // tasks that started before it, so there is no deadlock.
    const auto row_tile_index = [&](std::int64_t b, std::int64_t h, std::int64_t i) {
        return size((b * problem.query_heads + h) * tiled.row_tiles() + i);
    };
    std::vector<std::atomic<std::int64_t>> next_key_tile(row_tile_index(problem.batch, 0, 0));
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (std::int64_t h = 0; h < problem.query_heads; ++h)
            for (std::int64_t i = 0; i < tiled.row_tiles(); ++i)
                next_key_tile[row_tile_index(b, h, i)] = tiled.next_tile(i, 0);

    const auto group = problem.query_heads_per_kv_head();
    const auto heads = problem.batch * problem.kv_heads;
    run_tasks(patch, options, tiled.key_tiles() * heads, [&](Tile& tile, std::int64_t task) {
        const auto j = task / heads, b = task % heads / problem.kv_heads, g = task % problem.kv_heads;
        for (auto h = g * group; h < (g + 1) * group; ++h)
            for (std::int64_t i = 0; i < tiled.row_tiles(); ++i) {
                if (tiled.kind(i, j) == layouts::TileKind::empty) continue;
                auto& turn = next_key_tile[row_tile_index(b, h, i)];
                tiled.for_each_piece(i, j, [&](const Piece& piece) {
                    const auto operand = operands(patch, piece, b, h);
                    const auto dout_rows = tokens_view(dout, b, h, piece.rows);
                    tile.differentiate(operand, dout_rows, rows_view(lse, b, h, piece.rows.begin),
                                       rows_view(delta, b, h, piece.rows.begin));
                    if (gradients.dk != nullptr) tile.add_dk(operand, tokens_view(*gradients.dk, b, g, piece.keys));
                    if (gradients.dv != nullptr) tile.add_dv(dout_rows, tokens_view(*gradients.dv, b, g, piece.keys));
                    if (gradients.dq != nullptr) {
                        const auto dq = tile.dq(operand);
                        wait_for(turn, j);
                        add(dq, tokens_view(*gradients.dq, b, h, piece.rows));
                    }
                });
                wait_for(turn, j);
                turn = tiled.next_tile(i, j + 1);
                turn.notify_all();
            }
    });
}

Lse row_delta(const Tensor& dout, const Tensor& o) {
    Lse delta({o.shape(0), o.shape(1), o.shape(2)});
    const auto dim = o.shape(3);
    for (std::size_t row = 0; row < delta.size(); ++row)
        delta.data()[row] =
            std::inner_product(o.data() + row * dim, o.data() + (row + 1) * dim, dout.data() + row * dim, 0.0);
    return delta;
}

void blocked_forward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs, Outputs& outputs,
                     const BlockedOptions& options) {
    require_inputs(problem, mask, inputs);
    const auto rows = problem.row_positions(), keys = all_positions(problem.tokens);
    patch_forward({problem, mask, rows, keys, inputs.q, inputs.k, inputs.v}, outputs.o, outputs.lse, options);
    add_sinks(problem, outputs.o, outputs.lse);
}

void blocked_backward(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                      Outputs& outputs, const BlockedOptions& options) {
    require_inputs(problem, mask, inputs);
    require_shape("o", outputs.o.shape(), {problem.batch, problem.rows(), problem.query_heads, problem.value_dim});
    const auto rows = problem.row_positions(), keys = all_positions(problem.tokens);
    const auto delta = row_delta(inputs.dout, outputs.o);
    patch_backward({problem, mask, rows, keys, inputs.q, inputs.k, inputs.v}, inputs.dout, outputs.lse, delta,
                   {&outputs.dq, &outputs.dk, &outputs.dv}, options);
    outputs.dsinks = sink_gradient(problem, outputs.lse, delta);
}

Outputs blocked_attention(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                          const BlockedOptions& options) {
    Outputs outputs;
    blocked_forward(problem, mask, inputs, outputs, options);
    blocked_backward(problem, mask, inputs, outputs, options);
    return outputs;
}

}  // namespace ringlab::reference
