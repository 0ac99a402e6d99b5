// Advice for a global batch: its table, its record and its assignment agree, and bad batch files are refused.

#include "experiments/record/hdf5/hdf5.hpp"
#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <ostream>
#include <set>
#include <sstream>

namespace ringlab::cli::test {
namespace {

const Words on_cluster{"--machines", "h200_cluster", "--gpus", "16", "--heads", "64:8", "-o", "b.h5"};

/// Ranks and numbers of documents of each ring, from an assignment file.
struct RingLine {
    int first = 0, last = 0;
    std::vector<std::size_t> documents;
};

std::vector<RingLine> ring_lines(const std::string& text) {
    std::vector<RingLine> rings;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("#")) continue;
        std::istringstream words(line);
        char dash = 0;
        RingLine ring;
        words >> ring.first >> dash >> ring.last;
        for (std::size_t document = 0; words >> document;) ring.documents.push_back(document);
        rings.push_back(std::move(ring));
    }
    return rings;
}

/// A batch file that cannot be used.
struct BadBatch {
    std::string contents;
    Words says;
};

std::ostream& operator<<(std::ostream& out, const BadBatch& batch) { return out << batch.says.front(); }

const std::vector<BadBatch> bad_batches{
    {"", {"batch file 'b.txt' is empty"}},
    {"512,512\n\n1024\n", {"line 2 is empty", "512,300,128x4"}},
    {"512,512\n1024\n\n", {"line 3 is empty"}},
    {"512,512\n1000,many\n", {"line 2: document length is 'many'"}},
    {"512,512\n1024,0\n", {"line 2: document length is '0'"}},
    {"512,512\n1024,-5\n", {"line 2: document length is '-5'"}},
    {"512,512\n500,500\n", {"line 2 has 1000 tokens, line 1 has 1024"}},
    {"512,512\n@other.txt\n", {"line 2 names another file"}},
    {"1024\n1024\n1024\n", {"3 packings do not divide 16 GPUs"}},
    {"1023\n1023\n", {"1023 tokens", "8 ranks"}},
    {"9223372036854775807,9223372036854775807\n", {"more than 2^31 tokens"}},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_batch)

BOOST_AUTO_TEST_CASE(the_table_the_record_and_the_assignment_of_a_batch_agree) {
    const Folder folder;
    write_file(folder / "b.txt", "32768\n1024x16, 2048x8\n");
    const auto words = on_cluster + Words{"--batch-file", "b.txt", "--assignment", "rings.txt"};
    const auto ending = run(folder, advise, words);
    BOOST_REQUIRE(ending.status == 0);
    const auto record = experiments::hdf5::File::open(folder / "b.h5");
    const auto names = record.dataset("run").texts();
    BOOST_TEST(names == (Words{"batch 1 as given", "batch 1 exchanged", "batch 1 one ring", "batch 1 sizes differ"}),
               boost::test_tools::per_element());
    const auto advised = record.dataset("runs/advised").integers();
    BOOST_TEST(std::ranges::count(advised, 1) == 1);
    const auto best = static_cast<std::size_t>(std::ranges::find(advised, 1) - advised.begin());
    const auto seconds = record.dataset("runs/seconds_predicted").doubles();
    BOOST_TEST(seconds[best] == std::ranges::min(seconds));

    const auto rings = ring_lines(contents_of(folder / "rings.txt"));
    const auto ring_of = record.dataset("documents/ring").integers();
    BOOST_REQUIRE(ring_of.size() == 4 * 25u);
    std::set<std::size_t> seen;
    for (const auto& ring : rings) {
        BOOST_TEST(ring.last < 16);
        seen.insert(ring.documents.begin(), ring.documents.end());
        for (const auto document : ring.documents)
            BOOST_TEST(ring_of[best * 25 + document] == ring_of[best * 25 + ring.documents.front()]);
    }
    BOOST_TEST(seen.size() == 25u);
    BOOST_TEST(contains(ending.out, "advised"), ending.out);
    BOOST_TEST(contains(ending.out, "Assignment: rings.txt"), ending.out);

    // Only what advise itself wrote is replaced.
    BOOST_TEST(run(folder, advise, words).status == 1);
    BOOST_TEST(run(folder, advise, words + Words{"--overwrite"}).status == 0);
    write_file(folder / "rings.txt", "mine\n");
    BOOST_TEST(run(folder, advise, words + Words{"--overwrite"}).status == 1);
    BOOST_TEST(contents_of(folder / "rings.txt") == "mine\n");
}

BOOST_AUTO_TEST_CASE(drawn_batches_are_the_same_with_any_number_of_threads_and_others_with_another_seed) {
    const Folder folder;
    const auto priced = [&](const Words& more) {
        const auto ending =
            run(folder, advise, on_cluster + Words{"--batches", "2", "--tokens", "16Ki", "--overwrite"} + more);
        BOOST_REQUIRE(ending.status == 0);
        BOOST_TEST(contains(ending.out, "mean of all batches"), ending.out);
        return experiments::hdf5::File::open(folder / "b.h5").dataset("runs/seconds_priced").doubles();
    };
    const auto one = priced({"--threads", "1"});
    BOOST_TEST(one == priced({"--threads", "3"}), boost::test_tools::per_element());
    BOOST_TEST((one != priced({"--seed", "2"})));
}

BOOST_DATA_TEST_CASE(a_bad_batch_file_gives_one_line_that_names_it, boost::unit_test::data::make(bad_batches), bad) {
    const Folder folder;
    write_file(folder / "b.txt", bad.contents);
    const auto ending = run(folder, advise, on_cluster + Words{"--batch-file", "b.txt"});
    BOOST_TEST(ending.status == 1);
    const auto lines = lines_beside_progress(ending.err);
    BOOST_TEST(lines.size() == 1u, "stderr: " << ending.err);
    for (const auto& part : bad.says) BOOST_TEST(contains(ending.err, part), ending.err << " lacks " << part);
    BOOST_TEST(folder.left() == Words{"b.txt"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
