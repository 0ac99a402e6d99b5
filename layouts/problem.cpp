#include "layouts/problem.hpp"

#include "layouts/require.hpp"

#include <cmath>

namespace ringlab::layouts {

double Problem::effective_scale() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : scale; }

std::int64_t Problem::kv_bytes(std::int64_t token_count, std::int64_t heads) const {
    return batch * token_count * heads * (head_dim + value_dim) * bytes_of(dtype);
}

std::int64_t Problem::dkv_bytes(std::int64_t token_count, std::int64_t heads, DType gradient_dtype) const {
    return batch * token_count * heads * (head_dim + value_dim) * bytes_of(gradient_dtype);
}

void Problem::validate() const {
    require(batch > 0, "batch is {}; it must be at least 1", batch);
    require(tokens > 0, "tokens is {}; the sequence must hold at least 1 token", tokens);
    require(tokens <= (std::int64_t{1} << 31),
            "tokens is {}; at most 2^31 are supported (pairs are counted in 64 bits)", tokens);
    require(query_heads > 0 && kv_heads > 0, "heads are {}:{}; both must be at least 1", query_heads, kv_heads);
    require(query_heads % kv_heads == 0,
            "{} query heads do not share {} kv heads evenly; query heads must be a multiple", query_heads, kv_heads);
    require(head_dim > 0 && value_dim > 0, "head and value dims are {} and {}; both must be at least 1", head_dim,
            value_dim);
    require(std::isfinite(scale), "scale is {}; it must be finite (0 for 1/sqrt(head_dim))", scale);
    require(std::isfinite(soft_cap) && soft_cap >= 0, "soft-cap is {}; it must be positive, or 0 for none", soft_cap);
}

}  // namespace ringlab::layouts
