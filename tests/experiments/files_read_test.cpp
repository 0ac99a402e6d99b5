#include "experiments/files/files_read.hpp"
#include "experiments/command_line/command_line.hpp"
#include "experiments/files/digest.hpp"
#include "experiments/options/options.hpp"
#include "layouts/basics/text_file.hpp"
#include "layouts/masks/mask.hpp"
#include "record_support.hpp"

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

namespace ringlab::experiments::test {
namespace {

std::string sha256(const std::string& text) { return digest_of(text); }

/// "NAME DIGEST" of all that the account has.
std::vector<std::string> lines_of(FilesRead& account) {
    std::vector<std::string> lines;
    for (const auto& [name, digest] : account.digests()) lines.push_back(name + " " + digest);
    return lines;
}

/// The first line of a source file, without its comment, that opens a file; or nothing.
std::string opening_line(const std::string& source) {
    static const std::regex opening(
        R"(\b[io]fstream\b|std::fstream\b|\bfopen|\bdlopen|\bopen(at)?\(.*\bO_|\bH5F(open|create)|File::open\b|parse_file|mkstemp)");
    std::istringstream lines(source);
    for (std::string line; std::getline(lines, line);)
        if (line.resize(std::min(line.find("//"), line.size())); std::regex_search(line, opening)) return line;
    return "";
}

/// Resumes a record of one run after this process has read `path`.
std::string resumed(const fs::path& record, const fs::path& path) {
    FilesRead account;
    layouts::read_text(path, "text");
    try {
        Record(record, RecordMode::resume, header(), fixed_provenance());
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(files_read)

BOOST_AUTO_TEST_CASE(a_text_is_read_once_and_its_digest_is_that_of_what_was_read) {
    const Folder folder;
    const auto path = folder / "lengths.txt";
    put_bytes(path, "3 5\n");
    FilesRead account;
    const auto spec = "documents:@" + path.string();
    BOOST_TEST(layouts::make_mask(spec, 8).visible(0, 2));
    put_bytes(path, "1 7\n");
    BOOST_TEST(layouts::make_mask(spec, 8).visible(0, 2));
    BOOST_TEST(lines_of(account) == std::vector<std::string>{path.string() + " " + sha256("3 5\n")},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(other_files_are_noted_once_and_those_that_are_not_there_not) {
    const Folder folder;
    const auto path = folder / "input.h5";
    put_bytes(path, "abc");
    FilesRead account;
    note_read(path);
    note_read(path);
    note_read(folder / "none.h5");
    BOOST_TEST(lines_of(account) == std::vector<std::string>{path.string() + " " + sha256("abc")},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_comes_with_ringlab_has_a_name_that_is_the_same_everywhere) {
    FilesRead account;
    layouts::read_text(std::string(RINGLAB_SOURCE_DIR) + "/experiments/machines/ideal.toml", "machine file");
    BOOST_TEST(account.digests().front().name == "machines/ideal.toml");
}

BOOST_AUTO_TEST_CASE(a_record_is_not_resumed_with_a_file_that_has_changed) {
    const Folder folder;
    const auto path = folder / "l.txt", record = folder / "r.h5";
    put_bytes(path, "abc");
    {
        FilesRead account;
        layouts::read_text(path, "text");
        Record(record, RecordMode::create, header(), fixed_provenance()).commit("one", sample_run(1));
    }
    const auto before = bytes_of(record);
    BOOST_TEST(resumed(record, path) == "");
    put_bytes(path, "abd");
    const auto text = resumed(record, path);
    for (const auto& part : {"file '" + path.string() + "' has changed", sha256("abc"), sha256("abd")})
        BOOST_TEST(contains(text, part), text);
    BOOST_TEST((bytes_of(record) == before));
    BOOST_TEST(open(record).group("provenance/0").texts("files") == std::vector<std::string>{path.string()},
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_file_that_is_read_after_the_first_run_is_kept_and_compared_too) {
    const Folder folder;
    const auto path = folder / "l.txt", record_path = folder / "r.h5";
    for (const std::string contents : {"abc", "abd"}) {
        put_bytes(path, contents);
        FilesRead account;
        Record record(record_path, RecordMode::resume, header(), fixed_provenance());
        record.commit("early " + contents, sample_run(1));
        layouts::read_text(path, "text");
        const auto late = [&] { record.commit("late " + contents, sample_run(2)); };
        if (contents == "abc")
            late();
        else
            BOOST_TEST(contains(error_of(late), "has changed"));
    }
    const auto file = open(record_path);
    BOOST_TEST(runs_of(file) == (std::vector<std::string>{"early abc", "late abc", "early abd"}),
               boost::test_tools::per_element());
    BOOST_TEST(file.group("provenance/0").texts("files").empty());
    BOOST_TEST(file.group("provenance/1").texts("files").size() == 1u);
}

// Whoever reads what decides results does so by layouts::read_text(), or calls note_read() first; whoever writes
// results does so by written_file.hpp.
BOOST_AUTO_TEST_CASE(nobody_opens_files_past_the_account) {
    const std::set<std::string> allowed{
        "layouts/basics/text_file.cpp",        // the one reader of texts
        "experiments/files/digest.cpp",        // digests of files that were noted
        "experiments/options/file_guard.cpp",  // looks at what is to be replaced
        "experiments/record/hdf5.cpp",         // HDF5 for all others
        "experiments/files/written_file.cpp",  // the one writer
        "experiments/record/provenance.cpp",   // the system's own, as are the next
        "experiments/study/forecast.cpp",     "processes/watching/neighbours.cpp", "processes/shared_memory.cpp",
        "processes/watching/first_error.cpp", "gpu/device/shared_library.hpp",
    };
    const std::set<std::string> noting{"experiments/record/record.cpp", "experiments/inputs/inputs_file.cpp",
                                       "experiments/prediction/uncertainty.cpp",
                                       "experiments/validation/measured_rings.cpp"};
    std::size_t looked_at = 0;
    for (const auto* folder : {"layouts", "sim", "reference", "processes", "gpu", "experiments"})
        for (const auto& entry : fs::recursive_directory_iterator(fs::path(RINGLAB_SOURCE_DIR) / folder)) {
            const auto ending = entry.path().extension();
            if (ending != ".cpp" && ending != ".hpp" && ending != ".cu" && ending != ".cuh") continue;
            const auto name = fs::relative(entry.path(), RINGLAB_SOURCE_DIR).string();
            const auto source = bytes_of(entry.path());
            ++looked_at;
            if (allowed.contains(name) || (noting.contains(name) && contains(source, "note_read("))) continue;
            const auto line = opening_line(source);
            BOOST_TEST(line == "", name << " opens files: see layouts::read_text() and note_read()");
        }
    BOOST_TEST(looked_at > 300u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
