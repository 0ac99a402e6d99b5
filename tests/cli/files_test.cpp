#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sys/stat.h>

#include <ostream>

namespace ringlab::cli::test {
namespace {

/// A folder with one of everything that a command may read or write; nothing in it may change.
class Precious : public Folder {
public:
    Precious() {
        fs::copy_file(RINGLAB_SOURCE_DIR "/experiments/data/real_attention.h5", *this / "self.h5");
        fs::create_hard_link(*this / "self.h5", *this / "hard.h5");
        fs::create_symlink("self.h5", *this / "soft.h5");
        fs::create_symlink("nowhere.h5", *this / "dangling.h5");
        fs::copy_file(RINGLAB_SOURCE_DIR "/experiments/machines/ideal.toml", *this / "m.toml");
        std::string positions;
        for (int i = 0; i < 64; ++i) positions += std::to_string(i) + "\n";
        write_file(*this / "layout.txt", positions);
        write_file(*this / "lengths.txt", "32 32\n");
        write_file(*this / "c.cfg", "seed = 2\n");
        write_file(*this / "notes.txt", "a year of work\n");
        write_file(*this / "notes.json", "{\"a year\": \"of work\"}\n");
        fs::create_directory(*this / "folder");
        BOOST_REQUIRE(mkfifo((*this / "fifo").c_str(), 0600) == 0);
        BOOST_REQUIRE(run(*this, gradient_equivalence, small + Words{"-o", "record.h5"}).status == 0);
        names_ = left();
        for (const auto& name : names_)
            if (fs::is_regular_file(*this / name)) contents_.push_back(contents_of(*this / name));
    }

