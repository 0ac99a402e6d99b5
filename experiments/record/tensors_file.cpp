#include "experiments/record/tensors_file.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/files/written_file.hpp"
#include "experiments/record/column.hpp"
#include "layouts/basics/require.hpp"
#include "reference/attention/dense.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <numeric>
#include <system_error>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;
using hdf5::Element;
using layouts::DType;

/// A file whose datasets share dimension scales.
class Writer {
public:
    explicit Writer(const fs::path& path) : file_(hdf5::File::create(path)) {}

    hdf5::File& file() { return file_; }

    void scale(const std::string& name, std::int64_t length) {
        std::vector<std::int64_t> index(static_cast<std::size_t>(length));
        std::iota(index.begin(), index.end(), std::int64_t{0});
        const Column column{name, "1", name + " number, from 0", {}, {}, std::move(index), {length}};
        scales_.emplace(name, column.write(file_, true));
        lengths_[name] = length;
    }

    using Dimensions = std::vector<std::string>;

    void values(const std::string& name, hdf5::Values values, const Dimensions& dimensions,
                const std::string& description) {
        const Column column{name, "1", description, {}, dimensions, std::move(values), shape_of(dimensions)};
        attach(column.write(file_, true), dimensions);
    }

    void tensor(const std::string& name, std::span<const double> values, DType dtype, const Dimensions& dimensions,
                const std::string& description) {
        constexpr std::array elements{std::pair(DType::bf16, Element::uint16), std::pair(DType::fp16, Element::fp16),
                                      std::pair(DType::fp32, Element::fp32), std::pair(DType::fp64, Element::fp64)};
        const auto* const element =
            std::find_if(elements.begin(), elements.end(), [&](const auto& pair) { return pair.first == dtype; });
        auto dataset = file_.make_dataset(name, element->second, shape_of(dimensions));
        if (dtype == DType::bf16) {
            std::vector<std::uint16_t> patterns(values.size());
            reference::to_bits(values, dtype, patterns);
            dataset.write(std::vector<double>(patterns.begin(), patterns.end()));
            dataset.set("dtype", std::string("bfloat16"));
        } else {
            dataset.write(values);
        }
        dataset.set("units", std::string("1"));
        dataset.set("description", description);
        attach(std::move(dataset), dimensions);
    }

private:
    std::vector<std::int64_t> shape_of(const Dimensions& dimensions) const {
        std::vector<std::int64_t> shape;
        for (const auto& dimension : dimensions) shape.push_back(lengths_.at(dimension));
        return shape;
    }

    void attach(hdf5::Dataset dataset, const Dimensions& dimensions) {
        for (std::size_t i = 0; i < dimensions.size(); ++i) dataset.attach_scale(scales_.at(dimensions[i]), i);
    }

    hdf5::File file_;
    std::map<std::string, hdf5::Dataset> scales_;
    std::map<std::string, std::int64_t> lengths_;
};

void write_mask(Writer& writer, const layouts::Mask& mask) {
    const auto rows = layouts::row_table(mask);
    writer.values("row_begin", rows.begin, {"token"}, "first key of the interval that the row sees");
    writer.values("row_end", rows.end, {"token"}, "key after the last of that interval");
    writer.values("row_sink", rows.sink, {"token"}, "the row sees the keys below this as well");
    if (rows.ranges > 0) {
        writer.scale("range", rows.ranges);
        writer.values("row_earlier_begin", rows.earlier_begin, {"token", "range"}, "the row sees keys from these on");
        writer.values("row_earlier_end", rows.earlier_end, {"token", "range"},
                      "and before these as well; none where both are equal");
    }
    writer.values("key_valid", rows.valid, {"token"}, "1 if the key exists, 0 if it is padding that nobody sees");
}

