#include "layouts/problem/rotary.hpp"

#include "layouts/basics/require.hpp"
#include "layouts/basics/typed_names.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

namespace ringlab::layouts {
namespace {

/// The input of a scaling: base, rotated dims, and the parameters of the scaling.
struct ScalingInput {
    double base;
    std::int64_t dims;
    std::span<const double> numbers;
};

/// base^(-2i/dims) for every pair i.
std::vector<double> powers(double base, std::int64_t dims) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < dims / 2; ++i)
        frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
    return frequencies;
}

RotaryTable unscaled(const ScalingInput& from) { return {.frequencies = powers(from.base, from.dims)}; }

RotaryTable linear(const ScalingInput& from) {
    auto table = unscaled(from);
    for (auto& frequency : table.frequencies) frequency /= from.numbers[0];
    return table;
}

RotaryTable ntk(const ScalingInput& from) {
    const auto dims = static_cast<double>(from.dims);
    // With two dims the only frequency is 1, whatever the base.
    const double base = from.dims == 2 ? from.base : from.base * std::pow(from.numbers[0], dims / (dims - 2));
    return {.frequencies = powers(base, from.dims)};
}

/// Llama 3.1: frequencies with wavelengths above original / low are divided by the factor, those with wavelengths below
/// original / high stay, and in between both are mixed linearly in original / wavelength.
RotaryTable llama3(const ScalingInput& from) {
    const double factor = from.numbers[0], low = from.numbers[1], high = from.numbers[2];
    const double original = from.numbers[3];
    auto table = unscaled(from);
    for (auto& frequency : table.frequencies) {
        const double turns = original * frequency / (2 * std::numbers::pi);
        const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
        frequency *= kept + (1 - kept) / factor;
    }
    return table;
}

/// YaRN (Peng et al. 2023, arXiv 2309.00071): pairs that rotate more than `fast` times over the original length keep
/// their frequency, for those that rotate less than `slow` times it is divided by the factor. In between the two are
/// mixed linearly in the index of the pair, from one whole index to another.
RotaryTable yarn(const ScalingInput& from) {
    const auto numbers = from.numbers;
    const double factor = numbers[0], original = numbers[1];
    const auto given = [&](std::size_t i, double otherwise) { return numbers.size() > i ? numbers[i] : otherwise; };
    const double fast = given(2, 32), slow = given(3, 1);
    const auto dims = static_cast<double>(from.dims);
    const auto pair_that_turns = [&](double times) {
        return dims * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(from.base));
    };
    const double first = std::max(std::floor(pair_that_turns(fast)), 0.0);
    const double last = std::min(std::ceil(pair_that_turns(slow)), dims - 1);
    constexpr double least = 0.001;  // length of that range of indices, so that nothing is divided by 0
    auto table = unscaled(from);
    for (std::size_t i = 0; i < table.frequencies.size(); ++i) {
        const double stretched = std::clamp((static_cast<double>(i) - first) / std::max(last - first, least), 0.0, 1.0);
        table.frequencies[i] *= 1 - stretched + stretched / factor;
    }
    table.amplitude = given(4, 0.1 * std::log(factor) + 1);
    return table;
}

struct KnownScaling {
    std::string name;
    RotaryScalingUsage entry;
    std::vector<std::size_t> counts;  // allowed numbers of parameters
    RotaryTable (*make)(const ScalingInput&);
};

const std::vector<KnownScaling>& known_scalings() {
    static const std::vector<KnownScaling> all{
        {"none", {"none", "frequencies as the base gives them"}, {0}, unscaled},
        {"linear", {"linear:FACTOR", "positions divided by FACTOR"}, {1}, linear},
        {"ntk", {"ntk:FACTOR", "base times FACTOR^(n/(n-2)) for n rotated dims"}, {1}, ntk},
        {"llama3",
         {"llama3:FACTOR,LOW,HIGH,LENGTH",
          "as Llama 3.1: pairs that rotate less than LOW times over LENGTH are slowed down by FACTOR, those that "
          "rotate more than HIGH times stay"},
         {4},
         llama3},
        {"yarn",
         {"yarn:FACTOR,LENGTH[,FAST,SLOW[,AMPLITUDE]]",
          "as YaRN; by default FAST is 32, SLOW is 1 and AMPLITUDE is 0.1 ln FACTOR + 1"},
         {2, 4, 5},
         yarn},
    };
    return all;
}

const KnownScaling& scaling_named(const std::string& name) {
    std::vector<std::string> names;
    for (const auto& scaling : known_scalings()) {
        if (scaling.name == name) return scaling;
        names.push_back(scaling.name);
    }
    throw Error(unknown_name("rotary scaling", name, names));
}

std::string text_of(const RotaryScaling& scaling) {
    return scaling.name + (scaling.numbers.empty() ? "" : fmt::format(":{}", fmt::join(scaling.numbers, ",")));
}

}  // namespace

