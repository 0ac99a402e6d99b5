// From a draft to pieces.

#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

Pieces Planner::cut(const Draft& d, int bands) const {
    Pieces pieces(parts_.size());
    for (const auto& item : d.items) pieces[item.part].push_back({item.tokens, static_cast<int>(item.rank)});
    for (auto& of_part : pieces) {
        std::ranges::sort(of_part, {}, [](const PlanPiece& piece) { return piece.tokens.begin; });
        std::vector<PlanPiece> joined;
        for (const auto& piece : of_part)
            if (!joined.empty() && joined.back().rank == piece.rank)
                joined.back().tokens.end = piece.tokens.end;
            else
                joined.push_back(piece);
        of_part = std::move(joined);
    }
    std::vector<std::vector<Share>> shares(d.chain.size());
    lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
        shares[place].push_back({static_cast<int>(rank), tokens});
    });
    for (std::size_t place = 0; place < d.chain.size(); ++place)
        pieces[d.chain[place]] = in_even_bands(d.chain[place], shares[place], bands);
    return pieces;
}

std::vector<PlanPiece> Planner::in_even_bands(std::size_t part, const std::vector<Share>& shares, int limit) const {
    constexpr double even = 1.03;
    std::vector<PlanPiece> best;
    auto least = std::numeric_limits<double>::infinity();
    const auto mean = parts_[part].pairs / static_cast<double>(length(part));
    for (const int bands : {1, 2, 4, 8, 16}) {
        if (bands > limit) break;
        auto pieces = in_bands(part, shares, bands);
        std::vector<double> pairs(ranks_, 0);
        for (const auto& piece : pieces) pairs[static_cast<std::size_t>(piece.rank)] += pricer_.pairs(piece.tokens);
        double most = 1;
        for (const auto& share : shares)
            most = std::max(
                most, 1 + (pairs[static_cast<std::size_t>(share.rank)] / mean - static_cast<double>(share.tokens)) *
                              static_cast<double>(shares.size()) / static_cast<double>(length(part)));
        if (most >= least * 0.99) continue;  // because more bands mean more messages
        least = most;
        best = std::move(pieces);
        if (least <= even) break;
    }
    return best;
}

std::vector<PlanPiece> Planner::in_bands(std::size_t part, const std::vector<Share>& shares, int bands) const {
    std::vector<PlanPiece> pieces;
    auto at = parts_[part].tokens.begin;
    const auto add = [&](int rank, std::int64_t size) {
        if (size == 0) return;
        if (!pieces.empty() && pieces.back().rank == rank)
            pieces.back().tokens.end += size;
        else
            pieces.push_back({{at, at + size}, rank});
        at += size;
    };
    const auto in_band = [&](const Share& share, int band) {
        const auto whole_tiles = share.tokens / (bands * grain_) * grain_;
        return band + 1 < bands ? whole_tiles : share.tokens - (bands - 1) * whole_tiles;
    };
    for (int band = 0; band < bands; ++band)
        for (std::size_t k = 0; k < shares.size(); ++k) {
            const auto& share = shares[band % 2 == 0 ? k : shares.size() - 1 - k];
            add(share.rank, in_band(share, band));
        }
    return pieces;
}

}  // namespace ringlab::layouts
