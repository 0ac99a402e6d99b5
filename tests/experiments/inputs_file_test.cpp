#include "experiments/inputs/inputs.hpp"
#include "record_support.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/data/test_case.hpp>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace ringlab::experiments::test {
namespace {

using hdf5::Element;
using layouts::DType;
using Shape = std::vector<std::int64_t>;

const fs::path real_input = fs::path(RINGLAB_SOURCE_DIR) / "experiments/data/real_attention.h5";

/// What a test's input file holds; each test spoils one thing.
struct FileContents {
    Shape q{2, 10, 4, 8}, k{2, 10, 2, 8}, v{2, 10, 2, 6}, dout{2, 10, 4, 6};
    Element element = Element::fp32;
    std::vector<std::int64_t> documents = {};
    std::string without = "";
    std::string poisoned = "";  ///< tensor whose element 123 is `poison`
    double poison = 0;
};

double value_at(std::size_t i) { return static_cast<double>(i % 31) / 16 - 1; }

void write_tensor(hdf5::File& file, const FileContents& contents, const std::string& name, const Shape& shape) {
    if (name == contents.without) return;
    std::vector<double> values(
        static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(i);
    if (name == contents.poisoned) values[123] = contents.poison;
    file.make_dataset(name, contents.element, shape).write(values);
}

void write_input(const fs::path& path, const FileContents& contents) {
    auto file = hdf5::File::create(path);
    write_tensor(file, contents, "q", contents.q);
    write_tensor(file, contents, "k", contents.k);
    write_tensor(file, contents, "v", contents.v);
    write_tensor(file, contents, "do", contents.dout);
    if (!contents.documents.empty())
        file.make_dataset("document_lengths", contents.documents,
                          Shape{static_cast<std::int64_t>(contents.documents.size())});
    save(file, path);
}

std::string refusal(const FileContents& contents, const LoadOptions& options = {}) {
    const Folder folder;
    write_input(folder / "input.h5", contents);
    const auto text = error_of([&] { load_inputs(folder / "input.h5", options); });
    BOOST_TEST(one_line(text));
    BOOST_TEST(contains(text, "input.h5"), text);
    BOOST_TEST_MESSAGE(text);
    return text;
}

/// Whether loading it is refused with one line that names the file.
bool is_refused(const fs::path& path) {
    const auto text = error_of([&] { load_inputs(path, {}); });
    return one_line(text) && contains(text, path.string());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(inputs_file)

BOOST_AUTO_TEST_CASE(the_real_input_of_the_repository_loads) {
    const auto data = load_inputs(real_input, {});
    const auto& p = data.problem;
    BOOST_TEST(p.batch == 1);
    BOOST_TEST(p.tokens == 2048);
    BOOST_TEST(p.query_heads == 4);
    BOOST_TEST(p.kv_heads == 2);
    BOOST_TEST(p.head_dim == 128);
    BOOST_TEST(p.value_dim == 128);
    BOOST_TEST(std::abs(p.scale * std::sqrt(128.0) - 1) < 1e-15);
    BOOST_TEST((p.dtype == DType::bf16));
    BOOST_TEST(std::accumulate(data.document_lengths.begin(), data.document_lengths.end(), std::int64_t{0}) == 2048);
    BOOST_TEST(data.inputs.dout.shape(2) == 4);

    const auto part = load_inputs(real_input, {.tokens = 777});
    BOOST_TEST(part.problem.tokens == 777);
    BOOST_TEST(part.inputs.k(0, 776, 1, 127) == data.inputs.k(0, 776, 1, 127));
    BOOST_TEST(std::accumulate(part.document_lengths.begin(), part.document_lengths.end(), std::int64_t{0}) == 777);
    BOOST_TEST(inspect_inputs(real_input, {}).document_lengths == data.document_lengths);
    BOOST_TEST(inspect_inputs(real_input, {}).inputs.q.size() == 0);
}

BOOST_AUTO_TEST_CASE(every_float_type_loads_and_a_slice_takes_the_first_tokens_of_each_batch_element) {
    const Folder folder;
    const std::vector<std::pair<Element, DType>> types{
        {Element::fp16, DType::fp16}, {Element::fp32, DType::fp32}, {Element::fp64, DType::fp64}};
    for (const auto& [element, dtype] : types) {
        write_input(folder / "input.h5", {.element = element, .documents = {4, 3, 3}});
        const auto data = load_inputs(folder / "input.h5", {.tokens = 5});
        BOOST_TEST((data.problem.dtype == dtype));
        BOOST_TEST(data.problem.scale == 0);
        BOOST_TEST(data.problem.value_dim == 6);
        BOOST_TEST(data.document_lengths == (std::vector<std::int64_t>{4, 1}));
        // Batch 1, token 4, head 3, dim 7 of the file's 10 tokens.
        BOOST_TEST(data.inputs.q(1, 4, 3, 7) == value_at(((10 + 4) * 4 + 3) * 8 + 7));
        BOOST_TEST(data.inputs.v(1, 4, 1, 5) == value_at(((10 + 4) * 2 + 1) * 6 + 5));
    }
}

BOOST_AUTO_TEST_CASE(a_dout_that_is_missing_is_drawn) {
    const Folder folder;
    write_input(folder / "input.h5", {.without = "do"});
    const auto data = load_inputs(folder / "input.h5", {.seed = 9});
    const auto generated = generate_inputs("normal", data.problem, 9);
    BOOST_TEST((data.inputs.dout == generated.inputs.dout));
}

BOOST_AUTO_TEST_CASE(a_dtype_may_be_asked_for) {
    const Folder folder;
    write_input(folder / "input.h5", {.poisoned = "q", .poison = 1 + 1.0 / 1024});
    const auto data = load_inputs(folder / "input.h5", {.dtype = DType::bf16});
    BOOST_TEST((data.problem.dtype == DType::bf16));
    BOOST_TEST(data.inputs.q.data()[123] == 1);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_refused_and_named) {
    const std::pair<FileContents, const char*> wrong[] = {
        {{.without = "k"}, "/k is missing"},
        {{.k = {2, 10, 16}}, "/k has 3 dimensions; it must have four"},
        {{.k = {2, 10, 3, 8}, .v = {2, 10, 3, 6}}, "4 heads and"},
        {{.v = {2, 10, 1, 6}}, "heads"},
        {{.k = {2, 11, 2, 8}}, "tokens"},
        {{.v = {1, 10, 2, 6}}, "batch elements"},
        {{.k = {2, 10, 2, 9}}, "dims per head"},
        {{.dout = {2, 10, 4, 8}}, "dims per head"},
        {{.v = {2, 10, 0, 6}}, "every extent must be at least 1"},
        {{.documents = {4, 3}}, "sums to 7"},
        {{.documents = {4, 7}}, "sum to the 10 tokens"},
        {{.documents = {4, -1, 7}}, "holds -1"},
    };
    for (const auto& [contents, text] : wrong) BOOST_TEST(contains(refusal(contents), text), text);
    BOOST_TEST(contains(refusal({}, {.tokens = 11}), "holds 10 tokens, 11 are asked for"));
}

BOOST_AUTO_TEST_CASE(values_that_are_not_finite_are_refused_with_tensor_position_and_value) {
    // Element 123 of q, (2, 10, 4, 8), is batch 0, token 3, head 3, dim 3.
    for (const auto& [value, text] :
         {std::pair{std::nan(""), "nan"}, std::pair{std::numeric_limits<double>::infinity(), "inf"},
          std::pair{-std::numeric_limits<double>::infinity(), "-inf"}}) {
        const auto line = refusal({.poisoned = "q", .poison = value});
        BOOST_TEST(contains(line, std::string("/q holds ") + text + " at batch 0, token 3, head 3, dim 3"), line);
    }
    const auto line = refusal({.poisoned = "do", .poison = 1e6}, {.dtype = DType::fp16});
    BOOST_TEST(contains(line, "/do holds 1000000 at batch 0, token 5, head 0, dim 3"), line);
    BOOST_TEST(contains(line, "fp16"), line);
}

BOOST_AUTO_TEST_CASE(types_other_than_floats_are_refused) {
    const Folder folder;
    const auto path = folder / "input.h5";
    const auto with_q = [&](auto make) {
        auto file = hdf5::File::create(path);
        make(file);
        save(file, path);
        const auto text = error_of([&] { load_inputs(path, {}); });
        BOOST_TEST_MESSAGE(text);
        return text;
    };
    const Shape shape{1, 2, 1, 2};
    BOOST_TEST(contains(with_q([&](hdf5::File& file) { file.make_dataset("q", std::vector<std::int64_t>(4), shape); }),
                        "must be of 16-, 32- or 64-bit floats"));
    BOOST_TEST(contains(with_q([&](hdf5::File& file) { file.make_dataset("q", std::vector<std::string>(4), shape); }),
                        "must be of 16-, 32- or 64-bit floats"));
    BOOST_TEST(contains(with_q([&](hdf5::File& file) { file.make_dataset("q", Element::uint16, shape); }),
                        "dtype = \"bfloat16\""));
    BOOST_TEST(contains(with_q([&](hdf5::File& file) { file.make_group("q"); }), "q"));
    auto mixed = hdf5::File::create(path);
    for (const char* name : {"q", "k", "v"})
        mixed.make_dataset(name, name == std::string("v") ? Element::fp32 : Element::fp64, shape)
            .write(std::vector<double>(4));
    save(mixed, path);
    BOOST_TEST(contains(error_of([&] { load_inputs(path, {}); }), "they must agree"));
}

BOOST_AUTO_TEST_CASE(attributes_that_make_no_sense_are_refused) {
    const Folder folder;
    const auto path = folder / "input.h5";
    const auto with = [&](const char* name, hdf5::Attribute value) {
        auto file = hdf5::File::create(path);
        for (const char* tensor : {"q", "k", "v"})
            file.make_dataset(tensor, Element::fp64, Shape{1, 2, 1, 2}).write(std::vector<double>(4));
        file.set(name, value);
        save(file, path);
        const auto text = error_of([&] { load_inputs(path, {}); });
        BOOST_TEST(one_line(text));
        return text;
    };
    BOOST_TEST(contains(with("scale", std::nan("")), "finite"));
    BOOST_TEST(contains(with("scale", 0.0), "leave it out"));
    BOOST_TEST(contains(with("scale", std::string("half")), "must be a number"));
    BOOST_TEST(contains(with("scale", std::vector<double>{1, 2}), "holds 2 values"));
    BOOST_TEST(contains(with("soft_cap", -1.0), "soft cap"));
}

BOOST_AUTO_TEST_CASE(files_that_are_not_there_or_not_hdf5_are_refused) {
    const Folder folder;
    const auto missing = error_of([&] { load_inputs(folder / "none.h5", {}); });
    BOOST_TEST(contains(missing, "No such file"), missing);
    BOOST_TEST(one_line(error_of([&] { load_inputs(folder.path(), {}); })));
    put_bytes(folder / "text.h5", "q k v");
    BOOST_TEST(contains(error_of([&] { load_inputs(folder / "text.h5", {}); }), "text.h5"));
}

BOOST_AUTO_TEST_CASE(a_truncated_input_is_refused_with_one_line_at_every_length) {
    const Folder folder;
    const auto path = folder / "input.h5";
    write_input(path, {.documents = {5, 5}});
    const auto whole = bytes_of(path);
    for (std::size_t length = 0; length < whole.size(); length += 1 + whole.size() / 100) {
        put_bytes(path, whole.substr(0, length));
        BOOST_TEST(is_refused(path), "cut to " << length << " of " << whole.size());
    }
    const auto real = bytes_of(real_input);
    for (std::size_t length = 1; length < real.size(); length += real.size() / 8) {
        put_bytes(path, real.substr(0, length));
        BOOST_TEST(is_refused(path), "cut to " << length << " of " << real.size());
    }
}

BOOST_AUTO_TEST_CASE(a_fifo_or_device_as_input_is_refused_at_once) {
    const Folder folder;
    BOOST_REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
    BOOST_TEST(contains(error_of([&] { load_inputs(folder / "fifo", {}); }), "a FIFO"));
    BOOST_TEST(contains(error_of([&] { inspect_inputs("/dev/zero", {}); }), "a device"));
    BOOST_TEST(contains(error_of([&] { Record(folder / "fifo", RecordMode::resume, header(), fixed_provenance()); }),
                        "a FIFO"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