void write_rotary(Writer& writer, const layouts::Problem& problem, const layouts::Mask& mask) {
    writer.file().set("rotary", text_of(problem.rotary));
    if (!problem.rotary.rotates()) return;
    const auto table = rotary_table(problem.rotary, problem.head_dim);
    writer.file().set("rotary_amplitude", table.amplitude);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(problem.tokens)), first, second;
    std::iota(tokens.begin(), tokens.end(), 0);
    for (std::int64_t pair = 0; pair < table.dims() / 2; ++pair) {
        first.push_back(table.dim_of(pair));
        second.push_back(table.dim_of(pair) + table.distance());
    }
    writer.scale("rotary_pair", table.dims() / 2);
    writer.values("rotary_frequency", table.frequencies, {"rotary_pair"}, "radians that the pair turns per position");
    writer.values("rotary_first_dim", first, {"rotary_pair"}, "x of the pair: x' = a (x cos t - y sin t)");
    writer.values("rotary_second_dim", second, {"rotary_pair"}, "y of the pair: y' = a (x sin t + y cos t)");
    writer.values("rotary_position", rotary_positions(problem.rotary, mask, tokens), {"token"},
                  "what the token's q and k are rotated by: t = position * frequency");
}

void write_facts(hdf5::File& file, const std::string& run, const layouts::Problem& problem, const layouts::Mask& mask,
                 DType arithmetic, const TensorNotes& notes) {
    file.set("description", tensors_file_description);
    file.set("run", run);
    file.set("input", notes.input);
    file.set("mask", mask.name());
    file.set("mask_as_typed", notes.mask);
    file.set("tokens", notes.tokens == 0 ? problem.tokens : notes.tokens);
    file.set("scale", problem.effective_scale());
    file.set("soft_cap", problem.soft_cap);
    file.set("dtype", std::string(layouts::to_string(problem.dtype)));
    file.set("arithmetic", std::string(layouts::to_string(arithmetic)));

    file.set("sinks", static_cast<std::int64_t>(problem.sinks.size()));
    file.set("dropout", problem.dropout.probability);
    if (problem.dropout.drops()) {
        file.set("dropout_seed", static_cast<std::int64_t>(problem.dropout.seed));
        file.set("dropout_below", std::int64_t{dropout_draw(problem.dropout).below});
    }
}

void write_scales(Writer& writer, const layouts::Problem& problem) {
    writer.scale("batch", problem.batch);
    writer.scale("token", problem.tokens);
    if (!problem.queries.empty()) {
        writer.scale("row", problem.rows());
        writer.values("row_position", problem.row_positions(), {"row"},
                      "token that the row of q, do, o, lse and dq is");
    }
    writer.scale("query_head", problem.query_heads);
    writer.scale("kv_head", problem.kv_heads);
    writer.scale("head_dim", problem.head_dim);
    writer.scale("value_dim", problem.value_dim);
    if (problem.latent.is_given()) {
        writer.file().set("latent", text_of(problem.latent));
        writer.scale("one", 1);
        writer.scale("latent_number", problem.latent.width());
        writer.scale("matrix_row", problem.expanded_dim());
        writer.scale("matrix_column", problem.latent.rank);
    }
}

void write_documents(Writer& writer, const layouts::Problem& problem, const TensorNotes& notes) {
    if (notes.document_lengths.empty()) return;
    auto lengths = notes.document_lengths;
    if (notes.tokens < problem.tokens) lengths.push_back(problem.tokens - notes.tokens);
    writer.scale("document", static_cast<std::int64_t>(lengths.size()));
    writer.values("document_lengths", lengths, {"document"}, "tokens of each packed document of the input");
}

