#include "experiments/options/file_guard.hpp"
#include "record_support.hpp"
#include "sim/report/chrome_trace.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <span>

// What others put at the path of an output while a command runs is never destroyed, and nothing that was computed is
// lost.

namespace ringlab::experiments::test {
namespace {

const std::string precious = "a year of work\n";
using Names = std::vector<std::string>;

/// How a file of others comes to `path`.
struct Coming {
    const char* name;
    void (*comes)(const fs::path& path);
};

const std::vector<Coming> comings{
    {"moved there",
     [](const fs::path& path) {
         put_bytes(path.string() + ".theirs", precious);
         fs::rename(path.string() + ".theirs", path);
     }},
    {"written in place", [](const fs::path& path) { put_bytes(path, precious); }},
    {"written as a new file",
     [](const fs::path& path) {
         fs::remove(path);
         put_bytes(path, precious);
     }},
};

Names runs_in(const fs::path& path) { return runs_of(open(path)); }

std::span<const std::byte> bytes_in(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

BOOST_AUTO_TEST_SUITE(record_place)

BOOST_AUTO_TEST_CASE(a_file_that_comes_between_two_runs_stays_and_all_runs_go_beside) {
    for (const auto& [how, comes] : comings) {
        const Folder folder;
        const auto path = folder / "w.h5";
        Record record(path, RecordMode::create, header(), fixed_provenance());
        record.commit("one", sample_run(1));
        comes(path);
        record.commit("two", sample_run(2));
        record.commit("three", sample_run(3));
        record.finish();
        BOOST_TEST(bytes_of(path) == precious, how);
        BOOST_TEST(record.name() == (folder / "w-2.h5").string());
        BOOST_TEST(runs_in(folder / "w-2.h5") == (Names{"one", "two", "three"}), boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(a_file_that_comes_after_the_last_run_stays_and_all_runs_go_beside) {
    for (const auto& [how, comes] : comings) {
        const Folder folder;
        Record record(folder / "w.h5", RecordMode::create, header(), fixed_provenance());
        record.commit("one", sample_run(1));
        comes(folder / "w.h5");
        record.finish();
        BOOST_TEST(bytes_of(folder / "w.h5") == precious, how);
        BOOST_TEST(runs_in(folder / "w-2.h5") == Names{"one"}, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(a_file_that_comes_before_the_first_run_stays_even_where_that_fails) {
    for (const auto& [how, comes] : comings) {
        const Folder folder;
        {
            Record record(folder / "w.h5", RecordMode::create, header(), fixed_provenance());
            comes(folder / "w.h5");
        }
        BOOST_TEST(bytes_of(folder / "w.h5") == precious, how);
    }
}

BOOST_AUTO_TEST_CASE(a_file_that_comes_while_a_record_is_resumed_or_overwritten_stays) {
    for (const auto& [how, comes] : comings)
        for (const auto mode : {RecordMode::resume, RecordMode::overwrite}) {
            const Folder folder;
            const auto path = folder / "w.h5";
            Record(path, RecordMode::create, header(), fixed_provenance()).commit("one", sample_run(1));
            put_bytes(folder / "w-2.h5", "another's");
            Record record(path, mode, header(), fixed_provenance());
            comes(path);
            record.commit("two", sample_run(2));
            record.finish();
            BOOST_TEST(bytes_of(path) == precious, how);
            BOOST_TEST(bytes_of(folder / "w-2.h5") == "another's");
            BOOST_TEST(runs_in(folder / "w-3.h5") == (mode == RecordMode::resume ? Names{"one", "two"} : Names{"two"}),
                       boost::test_tools::per_element());
        }
}

BOOST_AUTO_TEST_CASE(what_may_be_overwritten_is_what_was_there_when_the_command_began) {
    const Folder folder;
    const auto path = folder / "w.h5";
    Record(path, RecordMode::create, header(), fixed_provenance()).commit("old", sample_run(1));
    const WrittenFile place(path);
    Record(folder / "theirs.h5", RecordMode::create, header(), fixed_provenance()).commit("theirs", sample_run(1));
    fs::rename(folder / "theirs.h5", path);
    Record record(place, RecordMode::overwrite, header(), fixed_provenance());
    record.commit("new", sample_run(2));
    record.finish();
    BOOST_TEST(runs_in(path) == Names{"theirs"}, boost::test_tools::per_element());
    BOOST_TEST(runs_in(folder / "w-2.h5") == Names{"new"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_record_that_was_moved_away_is_written_again_and_a_folder_in_its_place_is_let_be) {
    const Folder folder;
    const auto path = folder / "w.h5";
    Record record(path, RecordMode::create, header(), fixed_provenance());
    record.commit("one", sample_run(1));
    fs::rename(path, folder / "kept.h5");
    record.commit("two", sample_run(2));
    BOOST_TEST(runs_in(path).size() == 2u);
    BOOST_TEST(runs_in(folder / "kept.h5").size() == 1u);
    fs::rename(path, folder / "kept-too.h5");
    fs::create_directory(path);
    record.commit("three", sample_run(3));
    BOOST_TEST(fs::is_directory(path));
    BOOST_TEST(runs_in(folder / "w-2.h5").size() == 3u);
}

BOOST_AUTO_TEST_CASE(a_new_record_leaves_what_is_there_for_the_next_free_name) {
    const Folder folder;
    const auto path = folder / "r.h5";
    put_bytes(path, precious);
    const Record first(path, RecordMode::create, header(), fixed_provenance()),
        second(path, RecordMode::create, header(), fixed_provenance());
    BOOST_TEST(first.name() == (folder / "r-2.h5").string());
    BOOST_TEST(second.name() == (folder / "r-3.h5").string());
    BOOST_TEST(bytes_of(path) == precious);
}

BOOST_AUTO_TEST_CASE(a_file_that_nobody_may_write_is_not_replaced) {
    const Folder folder;
    const auto path = folder / "r.h5";
    Record(path, RecordMode::create, header(), fixed_provenance()).commit("one", sample_run(1));
    BOOST_REQUIRE(::chmod(path.c_str(), 0444) == 0);
    const auto before = bytes_of(path);
    for (const auto mode : {RecordMode::resume, RecordMode::overwrite}) {
        const auto text = error_of([&] { Record(path, mode, header(), fixed_provenance()); });
        BOOST_TEST(contains(text, "write-protected (mode 444)"), text);
        BOOST_TEST(one_line(text));
    }
    BOOST_REQUIRE(::chmod(path.c_str(), 0644) == 0);
    Record record(path, RecordMode::resume, header(), fixed_provenance());
    BOOST_REQUIRE(::chmod(path.c_str(), 0444) == 0);  // while the record grows
    record.commit("two", sample_run(2));
    BOOST_TEST((bytes_of(path) == before));
    BOOST_TEST(runs_in(folder / "r-2.h5").size() == 2u);
}

BOOST_AUTO_TEST_CASE(whatever_else_is_written_goes_beside_a_file_that_came_meanwhile) {
    const Folder folder;
    const std::string result = "a result\n";
    const auto path = folder / "trace.json";
    FileGuard guard;
    guard.writes("--trace", path, FileKind::trace, IfThere::replace);
    put_bytes(path, precious);
    BOOST_TEST(guard.write(path, bytes_in(result)) == folder / "trace-2.json");
    BOOST_TEST(bytes_of(path) == precious);
    BOOST_TEST(bytes_of(folder / "trace-2.json") == result);
    // What was there when it was asked for is replaced.
    FileGuard later;
    fs::remove(path);
    put_bytes(path, std::string(sim::chrome_trace_begin));
    later.writes("--trace", path, FileKind::trace, IfThere::replace);
    BOOST_TEST(later.write(path, bytes_in(result)) == path);
    BOOST_TEST(bytes_of(path) == result);
}

BOOST_AUTO_TEST_CASE(a_link_that_leads_to_itself_is_called_that) {
    const Folder folder;
    fs::create_symlink("loop.h5", folder / "loop.h5");
    fs::create_symlink("b.h5", folder / "a.h5");
    fs::create_symlink("a.h5", folder / "b.h5");
    for (const auto& path : {folder / "loop.h5", folder / "a.h5", folder / "loop.h5/r.h5"}) {
        FileGuard guard;
        const auto text = error_of([&] { guard.writes("--output", path, FileKind::record, IfThere::replace); });
        BOOST_TEST(contains(text, "is a link that leads to itself"), text);
    }
    const auto text = error_of([&] { Record(folder / "loop.h5", RecordMode::create, header(), fixed_provenance()); });
    BOOST_TEST(contains(text, "is a link that leads to itself"), text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
