#include "layouts/problem/problem.hpp"

#include "layouts/basics/checked_arithmetic.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/basics/typed_names.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::layouts {
namespace {

constexpr double rates = std::uint32_t{1} << DropoutDraw::bits;

}  // namespace

std::string text_of(const Dropout& dropout) {
    return dropout.drops() ? fmt::format("{}, seed {}", dropout.probability, dropout.seed) : "none";
}

double Dropout::rate() const { return std::round(probability * rates) / rates; }

DropoutDraw dropout_draw(const Dropout& dropout) {
    DropoutDraw draw{.round_keys = philox_round_keys<7>(
                         {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)}),
                     .below = static_cast<std::uint32_t>(dropout.rate() * rates)};
    for (int i = 0; i < DropoutDraw::bits; ++i)
        draw.clear_bits[static_cast<std::size_t>(i)] = draw.below >> (DropoutDraw::bits - 1 - i) & 1 ? 0 : ~0u;
    return draw;
}

void validate(const Dropout& dropout) {
    require(dropout.probability >= 0 && dropout.probability < 1,
            "the probability of dropout is {}; it must be from 0, for none, to below 1", dropout.probability);
    require(!dropout.drops() || (dropout.rate() > 0 && dropout.rate() < 1),
            "the probability of dropout is {}; pairs are dropped at a multiple of 2^-16, so it must be 0 or from 2^-17 "
            "to below 1 - 2^-17",
            dropout.probability);
}

Latent parse_latent(const std::string& spec) {
    const auto plus = spec.find('+');
    const auto rank = whole_number(std::string_view(spec).substr(0, plus), false);
    const auto shared = plus == std::string::npos ? std::optional<std::int64_t>(0)
                                                  : whole_number(std::string_view(spec).substr(plus + 1), false);
    require(rank && shared && *rank > 0,
            "latent '{}' is not RANK+SHARED, as 512+64: how many numbers K and V are computed from (at least 1), and "
            "how many dims of K all heads share",
            spec);
    return {*rank, *shared};
}

std::string text_of(const Latent& latent) {
    return latent.is_given() ? fmt::format("{}+{}", latent.rank, latent.shared) : "none";
}

std::array<std::int64_t, 4> Problem::key_shape() const {
    if (latent.is_given()) return {batch, tokens, 1, latent.width()};
    return {batch, tokens, kv_heads, head_dim};
}

std::array<std::int64_t, 4> Problem::value_shape() const {
    if (latent.is_given()) return {1, kv_heads, expanded_dim(), latent.rank};
    return {batch, tokens, kv_heads, value_dim};
}

Problem Problem::expanded() const {
    auto problem = *this;
    problem.scale = effective_scale();
    problem.latent = {};
    return problem;
}

Problem Problem::with_latent_as_key() const {
    if (!latent.is_given()) return *this;
    auto problem = expanded();
    problem.kv_heads = 1;
    problem.head_dim = latent.width();
    problem.rotary.first += latent.rank - own_key_dim();
    return problem;
}

double Problem::effective_scale() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : scale; }

std::optional<std::int64_t> tensor_bytes(const Problem& p, std::int64_t bytes_each) {
    const auto each = checked_product({2 * bytes_each, p.batch, p.head_dim + p.value_dim});
    const auto rows = each ? checked_product({*each, p.rows(), p.query_heads}) : std::nullopt;
    const auto keys = each ? checked_product({*each, p.tokens, p.kv_heads}) : std::nullopt;
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    if (!rows || !keys || *rows > most - *keys) return std::nullopt;
    return *rows + *keys;
}

std::int64_t Problem::rows() const { return rows_below(tokens); }

std::int64_t Problem::rows_below(std::int64_t position) const {
    if (queries.empty()) return position;
    std::int64_t below = 0;
    for (const auto& rows : queries) below += std::clamp<std::int64_t>(position - rows.begin, 0, rows.size());
    return below;
}

std::vector<std::int64_t> Problem::row_indices_of(std::span<const std::int64_t> positions) const {
    std::vector<std::int64_t> rows;
    rows.reserve(positions.size());
    for (const auto position : positions) rows.push_back(rows_below(position));
    return rows;
}

