#include "experiments/files/files_read.hpp"
#include "experiments/files/written_file.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/basics/require.hpp"
#include "reference/tensors/rounding.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <string_view>

namespace ringlab::experiments {
namespace {

using hdf5::Element;
using layouts::DType;
using reference::Tensor;

/// A tensor of the file: where it is, its shape (batch, token, head, dim) and the dtype of its numbers.
struct Source {
    hdf5::Dataset dataset;
    std::array<std::int64_t, 4> shape{};
    DType dtype = DType::fp64;
};

DType dtype_of(const hdf5::Dataset& dataset) {
    switch (dataset.element()) {
        case Element::fp16: return DType::fp16;
        case Element::bf16: return DType::bf16;
        case Element::fp32: return DType::fp32;
        case Element::fp64: return DType::fp64;
        case Element::uint16:
            require(dataset.has("dtype") && dataset.text("dtype") == "bfloat16",
                    "{} is of 16-bit unsigned integers; bf16 bit patterns carry the attribute dtype = \"bfloat16\"",
                    dataset.name());
            return DType::bf16;
        default:
            fail("{} must be of 16-, 32- or 64-bit floats, or of uint16 with dtype = \"bfloat16\"", dataset.name());
    }
}

Source open_tensor(const hdf5::File& file, const std::string& name) {
    Source source{file.dataset(name), {}, {}};
    const auto shape = source.dataset.shape();
    require(shape.size() == source.shape.size(), "{} has {} dimensions; it must have four: (batch, token, head, dim)",
            source.dataset.name(), shape.size());
    constexpr std::int64_t largest = std::int64_t{1} << 40;
    std::int64_t elements = 1;
    for (const auto extent : shape) {
        require(extent >= 1 && extent <= largest / elements,
                "{} has shape ({}); every extent must be at least 1, and all together at most 2^40",
                source.dataset.name(), fmt::join(shape, ", "));
        elements *= extent;
    }
    std::copy(shape.begin(), shape.end(), source.shape.begin());
    source.dtype = dtype_of(source.dataset);
    return source;
}

/// Throws Error unless the extents of `what` agree.
void require_equal(const Source& a, const Source& b, std::size_t dimension, const char* what) {
    require(a.shape[dimension] == b.shape[dimension], "{} has {} {}, {} has {}; they must be equal", a.dataset.name(),
            a.shape[dimension], what, b.dataset.name(), b.shape[dimension]);
}

/// Everything that a file states, checked. The tensors are read later.
struct OpenInputs {
    Source q, k, v;
    std::optional<Source> dout;
    InputData data;  // without tensors
};

double finite_attribute(const hdf5::File& file, const std::string& name) {
    const double value = file.number(name);
    require(std::isfinite(value), "{}@{} is {}; it must be finite", file.name(), name, value);
    return value;
}

std::vector<std::int64_t> documents_of(const hdf5::File& file, std::int64_t file_tokens, std::int64_t tokens) {
    if (!file.contains("document_lengths")) return {};
    const auto dataset = file.dataset("document_lengths");
    const auto element = dataset.element();
    require(dataset.shape().size() == 1 && (element == Element::integer || element == Element::uint16),
            "{} must be one row of whole numbers", dataset.name());
    require(dataset.shape()[0] <= file_tokens, "{} has {} documents for {} tokens", dataset.name(), dataset.shape()[0],
            file_tokens);
    std::vector<std::int64_t> cut;
    std::int64_t sum = 0;
    for (const auto length : dataset.integers()) {
        require(length >= 1 && length <= file_tokens - sum,
                "{} holds {} after {} tokens; lengths must be at least 1 and sum to the {} tokens of q", dataset.name(),
                length, sum, file_tokens);
        if (sum < tokens) cut.push_back(std::min(length, tokens - sum));
        sum += length;
    }
    require(sum == file_tokens, "{} sums to {}; it must sum to the {} tokens of q", dataset.name(), sum, file_tokens);
    return cut;
}

DType common_dtype(const OpenInputs& open, const LoadOptions& options) {
    if (options.dtype) return *options.dtype;
    const auto agree = [&](const Source& other) {
        require(other.dtype == open.q.dtype, "{} is {} and {} is {}; they must agree, or a dtype to round to be given",
                open.q.dataset.name(), layouts::to_string(open.q.dtype), other.dataset.name(),
                layouts::to_string(other.dtype));
    };
    agree(open.k);
    agree(open.v);
    if (open.dout) agree(*open.dout);
    return open.q.dtype;
}

bool has_signature(const std::filesystem::path& path) {
    std::array<char, 8> begin{};
    std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
    return std::string_view(begin.data(), begin.size()) == "\x89HDF\r\n\x1a\n";
}

/// Throws Error. For a file of another format, such as NumPy's, the message says how to convert it.
hdf5::File open_hdf5(const std::filesystem::path& path) {
    require_regular_file(path, "input");
    try {
        return hdf5::File::open(path);
    } catch (const Error&) {
        if (!std::filesystem::is_regular_file(path) || has_signature(path)) throw;
        fail(
            "'{}' is not HDF5; arrays of (batch, token, head, dim) become one so, in Python: with h5py.File('qkv.h5', "
            "'w') as f: f['q'], f['k'], f['v'] = q, k, v",
            path.string());
    }
}

OpenInputs open_inputs(const hdf5::File& file, const std::filesystem::path& path, const LoadOptions& options) {
    OpenInputs open{open_tensor(file, "q"), open_tensor(file, "k"), open_tensor(file, "v"), {}, {}};
    if (file.contains("do")) open.dout = open_tensor(file, "do");
    const auto &q = open.q, &k = open.k, &v = open.v;
    require_equal(q, k, 0, "batch elements");
    require_equal(q, v, 0, "batch elements");
    require_equal(q, k, 1, "tokens");
    require_equal(q, v, 1, "tokens");
    require_equal(k, v, 2, "heads");
    require_equal(q, k, 3, "dims per head");
    require(q.shape[2] % k.shape[2] == 0, "{} has {} heads and {} has {}; those of q must be a multiple",
            q.dataset.name(), q.shape[2], k.dataset.name(), k.shape[2]);
    if (open.dout) {
        require_equal(*open.dout, q, 0, "batch elements");
        require_equal(*open.dout, q, 1, "tokens");
        require_equal(*open.dout, q, 2, "heads");
        require_equal(*open.dout, v, 3, "dims per head");
    }
    require(options.tokens >= 0 && options.tokens <= q.shape[1], "{} holds {} tokens, {} are asked for", path.string(),
            q.shape[1], options.tokens);

    auto& data = open.data;
    auto& problem = data.problem;
    problem.batch = q.shape[0];
    problem.tokens = options.tokens == 0 ? q.shape[1] : options.tokens;
    problem.query_heads = q.shape[2];
    problem.kv_heads = k.shape[2];
    problem.head_dim = q.shape[3];
    problem.value_dim = v.shape[3];
    if (file.has("scale")) {
        problem.scale = finite_attribute(file, "scale");
        require(problem.scale != 0, "{}@scale is 0; leave it out for 1/sqrt(dim)", file.name());
    }
    if (file.has("soft_cap")) problem.soft_cap = finite_attribute(file, "soft_cap");
    problem.dtype = common_dtype(open, options);
    problem.validate();
    data.document_lengths = documents_of(file, q.shape[1], problem.tokens);
    return open;
}

using Position = std::array<std::int64_t, 4>;

void read_block(const Source& source, const Position& offset, const Position& count, std::span<double> values) {
    source.dataset.read_block(offset, count, values);
    if (source.dataset.element() != Element::uint16) return;
    const std::vector<std::uint16_t> patterns(values.begin(), values.end());
    reference::from_bits(patterns, DType::bf16, values);
}

/// Throws Error that names the first value that is not finite, or that rounding to the dtype has made infinite.
/// `rounded` has the `count` rounded values from `offset` on.
void require_finite(const Source& source, const Position& offset, const Position& count,
                    std::span<const double> rounded, DType dtype) {
    const auto found = std::find_if(rounded.begin(), rounded.end(), [](double value) { return !std::isfinite(value); });
    if (found == rounded.end()) return;
    auto at = offset;
    auto rest = found - rounded.begin();
    for (std::size_t axis = at.size(); axis-- > 0;) {
        at[axis] += rest % count[axis];
        rest /= count[axis];
    }
    double value = 0;
    read_block(source, at, {1, 1, 1, 1}, {&value, 1});
    fail("{} holds {} at batch {}, token {}, head {}, dim {}; every value must be a finite number that {} can hold",
         source.dataset.name(), value, at[0], at[1], at[2], at[3], layouts::to_string(dtype));
}

/// The first `tokens` of a tensor, rounded to the dtype.
Tensor read_tensor(const Source& source, std::int64_t tokens, DType dtype) {
    const auto size = [&](std::size_t i) { return static_cast<std::size_t>(source.shape[i]); };
    auto tensor = Tensor::from_shape({size(0), static_cast<std::size_t>(tokens), size(2), size(3)});
    const std::span values(tensor.data(), tensor.size());
    const Position begin{}, count{source.shape[0], tokens, source.shape[2], source.shape[3]};
    read_block(source, begin, count, values);
    reference::round_in_place(values, dtype);
    require_finite(source, begin, count, values, dtype);
    return tensor;
}

}  // namespace

InputData inspect_inputs(const std::filesystem::path& path, const LoadOptions& options) {
    note_read(path);
    const auto file = open_hdf5(path);
    return open_inputs(file, path, options).data;
}

InputData load_inputs(const std::filesystem::path& path, const LoadOptions& options) {
    note_read(path);
    const auto file = open_hdf5(path);
    auto open = open_inputs(file, path, options);
    auto& [problem, inputs, documents] = open.data;
    const auto read = [&](const Source& source) { return read_tensor(source, problem.tokens, problem.dtype); };
    inputs.q = read(open.q);
    inputs.k = read(open.k);
    inputs.v = read(open.v);
    if (open.dout) {
        inputs.dout = read(*open.dout);
    } else {
        inputs.dout = normal_dout(problem, options.seed);
        reference::round_in_place({inputs.dout.data(), inputs.dout.size()}, problem.dtype);
    }
    return std::move(open.data);
}

}  // namespace ringlab::experiments
