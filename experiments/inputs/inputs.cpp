#include "experiments/inputs/inputs.hpp"

#include "experiments/inputs/inputs_random.hpp"
#include "experiments/inputs/parallel.hpp"
#include "layouts/basics/require.hpp"
#include "reference/attention/samples.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ringlab::experiments {
namespace {

using layouts::Problem;
using reference::Tensor;

/// The streams of random numbers. Their values must not change, because they decide what a seed produces.
enum class Stream : std::uint32_t { q, k, v, dout, channels_of_q, channels_of_k, channels_of_v, direction };

ElementIndex element(Stream stream, std::size_t batch, std::size_t head, std::size_t position, std::size_t dim) {
    const auto word = [](std::size_t index) { return static_cast<std::uint32_t>(index); };
    return {static_cast<std::uint32_t>(stream), word(batch), word(head), word(position), word(dim)};
}

/// Changes elements in place, on several threads: change(value, batch, position, head, dim).
template <class Change>
void for_each_element(Tensor& tensor, Change change) {
    const auto [batches, tokens, heads, dims] = tensor.shape();
    for_parts(batches * tokens, [&, tokens = tokens, heads = heads, dims = dims](std::size_t begin, std::size_t end) {
        auto* value = tensor.data() + begin * heads * dims;
        for (std::size_t row = begin; row < end; ++row)
            for (std::size_t h = 0; h < heads; ++h)
                for (std::size_t d = 0; d < dims; ++d) change(*value++, row / tokens, row % tokens, h, d);
    });
}

Tensor normal_tensor(std::uint64_t seed, Stream stream, const std::array<std::int64_t, 4>& shape) {
    std::array<std::size_t, 4> sizes;
    std::ranges::copy(shape, sizes.begin());
    Tensor tensor = Tensor::from_shape(sizes);
    for_each_element(tensor, [&](double& value, auto b, auto t, auto h, auto d) {
        value = random_normal(seed, element(stream, b, h, t, d));
    });
    return tensor;
}

/// Keeps the rows that a problem has. Each is the same as if every token had a row.
Tensor normal_rows(std::uint64_t seed, Stream stream, const Problem& problem, std::int64_t dim) {
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    const auto positions = problem.row_positions();
    Tensor tensor = Tensor::from_shape({size(problem.batch), positions.size(), size(problem.query_heads), size(dim)});
    for_each_element(tensor, [&](double& value, auto b, auto row, auto h, auto d) {
        value = random_normal(seed, element(stream, b, h, size(positions[row]), d));
    });
    return tensor;
}

/// A factor for every channel of every head: `gain` for max(1, dims/64) channels, those with the smallest random
/// numbers, and 1 for the others.
std::vector<std::vector<double>> channel_gains(std::uint64_t seed, Stream stream, std::size_t heads, std::size_t dims) {
    constexpr double gain = 10;
    constexpr std::size_t channels_per_outlier = 64;
    std::vector<std::vector<double>> gains(heads, std::vector<double>(dims, 1.0));
    for (std::size_t h = 0; h < heads; ++h) {
        std::vector<std::pair<std::uint64_t, std::size_t>> order;
        for (std::size_t d = 0; d < dims; ++d) order.emplace_back(random_bits(seed, element(stream, 0, h, 0, d)), d);
        std::sort(order.begin(), order.end());
        for (std::size_t i = 0; i < std::max<std::size_t>(1, dims / channels_per_outlier); ++i)
            gains[h][order[i].second] = gain;
    }
    return gains;
}

void normal(InputData&, std::uint64_t) {}

void outlier(InputData& data, std::uint64_t seed) {
    const auto amplify = [&](Tensor& tensor, Stream stream) {
        const auto gains = channel_gains(seed, stream, tensor.shape(2), tensor.shape(3));
        for_each_element(tensor, [&](double& value, auto, auto, auto h, auto d) { value *= gains[h][d]; });
    };
    amplify(data.inputs.q, Stream::channels_of_q);
    amplify(data.inputs.k, Stream::channels_of_k);
    amplify(data.inputs.v, Stream::channels_of_v);
}

void sink(InputData& data, std::uint64_t seed) {
    constexpr double score = 10, value_gain = 0.1;
    const auto group = static_cast<std::size_t>(data.problem.query_heads_per_kv_head());
    const double length = score / (data.problem.effective_scale() * static_cast<double>(data.problem.head_dim));
    const auto sign = [&](std::size_t kv_head, std::size_t d) {
        return random_bits(seed, element(Stream::direction, 0, kv_head, 0, d)) >> 63 ? 1.0 : -1.0;
    };
    std::vector<std::vector<double>> direction(static_cast<std::size_t>(data.problem.kv_heads));
    for (std::size_t h = 0; h < direction.size(); ++h)
        for (std::size_t d = 0; d < static_cast<std::size_t>(data.problem.head_dim); ++d)
            direction[h].push_back(sign(h, d));
    for_each_element(data.inputs.q,
                     [&](double& value, auto, auto, auto h, auto d) { value += direction[h / group][d]; });
    for_each_element(data.inputs.k, [&](double& value, auto, auto t, auto h, auto d) {
        if (t == 0) value += length * direction[h][d];
    });
    for_each_element(data.inputs.v, [&](double& value, auto, auto t, auto, auto) {
        if (t == 0) value *= value_gain;
    });
}

void offset(InputData& data, std::uint64_t seed) {
    constexpr double length = 10;
    const auto [batches, tokens, heads, dims] = data.inputs.k.shape();
    for (std::size_t b = 0; b < batches; ++b)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t d = 0; d < dims; ++d) {
                const double shift = length * random_normal(seed, element(Stream::direction, b, h, 0, d));
                for (std::size_t t = 0; t < tokens; ++t) data.inputs.k(b, t, h, d) += shift;
            }
}