void write_tensors(Writer& writer, const layouts::Problem& problem, const reference::Inputs& in,
                   const reference::Outputs& out) {
    const std::string row = problem.queries.empty() ? "token" : "row";
    const bool latent = problem.latent.is_given();
    if (!problem.sinks.empty()) {
        writer.values("sinks", problem.sinks, {"query_head"}, "learned logits in the softmax's denominator");
        writer.values("dsinks", out.dsinks, {"query_head"}, "gradient by them");
    }
    const Writer::Dimensions like_q{"batch", row, "query_head", "head_dim"},
        like_o{"batch", row, "query_head", "value_dim"};
    const auto like_k = latent ? Writer::Dimensions{"batch", "token", "one", "latent_number"}
                               : Writer::Dimensions{"batch", "token", "kv_head", "head_dim"};
    const auto like_v = latent ? Writer::Dimensions{"one", "kv_head", "matrix_row", "matrix_column"}
                               : Writer::Dimensions{"batch", "token", "kv_head", "value_dim"};
    const auto all = [](const auto& tensor) { return std::span<const double>(tensor.data(), tensor.size()); };
    writer.tensor("q", all(in.q), problem.dtype, like_q, "queries");
    writer.tensor("k", all(in.k), problem.dtype, like_k, latent ? "what keys and values are made of" : "keys");
    writer.tensor("v", all(in.v), problem.dtype, like_v,
                  latent ? "matrices that make them: rows of keys, then of values" : "values");
    writer.tensor("do", all(in.dout), problem.dtype, like_o, "gradient of the loss by the output");
    writer.tensor("o", all(out.o), DType::fp64, like_o, "output");
    writer.tensor("lse", all(out.lse), DType::fp64, {"batch", row, "query_head"},
                  "natural logarithm of the sum of exponentials of the row's scores, -inf for a row that sees nothing");
    writer.tensor("dq", all(out.dq), DType::fp64, like_q, "gradient by q");
    writer.tensor("dk", all(out.dk), DType::fp64, like_k, "gradient by k");
    writer.tensor("dv", all(out.dv), DType::fp64, like_v, "gradient by v");
}

void require_outputs(const layouts::Problem& p, const reference::Outputs& out) {
    reference::require_shape("o", out.o.shape(), {p.batch, p.rows(), p.query_heads, p.value_dim});
    reference::require_shape("dq", out.dq.shape(), {p.batch, p.rows(), p.query_heads, p.head_dim});
    reference::require_shape("dk", out.dk.shape(), p.key_shape());
    reference::require_shape("dv", out.dv.shape(), p.value_shape());
    require(out.lse.size() == static_cast<std::size_t>(p.batch * p.rows() * p.query_heads),
            "lse has {} values; it must have {}", out.lse.size(), p.batch * p.rows() * p.query_heads);
}

}  // namespace

std::string file_name_of(const std::string& run) {
    constexpr std::size_t longest = 200, kept_digits = 16;  // file systems end at 255 bytes
    static const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-=.,_";
    std::string name = run;
    std::replace_if(
        name.begin(), name.end(),
        [](unsigned char c) { return plain.find(static_cast<char>(c)) == std::string_view::npos; }, '_');
    // What differs in a replaced character that is common in names of files must not become one file.
    const bool ambiguous = run.find_first_not_of(plain + " :") != std::string::npos;
    if (name.size() > longest || ambiguous)
        name = name.substr(0, longest) + "-" + digest_of(run).substr(0, kept_digits);
    return name;
}

fs::path tensors_path(const fs::path& folder, const std::string& run) { return folder / (file_name_of(run) + ".h5"); }

void save_tensors(WrittenFile place, const std::string& run, const layouts::Problem& problem, const layouts::Mask& mask,
                  const reference::Inputs& inputs, const reference::Outputs& outputs, DType arithmetic,
                  const Provenance& provenance, const TensorNotes& notes) {
    reference::require_inputs(problem, mask, inputs);
    require_outputs(problem, outputs);
    const auto folder = fs::absolute(place.name()).parent_path();
    std::error_code error;
    fs::create_directories(folder, error);
    require(fs::is_directory(folder), "cannot make the folder {}: {}", folder.string(), error.message());
    require_replaceable(place.path());
    Writer writer(place.path());
    write_facts(writer.file(), run, problem, mask, arithmetic, notes);
    write_scales(writer, problem);
    write_mask(writer, mask);
    write_rotary(writer, problem, mask);
    write_documents(writer, problem, notes);
    write_tensors(writer, problem, inputs, outputs);
    auto group = writer.file().make_group("provenance");
    for (const auto& [name, value] : provenance.entries()) group.set(name, value);
    place.write(writer.file().image());
}

}  // namespace ringlab::experiments
