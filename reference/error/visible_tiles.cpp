#include "reference/error/visible_tiles.hpp"

#include "reference/features/dropout_factors.hpp"

#include <cmath>
#include <limits>
#include <span>

namespace ringlab::reference {

void for_each_tile(const layouts::Problem& problem, const layouts::Mask& mask, const std::vector<std::int64_t>& rows,
                   const std::vector<std::int64_t>& keys, const Tensor& q, const Tensor& dout, const Tensor& k,
                   const Tensor& v, const std::function<void(const Pairs&)>& visit) {
    constexpr std::int64_t side = 256;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto row_count = static_cast<std::int64_t>(rows.size()), key_count = static_cast<std::int64_t>(keys.size());
    std::vector<double> s_storage(size(side * side)), dp_storage(size(side * side)),
        dropped_storage(size(side * side), 1);
    const DropoutFactors dropout_factors(problem.dropout);
    std::vector<char> visible(size(side * side));
    std::vector<char> valid;
    for (const auto key : keys) valid.push_back(mask.key_is_valid(key));
    for (std::int64_t i = 0; i < row_count; i += side)
        for (std::int64_t j = 0; j < key_count; j += side) {
            const auto height = std::min(side, row_count - i), width = std::min(side, key_count - j);
            bool any = false;
            for (std::int64_t r = 0; r < height; ++r) {
                const auto seen = mask.row(rows[size(i + r)]);
                for (std::int64_t c = 0; c < width; ++c) {
                    const bool is = seen.contains(keys[size(j + c)]) && valid[size(j + c)];
                    visible[size(r * side + c)] = is;
                    any |= is;
                }
            }
            if (!any) continue;
            const Matrix s{s_storage.data(), height, width, side}, dp{dp_storage.data(), height, width, side};
            const Matrix dropped{dropped_storage.data(), height, width, side};
            for (std::int64_t b = 0; b < problem.batch; ++b)
                for (std::int64_t h = 0; h < problem.query_heads; ++h) {
                    const auto g = h / problem.query_heads_per_kv_head();
                    multiply(problem.effective_scale(), head_view(q, b, h, i, height),
                             transpose(head_view(k, b, g, j, width)), s);
                    multiply(1, head_view(dout, b, h, i, height), transpose(head_view(v, b, g, j, width)), dp);
                    for (std::int64_t r = 0; r < height; ++r) {
                        if (dropout_factors.drops())
                            dropout_factors.draw(std::span(dropped.row(r), size(width)),
                                                 std::span(keys).subspan(size(j), size(width)),
                                                 {b, h, rows[size(i + r)]});
                        for (std::int64_t c = 0; c < width; ++c) {
                            dp.row(r)[c] *= dropped.row(r)[c];
                            auto& score = s.row(r)[c];
                            if (problem.soft_cap > 0) score = problem.soft_cap * std::tanh(score / problem.soft_cap);
                            if (!visible[size(r * side + c)]) score = -infinity;
                        }
                    }
                    visit(Pairs{b, h, g, i, j, s, dp, dropped});
                }
        }
}

}  // namespace ringlab::reference