struct Generator {
    InputKind kind;
    void (*shape)(InputData&, std::uint64_t seed);  // turns normal numbers into inputs of this kind
};

const std::vector<Generator>& generators() {
    static const std::vector<Generator> all{
        {{"normal", "independent standard normal numbers"}, normal},
        {{"outlier", "normal, with a few channels of each head of q, k and v ten times larger"}, outlier},
        {{"sink", "normal, with a first key that every query scores higher by 10: an attention sink"}, sink},
        {{"offset", "normal, with one large vector added to all keys of a head, which changes no result"}, offset},
    };
    return all;
}

}  // namespace

const std::vector<InputKind>& input_kinds() {
    static const auto kinds = [] {
        std::vector<InputKind> all;
        for (const auto& generator : generators()) all.push_back(generator.kind);
        return all;
    }();
    return kinds;
}

Tensor normal_dout(const Problem& problem, std::uint64_t seed) {
    return normal_rows(seed, Stream::dout, problem, problem.value_dim);
}

InputData generate_inputs(const std::string& kind, const Problem& problem, std::uint64_t seed) {
    problem.validate();
    std::string known;
    for (const auto& generator : generators()) {
        known += (known.empty() ? "" : ", ") + generator.kind.name;
        if (generator.kind.name != kind) continue;
        InputData data{problem, {}, {}};
        const auto& p = problem;
        data.inputs.q = normal_rows(seed, Stream::q, p, p.head_dim);
        data.inputs.k = normal_tensor(seed, Stream::k, p.key_shape());
        data.inputs.v = normal_tensor(seed, Stream::v, p.value_shape());
        require(!p.latent.is_given() || kind == "normal",
                "input {} is made for K and V, not for a latent (--latent {}); say --input normal", kind,
                text_of(p.latent));
        if (p.latent.is_given()) data.inputs.v /= std::sqrt(static_cast<double>(p.latent.rank));
        data.inputs.dout = normal_dout(p, seed);
        generator.shape(data, seed);
        for (auto* tensor : {&data.inputs.q, &data.inputs.k, &data.inputs.v, &data.inputs.dout})
            for_parts(tensor->size(), [&](std::size_t begin, std::size_t end) {
                reference::round_in_place({tensor->data() + begin, end - begin}, p.dtype);
            });
        for (const auto& [name, tensor] : {std::pair("q", &data.inputs.q), std::pair("k", &data.inputs.k)})
            require(std::ranges::all_of(*tensor, [](double x) { return std::isfinite(x); }),
                    "input {} with scale {} has a {} beyond the range of {}; take another scale or arithmetic", kind,
                    p.effective_scale(), name, to_string(p.dtype));
        return data;
    }
    fail("unknown input '{}'; known: {}, or the name of an HDF5 file", kind, known);
}

void pad_inputs(InputData& data, std::int64_t tokens) {
    require(tokens >= data.problem.tokens, "inputs of {} tokens cannot be padded to {}", data.problem.tokens, tokens);
    data.problem.tokens = tokens;
    for (auto* tensor : {&data.inputs.q, &data.inputs.k, &data.inputs.v, &data.inputs.dout}) {
        const bool of_rows = tensor == &data.inputs.q || tensor == &data.inputs.dout;
        if (of_rows && !data.problem.queries.empty()) continue;
        if (tensor == &data.inputs.v && data.problem.latent.is_given()) continue;  // matrices
        auto shape = tensor->shape();
        const auto before = shape[1] * shape[2] * shape[3];
        shape[1] = static_cast<std::size_t>(tokens);
        const auto after = shape[1] * shape[2] * shape[3];
        Tensor padded(shape, 0.0);
        for (std::size_t b = 0; b < shape[0]; ++b)
            std::copy_n(tensor->data() + b * before, before, padded.data() + b * after);
        *tensor = std::move(padded);
    }
}

void keep_queries(InputData& data, const std::vector<layouts::Interval>& queries) {
    if (queries == data.problem.queries) return;
    require(data.problem.queries.empty(), "these inputs already have fewer query rows and cannot be given others");
    data.problem.queries = queries;
    data.problem.validate();
    const auto rows = data.problem.row_positions();
    for (auto* tensor : {&data.inputs.q, &data.inputs.dout}) *tensor = reference::take_tokens(*tensor, rows);
}

}  // namespace ringlab::experiments