    void check_untouched() const {
        BOOST_TEST(left() == names_, boost::test_tools::per_element());
        std::size_t file = 0;
        for (const auto& name : names_)
            if (fs::is_regular_file(*this / name))
                BOOST_TEST((contents_of(*this / name) == contents_.at(file++)), name << " changed");
        BOOST_TEST(fs::is_symlink(*this / "soft.h5"));
        BOOST_TEST(fs::is_symlink(*this / "dangling.h5"));
        BOOST_TEST(fs::hard_link_count(*this / "self.h5") == 2u);
        BOOST_TEST(fs::is_fifo(*this / "fifo"));
    }

private:
    Words names_;
    std::vector<std::string> contents_;
};

struct Danger {
    std::string program;
    Words arguments;
    Words says;
};

std::ostream& operator<<(std::ostream& out, const Danger& danger) {
    out << fs::path(danger.program).filename().string();
    for (const auto& argument : danger.arguments) out << ' ' << argument;
    return out;
}

const auto tiny = words_of("--masks causal --schedules ring --ranks 4 --tokens 64");
const Words over{"--overwrite"};
const auto predicted = words_of("--ranks 4 --tokens-per-rank 64 --machines ideal");

const std::vector<Danger> dangers{
    // What the command reads, under every name.
    {gradients, tiny + over + Words{"--input", "self.h5", "-o", "self.h5"}, {"--output 'self.h5'", "input 'self.h5'"}},
    {gradients, tiny + over + Words{"--input", "self.h5", "-o", "hard.h5"}, {"--output 'hard.h5'", "input 'self.h5'"}},
    {gradients, tiny + over + Words{"--input", "hard.h5", "-o", "soft.h5"}, {"--output 'soft.h5'", "input 'hard.h5'"}},
    {gradients, tiny + Words{"--resume", "--input", "self.h5", "-o", "soft.h5"}, {"input"}},
    {gradients, tiny + over + Words{"--masks", "sink:2+documents:@lengths.txt", "-o", "lengths.txt"}, {"mask"}},
    {gradients, tiny + over + Words{"--preset", "c.cfg", "-o", "c.cfg"}, {"preset 'c.cfg'"}},
    {predict, predicted + over + Words{"--machines", "m.toml", "-o", "m.toml"}, {"machine file 'm.toml'"}},
    {predict, predicted + over + Words{"--machines", "m.toml", "--trace", "m.toml"}, {"--trace", "machine file"}},
    {calibrate, over + Words{"--preset", "c.cfg", "-o", "c.cfg"}, {"preset"}},
    // This run's own record, and files of somebody else's.
    {predict, predicted + over + Words{"--trace", "record.h5", "-o", "record.h5"}, {"--trace 'record.h5'", "one file"}},
    {predict, predicted + Words{"--trace", "folder/../tr.h5", "-o", "tr.h5"}, {"one file"}},
    {predict, predicted + over + Words{"--trace", "notes.json", "-o", "p.h5"}, {"notes.json", "no trace of Ringlab"}},
    {gradients, tiny + over + Words{"-o", "notes.txt"}, {"notes.txt", "no record of Ringlab"}},
    {gradients, tiny + over + Words{"-o", "self.h5"}, {"self.h5", "no record of Ringlab"}},
    {calibrate, over + Words{"-o", "notes.txt"}, {"notes.txt", "no machine file"}},
    {calibrate, {"-o", "m.toml"}, {"m.toml", "exists", "--overwrite"}},
    // What is no file.
    {gradients, tiny + over + Words{"-o", "/dev/null"}, {"/dev/null", "a device"}},
    {gradients, tiny + over + Words{"-o", "fifo"}, {"fifo", "a FIFO"}},
    {predict, predicted + over + Words{"--trace", "fifo", "-o", "p.h5"}, {"fifo", "a FIFO"}},
    {gradients, tiny + over + Words{"-o", "folder"}, {"folder", "a folder"}},
    {gradients, tiny + over + Words{"-o", "dangling.h5"}, {"dangling.h5", "leads nowhere"}},
    // What would wait for ever.
    {gradients, tiny + Words{"--input", "fifo", "-o", "r.h5"}, {"input 'fifo'", "a FIFO"}},
    {gradients, tiny + Words{"--layouts", "file:fifo", "-o", "r.h5"}, {"layout 'fifo'", "a FIFO"}},
    {gradients, tiny + Words{"--masks", "documents:@fifo", "-o", "r.h5"}, {"mask 'fifo'", "a FIFO"}},
    {gradients, tiny + Words{"--preset", "fifo", "-o", "r.h5"}, {"'fifo'"}},
    {predict, predicted + Words{"--machines", "fifo", "-o", "r.h5"}, {"'fifo'"}},
};

std::string shell_words(const std::string& program, const Words& arguments) {
    auto text = "'" + program + "'";
    for (const auto& word : arguments) text += " '" + word + "'";
    return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_files)

BOOST_DATA_TEST_CASE(a_command_that_would_destroy_something_is_refused_and_changes_nothing,
                     boost::unit_test::data::make(dangers)) {
    static const Precious folder;
    const auto ending = run(folder, sample.program, sample.arguments, 20);
    BOOST_TEST(!ending.timed_out);
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, ending.err);
    for (const auto& part : sample.says) BOOST_TEST(contains(ending.err, part), ending.err << " lacks " << part);
    folder.check_untouched();
}

BOOST_AUTO_TEST_CASE(saved_tensors_replace_their_like_alone_and_only_when_asked) {
    const Folder folder;
    const auto save = [&](const Words& more) {
        return run(folder, gradient_equivalence, small + Words{"--save-tensors", "t", "-o", "r.h5"} + more);
    };
    BOOST_REQUIRE(save({}).status == 0);
    const auto file = fs::directory_iterator(folder / "t")->path();
    const auto saved = contents_of(file);

    fs::remove(folder / "r.h5");
    BOOST_TEST(contains(save({}).err, "--save-tensors"));
    BOOST_TEST(save({"--overwrite"}).status == 0);

    // Its tensors were the input: the same file cannot be both.
    const auto itself = save({"--overwrite", "--input", file.string()});
    BOOST_TEST(itself.status == 0, itself.err);  // another input gives the run, and its file, another name
    fs::remove(folder / "r.h5");
    write_file(file, "a year of work\n");
    const auto foreign = save({"--overwrite"});
    BOOST_TEST(foreign.status == 1);
    BOOST_TEST(contains(foreign.err, "no file of saved tensors"), foreign.err);
    BOOST_TEST(contents_of(file) == "a year of work\n");
    BOOST_TEST(!fs::exists(folder / "r.h5"));
    BOOST_TEST(saved.size() > 1000u);
}

BOOST_AUTO_TEST_CASE(a_long_argument_is_not_echoed_whole) {
    const Folder folder;
    const std::string words(20'000, 'x'), list = [] {
        std::string text = "documents:1";
        while (text.size() < 20'000) text += ",1";
        return text;
    }();
    std::string blanks;
    while (blanks.size() < 20'000) blanks += "ab ";
    for (const auto& arguments : {Words{"--layouts", words}, Words{"--masks", list}, Words{"--masks", words},
                                  Words{"--input", words}, Words{"--nonsense", blanks}, Words{"--heads", words},
                                  Words{"--ranks", words}, Words{"--preset", words}, Words{words}}) {
        const auto ending = run(folder, gradient_equivalence, Words{"--tokens", "64"} + arguments);
        BOOST_TEST(ending.status == 1);
        BOOST_TEST(ending.err.size() < 2500u, arguments.front().substr(0, 20) << ": " << ending.err.size());
        BOOST_TEST(lines_beside_progress(ending.err).size() == 1u);
    }
}

BOOST_AUTO_TEST_CASE(of_several_runs_at_once_each_has_a_record_of_its_own) {
    const Folder folder;
    const auto one = shell_words(gradients, small);
    const auto ending = run(folder, "sh", {"-c", one + " & " + one + " & " + one + " & " + one + " & wait"});
    BOOST_TEST(lines_beside_progress(ending.err).empty(), ending.err);
    const auto records = folder.left();
    BOOST_TEST(records.size() == 4u);
    for (const auto& name : records) {
        BOOST_TEST(runs_of(folder / name, "judged/relative_rms").size() == 1u, name);
        BOOST_TEST(contains(ending.out, name), ending.out);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