std::vector<std::int64_t> Problem::row_positions() const {
    std::vector<std::int64_t> positions;
    for (const auto& rows : queries.empty() ? std::vector<Interval>{{0, tokens}} : queries)
        for (auto position = rows.begin; position < rows.end; ++position) positions.push_back(position);
    return positions;
}

void Problem::validate() const {
    // With these limits the product of any three of heads and dims fits into 64 bits, and so do the bytes of all
    // tensors, of copies of them and of scratch slots together.
    constexpr std::int64_t most_heads = 1 << 20, most_dims = 1 << 20, most_bytes = std::int64_t{1} << 58;
    require(batch > 0, "batch is {}; it must be at least 1", batch);
    require(tokens > 0, "tokens is {}; the sequence must hold at least 1 token", tokens);
    require(tokens <= (std::int64_t{1} << 31),
            "tokens is {}; at most 2^31 are supported (pairs are counted in 64 bits)", tokens);
    require(query_heads > 0 && kv_heads > 0, "heads are {}:{}; both must be at least 1", query_heads, kv_heads);
    require(query_heads <= most_heads && kv_heads <= most_heads, "heads are {}:{}; at most {} are supported",
            query_heads, kv_heads, most_heads);
    require(query_heads % kv_heads == 0,
            "{} query heads do not share {} kv heads evenly; query heads must be a multiple of kv heads", query_heads,
            kv_heads);
    require(head_dim > 0 && value_dim > 0, "head and value dims are {} and {}; both must be at least 1", head_dim,
            value_dim);
    require(head_dim <= most_dims && value_dim <= most_dims,
            "head and value dims are {} and {}; at most {} are supported", head_dim, value_dim, most_dims);
    require(tensor_bytes(*this, bytes_of(DType::fp64)).value_or(most_bytes) < most_bytes,
            "batch {} of {} tokens with {}:{} heads of {} and {} makes tensors of more than 2^58 bytes; give a smaller "
            "batch, fewer tokens or heads, or smaller dims",
            batch, tokens, query_heads, kv_heads, head_dim, value_dim);
    std::int64_t previous_end = 0;
    for (const auto& rows : queries) {
        require(rows.begin >= previous_end && rows.size() > 0 && rows.end <= tokens,
                "queries at positions [{}, {}) are empty, out of order or past the {} tokens of the sequence",
                rows.begin, rows.end, tokens);
        previous_end = rows.end;
    }
    require(std::isfinite(scale), "scale is {}; it must be finite", scale);
    require(std::isfinite(soft_cap) && soft_cap >= 0, "soft cap is {}; it must be positive, or 0 for none", soft_cap);
    require(sinks.empty() || static_cast<std::int64_t>(sinks.size()) == query_heads,
            "there are {} sink logits for {} query heads; give one for each head, or none", sinks.size(), query_heads);
    for (const double sink : sinks)
        require(sink < std::numeric_limits<double>::infinity(),
                "a sink logit is {}; it must be a number, or -inf for a head without a sink", sink);
    layouts::validate(dropout);
    if (rotary.rotates()) rotary_table(rotary, head_dim);
    if (!latent.is_given()) return;
    require(latent.rank <= most_dims && latent.shared >= 0 && latent.shared < head_dim,
            "latent {} with head dim {}: the shared dims must be fewer than the head dim, and the rank at most {} "
            "(--latent, --head-dim)",
            text_of(latent), head_dim, most_dims);
    require(query_heads == kv_heads, "latent {} with {}:{} heads: each query head has K and V of its own; say {}:{}",
            text_of(latent), query_heads, kv_heads, query_heads, query_heads);
    require(!rotary.rotates() || rotary.first >= own_key_dim(),
            "dims from {} on are rotated, but only the last {} of {} dims may be, those that the heads of latent {} "
            "share; give first:{} to --rotary",
            rotary.first, latent.shared, head_dim, text_of(latent), own_key_dim());
}

}  // namespace ringlab::layouts
