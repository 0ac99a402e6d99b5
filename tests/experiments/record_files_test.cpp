#include "record_support.hpp"

// What becomes of files: which are made, gone on with, replaced, refused and left alone.

namespace ringlab::experiments::test {

BOOST_AUTO_TEST_SUITE(record_files)

BOOST_AUTO_TEST_CASE(a_record_is_gone_on_with_or_overwritten) {
    const Folder folder;
    const auto path = folder / "record.h5";
    { Record(path, RecordMode::create, header(), fixed_provenance()).commit("one", sample_run(1)); }
    {
        Record record(path, RecordMode::resume, header(), fixed_provenance());
        BOOST_TEST(record.has("one"));
        record.commit("two", sample_run(2));
        BOOST_TEST(record.number("two", "session") == 1);
        BOOST_TEST(record.number("one", "session") == 0);
    }
    BOOST_TEST(open(path).group("provenance").members() == (std::vector<std::string>{"0", "1"}));
    Record record(path, RecordMode::overwrite, header("other = 1"), fixed_provenance());
    BOOST_TEST(record.runs().empty());
    BOOST_TEST(runs_of(open(path)).size() == 2u);  // the old one, until the first run is done
    record.commit("new", sample_run(3));
    BOOST_TEST(runs_of(open(path)) == std::vector<std::string>{"new"});
}

BOOST_AUTO_TEST_CASE(a_record_that_ends_before_its_first_run_leaves_what_was_there) {
    const Folder folder;
    const auto path = folder / "record.h5";
    for (const auto mode : {RecordMode::create, RecordMode::resume, RecordMode::overwrite}) {
        { Record record(path, mode, header(), fixed_provenance()); }
        BOOST_TEST(fs::is_empty(folder.path()));
    }
    Record(path, RecordMode::create, header(), fixed_provenance()).commit("one", sample_run(1));
    { Record record(path, RecordMode::overwrite, header("other = 1"), fixed_provenance()); }
    { Record record(path, RecordMode::resume, header(), fixed_provenance()); }
    BOOST_TEST(runs_of(open(path)) == std::vector<std::string>{"one"});
}

BOOST_AUTO_TEST_CASE(another_configuration_is_refused_and_the_first_difference_named) {
    const Folder folder;
    const auto path = folder / "record.h5";
    Record(path, RecordMode::create, header("tokens = 4096\nranks = 8\n"), fixed_provenance()).finish();
    const auto before = bytes_of(path);
    const auto resume = [&](const RecordHeader& other) {
        const auto text = error_of([&] { Record(path, RecordMode::resume, other, fixed_provenance()); });
        BOOST_TEST(one_line(text));
        return text;
    };
    auto text = resume(header("tokens = 4096\nranks = 4\n"));
    BOOST_TEST(contains(text, "it has 'ranks = 8', this invocation 'ranks = 4'"), text);
    text = resume(header("tokens = 4096\n"));
    BOOST_TEST(contains(text, "it has 'ranks = 8', this invocation nothing more"), text);
    text = resume(header("tokens = 4096\nranks = 8\nseed = 2\n"));
    BOOST_TEST(contains(text, "it has nothing more, this invocation 'seed = 2'"), text);
    auto other = header("tokens = 4096\nranks = 8\n");
    other.experiment = "bf16_error";
    text = resume(other);
    BOOST_TEST(contains(text, "another experiment: it has 'record_test', this invocation 'bf16_error'"), text);
    BOOST_TEST((bytes_of(path) == before));
}

BOOST_AUTO_TEST_CASE(a_second_writer_goes_beside_and_readers_are_welcome) {
    const Folder folder;
    const auto path = folder / "record.h5";
    Record record(path, RecordMode::create, header(), fixed_provenance());
    record.commit("one", sample_run(1));
    const auto reader = open(path);
    Record second(path, RecordMode::resume, header(), fixed_provenance());
    record.commit("two", sample_run(2));
    BOOST_TEST(runs_of(reader) == std::vector<std::string>{"one"});  // the file it had opened
    BOOST_TEST(runs_of(open(path)) == (std::vector<std::string>{"one", "two"}));
    second.commit("three", sample_run(3));
    BOOST_TEST(second.name() == (folder / "record-2.h5").string());
    BOOST_TEST(runs_of(open(folder / "record-2.h5")) == (std::vector<std::string>{"one", "three"}));
}

BOOST_AUTO_TEST_CASE(a_record_reached_by_a_link_stays_behind_the_link) {
    const Folder folder;
    const auto path = folder / "record.h5", link = folder / "link.h5";
    Record(path, RecordMode::create, header(), fixed_provenance()).finish();
    fs::create_symlink(path, link);
    Record(link, RecordMode::resume, header(), fixed_provenance()).commit("one", sample_run(1));
    BOOST_TEST(fs::is_symlink(link));
    BOOST_TEST(runs_of(open(path)) == std::vector<std::string>{"one"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