RotaryScaling parse_rotary_scaling(const std::string& text) {
    const auto spec = Spec::parse(text);
    const auto& known = scaling_named(spec.name);
    const auto& usage = known.entry.usage;
    require(!text.ends_with(':'), "rotary scaling '{}' has nothing after its colon; write it as {}", text, usage);
    RotaryScaling scaling{known.name};
    const auto& list = spec.arguments;
    for (std::size_t begin = 0; !list.empty() && begin <= list.size();) {
        const auto end = std::min(list.find(',', begin), list.size());
        double number = 0;
        const auto [rest, error] = std::from_chars(list.data() + begin, list.data() + end, number);
        require(error == std::errc{} && rest == list.data() + end && std::isfinite(number) && number > 0,
                "rotary scaling '{}' holds '{}'; write it as {}, with positive numbers", text,
                list.substr(begin, end - begin), usage);
        scaling.numbers.push_back(number);
        begin = end + 1;
    }
    const auto& numbers = scaling.numbers;
    const auto given = numbers.size();
    require(std::find(known.counts.begin(), known.counts.end(), given) != known.counts.end(),
            "rotary scaling '{}' has {} numbers; write it as {}", text, given, usage);
    require(given == 0 || numbers[0] >= 1, "rotary scaling '{}' has the factor {}; it must be at least 1", text,
            numbers[0]);
    require(known.name != "llama3" || numbers[2] > numbers[1],
            "rotary scaling '{}': HIGH is {}; it must be above LOW, {}", text, numbers[2], numbers[1]);
    require(known.name != "yarn" || given < 4 || numbers[2] > numbers[3],
            "rotary scaling '{}': FAST is {}; it must be above SLOW, {}", text, numbers[2], numbers[3]);
    return scaling;
}

const std::vector<RotaryScalingUsage>& rotary_scaling_usages() {
    static const auto all = [] {
        std::vector<RotaryScalingUsage> entries;
        for (const auto& scaling : known_scalings()) entries.push_back(scaling.entry);
        return entries;
    }();
    return all;
}

std::string text_of(const Rotary& rotary) {
    if (!rotary.rotates()) return "none";
    const auto dims = rotary.dims == 0 ? std::string("all dims") : fmt::format("{} dims", rotary.dims);
    return fmt::format("base {}, {} from {}, {}, scaling {}, {} positions", rotary.base, dims, rotary.first,
                       rotary.pairs == Rotary::Pairs::half ? "half" : "interleaved", text_of(rotary.scaling),
                       rotary.positions == Rotary::Positions::global ? "global" : "document");
}

RotaryTable rotary_table(const Rotary& rotary, std::int64_t head_dim) {
    require(std::isfinite(rotary.base) && rotary.base > 1, "the base of rotary embeddings is {}; it must be above 1",
            rotary.base);
    require(0 <= rotary.first && rotary.first < head_dim,
            "rotated dims from {} on are asked for; heads have dims 0 to {} (first of --rotary)", rotary.first,
            head_dim - 1);
    const auto dims = rotary.dims == 0 ? head_dim - rotary.first : rotary.dims;
    require(
        dims > 0 && dims % 2 == 0 && dims <= head_dim - rotary.first,
        "{} rotated dims from {} on do not fit heads of {}; there must be an even number of them (dims of --rotary)",
        dims, rotary.first, head_dim);
    auto table = scaling_named(rotary.scaling.name).make({rotary.base, dims, rotary.scaling.numbers});
    table.first = rotary.first;
    table.pairs = rotary.pairs;
    return table;
}

std::vector<std::int64_t> document_begins(const Mask& mask) {
    // A document begins where no earlier row sees a key from there on, and no row from there on sees an earlier key.
    const auto tokens = mask.tokens();
    struct Reach {
        std::int64_t first, end;
    };
    const auto reach = [&](std::int64_t row, const MaskSegment& segment) {
        const auto keys = segment.at(row);
        if (keys.begin == keys.end) return Reach{row, row + 1};
        return Reach{std::min(row, keys.first()), std::max(row + 1, keys.end)};
    };
    std::vector<std::int64_t> begins;
    auto farthest_back = tokens;
    std::vector<std::int64_t> back(static_cast<std::size_t>(tokens));  // first key that this row or a later one sees
    for (auto segment = mask.segments().rbegin(); segment != mask.segments().rend(); ++segment)
        for (auto row = segment->rows.end - 1; row >= segment->rows.begin; --row)
            back[static_cast<std::size_t>(row)] = farthest_back = std::min(farthest_back, reach(row, *segment).first);
    std::int64_t farthest_ahead = 0;
    for (const auto& segment : mask.segments())
        for (auto row = segment.rows.begin; row < segment.rows.end; ++row) {
            if (farthest_ahead <= row && back[static_cast<std::size_t>(row)] >= row) begins.push_back(row);
            farthest_ahead = std::max(farthest_ahead, reach(row, segment).end);
        }
    return begins;
}

std::vector<std::int64_t> rotary_positions(const Rotary& rotary, const Mask& mask,
                                           std::span<const std::int64_t> tokens) {
    std::vector<std::int64_t> positions(tokens.begin(), tokens.end());
    if (rotary.positions == Rotary::Positions::global) return positions;
    const auto begins = document_begins(mask);
    std::vector<std::int64_t> present{0};  // tokens before each one, without padding
    for (const auto& valid : mask.valid()) {
        present.resize(static_cast<std::size_t>(valid.begin) + 1, present.back());
        for (auto token = valid.begin; token < valid.end; ++token) present.push_back(present.back() + 1);
    }
    present.resize(static_cast<std::size_t>(mask.tokens()) + 1, present.back());
    const auto before = [&](std::int64_t token) { return present[static_cast<std::size_t>(token)]; };
    for (auto& position : positions)
        position = before(position) - before(*std::prev(std::upper_bound(begins.begin(), begins.end(), position)));
    return positions;
}

}  // namespace ringlab::layouts
