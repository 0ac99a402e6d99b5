// What it takes to make a plan, on one core: packings of 8192 tokens a rank with lengths as documents have them.

#include "layouts/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <vector>

int main() {
    using namespace ringlab::layouts;
    constexpr int packings = 20;
    fmt::print("{} packings each, {} tokens a rank: milliseconds of processor time a plan\nranks  median  most\n",
               packings, 8192);
    for (const int ranks : {8, 64, 512, 1024}) {
        std::vector<double> times;
        for (int seed = 1; seed <= packings; ++seed) {
            std::mt19937_64 random(static_cast<std::uint64_t>(seed));
            std::lognormal_distribution<> length(6.3, 1.6);
            std::string text = "causal+documents:";
            const std::int64_t tokens = std::int64_t{8192} * ranks;
            for (auto left = tokens; left > 0;) {
                const auto next = std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, left);
                text += fmt::format("{}{}", next, left > next ? "," : "");
                left -= next;
            }
            const auto mask = make_mask(text, tokens);
            const auto begin = std::clock();  // processor time, which others on the machine take nothing from
            planned_layout(mask, ranks, default_plan_prices());
            times.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
        }
        std::ranges::sort(times);
        fmt::print("{:5}  {:6.2f}  {:6.2f}\n", ranks, times[packings / 2], times.back());
    }
}
