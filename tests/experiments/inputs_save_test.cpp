#include "experiments/inputs/inputs.hpp"
#include "experiments/record/tensors_file.hpp"
#include "record_python.hpp"
#include "record_support.hpp"
#include "reference/attention/dense.hpp"

#include <boost/test/data/test_case.hpp>

#include <set>

namespace ringlab::experiments::test {
namespace {

using layouts::DType;
using layouts::Problem;
namespace data = boost::unit_test::data;

const std::string script = std::string(RINGLAB_SOURCE_DIR) + "/experiments/check_tensors.py";

Problem small_problem(DType dtype, double soft_cap) {
    Problem problem;
    problem.batch = 2;
    problem.tokens = 70;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 12;
    problem.value_dim = 10;
    problem.dtype = dtype;
    problem.soft_cap = soft_cap;
    return problem;
}

/// Sinks, documents, hidden keys and rows that see nothing.
layouts::Mask hard_mask() { return layouts::pad(layouts::make_mask("window:9,0+sink:3+documents:40,24", 64), 70); }

struct Attention {
    Problem problem;
    InputData data;
    reference::Outputs outputs;
};

Attention attention(DType dtype, double soft_cap) {
    const auto problem = small_problem(dtype, soft_cap);
    auto data = generate_inputs("sink", problem, 3);
    auto outputs = reference::dense_attention(problem, hard_mask(), data.inputs);
    return {problem, std::move(data), std::move(outputs)};
}

fs::path save(const Folder& folder, const Attention& all, const std::string& run = "causal zigzag P=8") {
    const auto path = tensors_path(folder / "tensors", run);
    save_tensors(path, run, all.problem, hard_mask(), all.data.inputs, all.outputs, DType::fp64, fixed_provenance());
    return path;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(saved_tensors)

// Two fp64 implementations that share nothing but the formula: NumPy's and the reference's.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(has_h5py))
BOOST_DATA_TEST_CASE(numpy_recomputes_all_results_from_the_file,
                     data::make({DType::fp64, DType::fp32, DType::fp16, DType::bf16}) * data::make({0.0, 5.0}), dtype,
                     soft_cap) {
    const Folder folder;
    const auto path = save(folder, attention(dtype, soft_cap));
    const auto result = run_python(script + " " + path.string() + " --tolerance 1e-13");
    BOOST_TEST(result.status == 0, result.output);
}

BOOST_AUTO_TEST_CASE(numpy_finds_an_error_in_each_result, *boost::unit_test::precondition(has_h5py)) {
    const Folder folder;
    const auto right = attention(DType::bf16, 0);
    const auto check = [&](auto spoil) {
        auto wrong = right;
        spoil(wrong.outputs);
        return run_python(script + " " + save(folder, wrong).string()).status;
    };
    BOOST_TEST(check([](auto&) {}) == 0);
    BOOST_TEST(check([](auto& out) { out.o *= 1 + 1e-9; }) == 1);
    BOOST_TEST(check([](auto& out) { out.lse(0, 5, 1) += 1e-6; }) == 1);
    BOOST_TEST(check([](auto& out) { out.lse(0, 69, 1) = 0; }) == 1);  // an empty row
    BOOST_TEST(check([](auto& out) { out.dq *= 2; }) == 1);
    BOOST_TEST(check([](auto& out) { out.dk(1, 9, 1, 3) += 1e-6; }) == 1);
    BOOST_TEST(check([](auto& out) { out.dv(0, 0, 0, 0) = std::nan(""); }) == 1);
}

BOOST_DATA_TEST_CASE(saved_inputs_can_be_loaded_again, data::make({DType::fp64, DType::fp32, DType::fp16, DType::bf16}),
                     dtype) {
    const Folder folder;
    const auto all = attention(dtype, 5.0);
    const auto again = load_inputs(save(folder, all), {});
    BOOST_TEST((again.problem.dtype == dtype));
    BOOST_TEST(again.problem.scale == all.problem.effective_scale());
    BOOST_TEST(again.problem.soft_cap == 5.0);
    BOOST_TEST((again.inputs.q == all.data.inputs.q));
    BOOST_TEST((again.inputs.k == all.data.inputs.k));
    BOOST_TEST((again.inputs.v == all.data.inputs.v));
    BOOST_TEST((again.inputs.dout == all.data.inputs.dout));
}

BOOST_AUTO_TEST_CASE(run_names_become_file_names) {
    const Folder folder;
    const auto all = attention(DType::fp64, 0);
    BOOST_TEST(save(folder, all, "documents:3,4 zigzag P=8 my_input.h5").filename() ==
               "documents_3,4_zigzag_P=8_my_input.h5.h5");
    std::set<fs::path> different;
    for (const auto* run : {"documents:@a_b.txt", "documents:@a@b.txt", "documents:@a#b.txt"})
        different.insert(save(folder, all, run));
    BOOST_TEST(different.size() == 3u);
    const std::string name(300, 'x');
    const auto first = save(folder, all, name + "1").filename().string(),
               second = save(folder, all, name + "2").filename().string();
    BOOST_TEST(first != second);
    BOOST_TEST(first.size() < 250);
    BOOST_TEST(std::distance(fs::directory_iterator(folder / "tensors"), {}) == 6);  // and no temporary
}

BOOST_AUTO_TEST_CASE(the_file_says_all_that_its_mask_depends_on) {
    const Folder folder;
    const auto all = attention(DType::fp64, 0);
    const auto path = folder / "run.h5";
    save_tensors(path, "run", all.problem, hard_mask(), all.data.inputs, all.outputs, DType::fp64, fixed_provenance(),
                 {"a/b.h5", "window:9,0+sink:3+documents:input", 64, {40, 24}});
    const auto file = hdf5::File::open(path);
    BOOST_TEST(file.text("mask") == "window:9,0+sink:3+documents:40,24");
    BOOST_TEST(file.text("mask_as_typed") == "window:9,0+sink:3+documents:input");
    BOOST_TEST(file.text("input") == "a/b.h5");
    BOOST_TEST(file.number("tokens") == 64);
    // The mask by its text alone, padded to the tokens of the tensors, is the mask row by row.
    const auto again = layouts::pad(layouts::make_mask(file.text("mask"), 64), 70);
    const auto begin = file.dataset("row_begin").integers(), end = file.dataset("row_end").integers(),
               sink = file.dataset("row_sink").integers();
    for (std::int64_t i = 0; i < 70; ++i) {
        const auto row = static_cast<std::size_t>(i);
        BOOST_TEST((again.row(i) == layouts::RowKeys{begin[row], end[row], sink[row]}));
    }
    const auto loaded = inspect_inputs(path, {});
    BOOST_TEST(loaded.document_lengths == (std::vector<std::int64_t>{40, 24, 6}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_places_are_refused) {
    const Folder folder;
    auto all = attention(DType::fp64, 0);
    put_bytes(folder / "tensors", "a file where the folder should be");
    BOOST_TEST(contains(error_of([&] { save(folder, all); }), "folder"));
    fs::remove(folder / "tensors");
    all.outputs.dk = all.outputs.dq;
    BOOST_TEST(contains(error_of([&] { save(folder, all); }), "dk"));
}

// As on a full disk: HDF5 must give up cleanly, and the process must end as if nothing had been.
BOOST_AUTO_TEST_CASE(tensors_that_do_not_fit_fail_clearly_and_leave_nothing) {
    const Folder folder;
    const auto all = attention(DType::fp64, 0);
    const int status = in_child([&] {
        std::signal(SIGXFSZ, SIG_IGN);
        for (const rlim_t size : {0, 500, 3000, 20'000, 100'000, 200'000}) {
            rlimit limit{};
            getrlimit(RLIMIT_FSIZE, &limit);
            limit.rlim_cur = size;
            setrlimit(RLIMIT_FSIZE, &limit);
            try {
                save(folder, all);
                return 2;
            } catch (const Error& error) {
                if (!one_line(error.what())) return 3;
            }
            if (!fs::is_empty(folder / "tensors")) return 4;
        }
        return 0;
    });
    BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
