// What users of Python are told to do: read a record as README says, and bring tensors from a model in PyTorch.

#include "python.hpp"
#include "process.hpp"

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <sstream>

namespace ringlab::cli::test {
namespace {

const std::string torch_modules = "h5py, torch; assert torch.__version__ >= \"2.\"";
const std::string torch_python = python_with(torch_modules);

boost::test_tools::assertion_result has_torch(boost::unit_test::test_unit_id) {
    return found_with(torch_python, "h5py and torch from 2.0 on");
}

std::string text_of(const fs::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// The Python block of notebooks/README.md in which `word` occurs.
std::string block_with(const std::string& word) {
    const std::string readme = text_of(RINGLAB_SOURCE_DIR "/notebooks/README.md"), opening = "```python\n";
    for (auto begin = readme.find(opening); begin != std::string::npos; begin = readme.find(opening, begin)) {
        begin += opening.size();
        const auto block = readme.substr(begin, readme.find("```", begin) - begin);
        if (contains(block, word)) return block;
    }
    BOOST_FAIL("notebooks/README.md has no Python block with '" << word << "'");
    return {};
}

/// A model of one layer with 4 query and 2 kv heads, whose gradients are PyTorch's own; `recorded` is around its pass.
const std::string model =
    "import sys, torch\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from from_torch import recorded_attention\n"
    "torch.manual_seed(3)\n"
    "x = torch.randn(2, 48, 64, dtype=torch.float64)\n"
    "to_q, to_k, to_v = (torch.nn.Linear(64, n * 16).double() for n in (4, 2, 2))\n"
    "def layer():\n"
    "    q, k, v = (f(x).unflatten(2, (-1, 16)).transpose(1, 2) for f in (to_q, to_k, to_v))\n"
    "    k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))\n"
    "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)\n";

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_python)

BOOST_AUTO_TEST_CASE(a_record_is_read_as_the_readme_says) {
    const Folder folder;
    fs::create_directories(folder / "out/quickstart");
    const auto made = run(
        folder, compare_layouts,
        words_of(
            "--tokens 64 --ranks 2 --layouts zigzag contiguous --masks causal -o out/quickstart/compare_layouts.h5"));
    BOOST_REQUIRE(made.status == 0);
    const std::pair<std::string, std::string> readings[] = {
        {"h5py", "assert balance.shape == (2,) and (balance >= 1).all(), balance"},
        {"pandas", "assert list(table.layout) == ['zigzag', 'contiguous'] and (table.tokens == 64).all(), table"},
        {"xarray", "assert tree['work']['pairs_of_rank'].sel(rank=1).shape == (2,), tree"},
    };
    for (const auto& [module, holds] : readings) {
        const auto python = python_with(module == "h5py" ? "numpy, h5py" : module + ", h5py");
        if (python.empty()) {
            BOOST_TEST_MESSAGE("skipped: no Python has " << module);
            continue;
        }
        const auto read = run(folder, python, {"-c", block_with(module) + holds});
        BOOST_TEST(read.status == 0, module << "\n" << read.out << read.err);
    }
}

BOOST_AUTO_TEST_CASE(scripts_say_in_one_line_which_file_they_lack) {
    const std::string modules = "numpy, h5py, matplotlib", python = python_with(modules);
    if (python.empty()) {
        BOOST_TEST_MESSAGE("skipped: no Python has " << modules);
        return;
    }
    const Folder folder;
    const auto check = [&](const std::string& script, const std::string& record, const std::string& line) {
        const auto drawn = run(folder, python, {RINGLAB_SOURCE_DIR "/notebooks/" + script, record});
        BOOST_TEST(drawn.status == 1, script);
        BOOST_TEST(drawn.err == script + ": " + line + "\n");
    };
    for (const auto& [script, experiment] :
         {std::pair{"balance", "compare_layouts"}, {"decode", "decode"}, {"latent", "predict"}, {"suffix", "predict"}})
        check(std::string(script) + ".py", "none.h5",
              std::string("there is no record none.h5; make it with ") + experiment + " --output none.h5");
    const auto compared = run(folder, python, {RINGLAB_SOURCE_DIR "/experiments/check_tensors.py", "none.h5"});
    BOOST_TEST(compared.status == 2);
    BOOST_TEST(compared.err.ends_with("check_tensors.py: error: there is no file none.h5\n"), compared.err);
}

BOOST_AUTO_TEST_CASE(what_predict_records_has_a_timeline_and_a_figure_of_one_mask_is_not_cut) {
    const std::string modules = "numpy, h5py, matplotlib", python = python_with(modules);
    if (python.empty()) {
        BOOST_TEST_MESSAGE("skipped: no Python has " << modules);
        return;
    }
    const Folder folder;
    BOOST_REQUIRE(run(folder, predict, small + Words{"--machines", "ideal", "-o", "p.h5"}).status == 0);
    BOOST_REQUIRE(run(folder, compare_layouts, small + words_of("--machines ideal --repeats 1 -o c.h5")).status == 0);
    for (const auto& [script, record] : {std::pair{"timelines", "p.h5"}, {"attention_maps", "c.h5"}}) {
        const auto drawn = run(
            folder, python, {RINGLAB_SOURCE_DIR "/notebooks/" + std::string(script) + ".py", record, "--figures", "f"});
        BOOST_TEST(drawn.status == 0, script << ": " << drawn.err);
    }
    // The label of the colour bar is longer than a row of panels is high.
    const auto border = run(folder, python,
                            {"-c",
                             "from matplotlib.image import imread\n"
                             "p = imread('f/attention_steps.png')[..., :3]\n"
                             "assert (p[:3] == 1).all() and (p[-3:] == 1).all()"});
    BOOST_TEST(border.status == 0, border.err);
}

BOOST_AUTO_TEST_CASE(the_attention_of_a_model_is_recorded_and_its_gradients_are_those_of_pytorch,
                     *boost::unit_test::precondition(has_torch)) {
    const Folder folder;
    const auto recorded = run(folder, torch_python,
                              {"-c",
                               model + "layer()\n"
                                       "with recorded_attention('layer.h5', call=1):\n"
                                       "    layer()\n"
                                       "    layer().square().sum().backward()\n",
                               RINGLAB_SOURCE_DIR "/experiments"});
    BOOST_REQUIRE_MESSAGE(recorded.status == 0, recorded.err);
    const auto ring =
        run(folder, gradient_equivalence,
            words_of("--input layer.h5 --arithmetic fp64 --ranks 4 --layouts zigzag --masks causal window:9,0+sink:2 "
                     "full+valid:0-7,20-48 --schedules ring --save-tensors tensors -o r.h5"));
    BOOST_REQUIRE_MESSAGE(ring.status == 0, ring.err);
    unsigned files = 0;
    for (const auto& entry : fs::directory_iterator(folder / "tensors")) {
        ++files;
        const auto checked = run(folder, torch_python,
                                 {RINGLAB_SOURCE_DIR "/experiments/check_tensors.py", "--by", "torch", entry.path()});
        BOOST_TEST(checked.status == 0, entry.path() << "\n" << checked.out << checked.err);
    }
    BOOST_TEST(files == 3u);
    // What the file holds: kv heads once, and scale, mask and dO of the call.
    const auto held =
        run(folder, torch_python,
            {"-c",
             "import h5py\n"
             "f = h5py.File('layer.h5')\n"
             "print(f['q'].shape, f['k'].shape, f['do'].shape, f.attrs['scale'], bool(f.attrs['causal']))"});
    BOOST_TEST(held.out == "(2, 48, 4, 16) (2, 48, 2, 16) (2, 48, 4, 16) 0.3 True\n");
}

BOOST_AUTO_TEST_CASE(a_call_that_never_comes_is_said, *boost::unit_test::precondition(has_torch)) {
    const Folder folder;
    const auto ended = run(
        folder, torch_python,
        {"-c", model + "with recorded_attention('layer.h5', call=1): layer()\n", RINGLAB_SOURCE_DIR "/experiments"});
    BOOST_TEST(ended.status == 1);
    BOOST_TEST(contains(ended.err, "there were 1 calls"), ended.err);
    BOOST_TEST(!fs::exists(folder / "layer.h5"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
