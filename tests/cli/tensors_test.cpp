#include "process.hpp"
#include "python.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::cli::test {
namespace {

const std::string python = python_with("numpy, h5py");

/// A precondition: without them a test shows as skipped.
boost::test_tools::assertion_result has_python(boost::unit_test::test_unit_id) {
    return found_with(python, "numpy, h5py");
}

const std::string checker = RINGLAB_SOURCE_DIR "/experiments/check_tensors.py";

Words files_in(const fs::path& folder) {
    Words files;
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
    return files;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_tensors, *boost::unit_test::precondition(has_python))

BOOST_AUTO_TEST_CASE(an_outside_program_recomputes_every_saved_result) {
    for (const auto& [arithmetic, rotary] :
         {std::pair("fp64", Words{}),
          {"bf16", {}},
          {"bf16", {"--rotary", "10000"}},
          {"fp64", {"--sinks", "normal", "--dropout", "0.2"}},
          {"fp64", {"--dropout", "0.3", "--seed", "81985529216486895"}},
          {"fp64", {"--rotary", "500+dims:32+first:16+pairs:interleaved+scaling:yarn:8,64+positions:documents"}}}) {
        const Folder folder;
        const auto arguments =
            Words{"--arithmetic", arithmetic} +
            words_of(
                "--tolerance 0.1 --tokens 190 --ranks 4 --layouts contiguous zigzag striped --masks window:40,0+sink:4 "
                "full+valid:0-70,90-190 causal+documents:input --schedules ring --pad --save-tensors tensors -o r.h5");
        const auto ending = run(folder, gradient_equivalence, arguments + rotary);
        BOOST_REQUIRE(ending.status == 0);
        const auto files = files_in(folder / "tensors");
        BOOST_TEST(files.size() == 9u);
        const auto checked = run(folder, python, Words{checker} + files);
        BOOST_TEST(checked.status == 0, checked.out << checked.err);
        BOOST_TEST(count(checked.out, "\nagrees: ") == files.size(), checked.out);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
