// Drafts of plans: which parts form the chain, and how many ranks each of them takes up.

#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

bool Planner::is_long(std::size_t part, double most) const {
    if (parts_[part].pairs == 0) return false;
    const auto whole_share = whole_[part] * static_cast<double>(share_) / static_cast<double>(length(part));
    constexpr double dense = 0.6;  // others can be cut into items, which even out what denser parts leave
    return whole_[part] > most && whole_share > dense * most;
}

bool Planner::spreads(double most) const {
    for (std::size_t part = 0; part < parts_.size(); ++part)
        if (is_long(part, most)) return true;
    return false;
}

double Planner::least_that_fits() const {
    const auto fits = [&](double most) {
        const auto filler = filler_density(most);
        double wanted = 0;
        for (std::size_t part = 0; part < parts_.size(); ++part)
            if (is_long(part, most)) wanted += ranks_wanted(part, most, filler);
        return wanted <= static_cast<double>(ranks_);
    };
    constexpr int halvings = 12;
    constexpr double far = 4;
    if (fits(mean_)) return mean_;
    auto low = mean_, high = far * mean_;
    for (int i = 0; i < halvings; ++i) {
        const auto middle = (low + high) / 2;
        (fits(middle) ? high : low) = middle;
    }
    return high;
}

double Planner::filler_density(double most) const {
    double work = 0, tokens = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        if (is_long(part, most)) continue;
        work += whole_[part];
        tokens += static_cast<double>(length(part));
    }
    return tokens > 0 ? work / tokens : 0;
}

Draft Planner::draft(double most, bool everywhere) const {
    Draft d;
    const auto filler = filler_density(most);
    std::vector<std::size_t> longs;
    std::vector<double> wanted(parts_.size(), 0);
    for (std::size_t part = 0; part < parts_.size(); ++part) {
        if (!is_long(part, most)) continue;
        longs.push_back(part);
        wanted[part] = ranks_wanted(part, most, filler);
    }
    std::ranges::stable_sort(longs, std::greater{}, [&](std::size_t part) { return wanted[part]; });

    // After each part of the chain comes the longest one that still fits on the host, if there is one.
    std::vector<double> ranks;  // that each part of the chain takes up
    for (double at = 0; !longs.empty(); at += ranks.back()) {
        constexpr double crumb = 0.05;
        const auto per_host = static_cast<double>(prices_.ranks_per_host);
        const auto rest = per_host - std::fmod(at, per_host) + crumb;
        auto next = std::ranges::find_if(longs, [&](std::size_t part) { return wanted[part] <= rest; });
        if (next == longs.end()) next = longs.begin();
        d.chain.push_back(*next);
        d.density.push_back(token_seconds(*next, wanted[*next]));
        ranks.push_back(wanted[*next]);
        longs.erase(next);
    }
    const auto taken = std::accumulate(ranks.begin(), ranks.end(), 0.0);
    const auto all_taken = everywhere ? static_cast<double>(ranks_) : taken;
    for (auto& n : ranks) n *= all_taken / taken;
    assign_items(d, forecast(d, ranks, most), most);
    // Parts whose ranks work longer than others get more ranks.
    const auto place = forecast(d, ranks, most).place;
    std::vector<double> seconds(d.chain.size() + 1, 0);
    for (std::size_t rank = 0; rank < ranks_; ++rank) seconds[place[rank]] += d.seconds[rank];
    for (std::size_t i = 0; i < d.chain.size(); ++i)
        seconds[i] += d.density[i] * static_cast<double>(length(d.chain[i]));
    const auto all = std::accumulate(seconds.begin(), seconds.end() - 1, 0.0);
    for (std::size_t i = 0; i < d.chain.size(); ++i) ranks[i] = seconds[i] / all * all_taken;
    assign_items(d, forecast(d, ranks, most), most);
    return d;
}

ChainForecast Planner::forecast(const Draft& d, const std::vector<double>& ranks, double most) const {
    const auto behind = d.chain.empty() ? most / static_cast<double>(share_) : std::ranges::max(d.density);
    ChainForecast chain{std::vector(ranks_, behind), std::vector(ranks_, d.chain.size()),
                        std::vector(d.chain.size() + 1, 0.0)};
    std::vector<double> tokens(ranks_, 0), seconds(ranks_, 0), largest(ranks_, 0);
    double begin = 0;
    for (std::size_t place = 0; place < d.chain.size(); ++place) {
        const auto end = std::min(begin + ranks[place], static_cast<double>(ranks_));
        for (auto rank = static_cast<std::size_t>(begin); static_cast<double>(rank) < end; ++rank) {
            const auto first = static_cast<double>(rank);
            const auto overlap = std::min(end, first + 1) - std::max(begin, first);
            const auto here = static_cast<double>(length(d.chain[place])) * overlap / ranks[place];
            tokens[rank] += here;
            seconds[rank] += here * d.density[place];
            if (overlap > largest[rank]) {
                largest[rank] = overlap;
                chain.place[rank] = place;
            }
        }
        begin = end;
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (tokens[rank] > 0) chain.density[rank] = seconds[rank] / tokens[rank];
        chain.room[chain.place[rank]] += static_cast<double>(share_) - tokens[rank];
    }
    return chain;
}

double Planner::token_seconds(std::size_t part, double ranks) const {
    const auto tokens = static_cast<double>(length(part)), others = std::max(0.0, ranks - 1);
    auto seconds = whole_[part] / tokens;
    if (others == 0) return seconds;
    // For keys of other ranks.
    const auto launches = prices_.crosses_once ? std::ceil(ranks / prices_.ranks_per_host) : others;
    for (const auto& pass : prices_.passes)
        seconds +=
            launches * pass.visit + others * (pass.sum_key + pass.key) +
            (launches * pass.owner + others * pass.sum + pass.again * static_cast<double>(share_)) * ranks / tokens;
    return seconds;
}

double Planner::ranks_wanted(std::size_t part, double most, double filler) const {
    const auto tokens = static_cast<double>(length(part)), share = static_cast<double>(share_);
    double wanted = tokens / share;
    for (int i = 0; i < 3; ++i) {
        const auto seconds = token_seconds(part, wanted);
        auto each = share;
        if (seconds > filler) each = std::clamp((most - share * filler) / (seconds - filler), 1.0, share);
        wanted = tokens / each;
    }
    // A little more than a whole number is not worth one more rank.
    constexpr double little = 0.1;
    const auto whole = std::max(1.0, std::floor(wanted));
    if (wanted - whole < little * whole / (whole + 2)) wanted = std::max(whole, tokens / share);
    return std::min(wanted, static_cast<double>(ranks_));
}

}  // namespace ringlab::layouts
