#include "tests/experiments/random_run.hpp"

#include "tests/layouts/mask_oracles.hpp"
#include "tests/registered.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ringlab::experiments::tests {
namespace {

class Drawing {
public:
    explicit Drawing(std::mt19937_64& random) : random_(random) {}

    std::int64_t number(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool one_in(std::int64_t n) { return number(1, n) == 1; }
    std::string any_of(const std::vector<std::string>& words) {
        return words[static_cast<std::size_t>(number(0, std::ssize(words) - 1))];
    }
    /// As many numbers between 1 and 2 as between 128 and 256.
    std::int64_t tokens() { return std::lround(std::exp2(static_cast<double>(number(0, 800)) / 100)); }

    /// Up to two masks, a causal one as often as all others.
    std::string mask(std::int64_t tokens) {
        return (one_in(2) ? "causal+" : "") + mask_oracles::random_join(random_, tokens, 2);
    }

private:
    std::mt19937_64& random_;
};

}  // namespace

std::vector<std::string> random_run(std::mt19937_64& random) {
    Drawing draw(random);
    std::vector<std::string> words;
    const auto say = [&](const std::string& option, const auto& value) {
        words.push_back("--" + option);
        words.push_back(fmt::format("{}", value));
    };
    const auto tokens = draw.tokens();
    say("tokens", tokens);
    say("masks", draw.mask(tokens));
    say("layouts", draw.any_of(ringlab::tests::layout_examples()));
    say("ranks", draw.any_of({"1", "2", "2", "3", "4", "4", "5", "8"}));
    const bool latent = draw.one_in(8);
    const auto schedule_name = draw.any_of(ringlab::tests::schedules_for({.query_heads = 8, .kv_heads = 4}));
    say("schedules", (latent && draw.one_in(2) ? "expanded:" : "") + schedule_name);
    say("arithmetic", draw.any_of({"fp64", "fp64", "fp32", "fp32", "bf16", "fp16"}));
    say("policies", draw.any_of({"carry", "gradients", "partials", "running"}));
    say("heads", latent ? draw.any_of({"1:1", "2:2", "4:4"}) : draw.any_of({"1:1", "2:1", "4:2", "4:4", "4:1", "8:2"}));
    const auto dims = std::stol(draw.any_of({"1", "2", "3", "4", "6", "8", "17", "32", "64", "96"}));
    say("head-dim", dims);
    if (draw.one_in(2)) say("value-dim", draw.any_of({"1", "2", "5", "8", "16", "64"}));
    say("input", latent ? "normal" : draw.any_of({"normal", "normal", "outlier", "sink", "offset"}));
    if (latent) say("latent", fmt::format("{}+{}", draw.number(1, 24), draw.number(0, dims - 1)));
    say("seed", draw.number(0, 1000));
    words.push_back("--pad");
    if (draw.one_in(3)) say("batch", 2);
    if (draw.one_in(4)) say("scale", draw.any_of({"1e-7", "0.001", "0.1", "1", "-1", "4", "20", "100"}));
    if (draw.one_in(4)) say("soft-cap", draw.any_of({"0.1", "2", "20", "50"}));
    if (draw.one_in(4)) say("sinks", draw.any_of({"normal", "-3", "2", "12", "100"}));
    if (draw.one_in(5)) say("dropout", draw.any_of({"0.01158", "0.1", "0.5", "0.9"}));
    if (draw.one_in(6) && dims % 2 == 0 && !latent) say("rotary", "10000");
    if (draw.one_in(8)) say("queries", draw.number(1, tokens));
    return words;
}

}  // namespace ringlab::experiments::tests
