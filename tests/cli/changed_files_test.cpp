#include "experiments/files/digest.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"
#include "process.hpp"

#include <fmt/format.h>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <regex>
#include <set>

// Every file that a command reads stands in its record with a digest, and a sweep is not resumed with another one.

namespace ringlab::cli::test {
namespace {

/// What is opened in a folder, by whatever program.
class Opened {
public:
    explicit Opened(const Folder& folder) : events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
        BOOST_REQUIRE(inotify_add_watch(events_, folder.path().c_str(), IN_OPEN) >= 0);
    }
    ~Opened() { close(events_); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

    /// Names of the files since the last time.
    std::set<std::string> names() {
        std::set<std::string> names;
        alignas(inotify_event) std::array<char, 1 << 16> buffer;
        for (ssize_t size = 0; (size = read(events_, buffer.data(), buffer.size())) > 0;)
            for (const char* at = buffer.data(); at < buffer.data() + size;) {
                const auto* event = reinterpret_cast<const inotify_event*>(at);
                BOOST_TEST((event->mask & IN_Q_OVERFLOW) == 0u);
                if (event->len > 0) names.insert(event->name);
                at += sizeof(inotify_event) + event->len;
            }
        return names;
    }

private:
    int events_;
};

/// A command, the options of it that name files, and these files; `resumes` unless it cannot.
struct Reader {
    std::string program;
    Words arguments;
    std::set<std::string> options, files;
    bool resumes = true;
};

std::ostream& operator<<(std::ostream& out, const Reader& reader) {
    out << fs::path(reader.program).filename().string();
    for (const auto& option : reader.options) out << " --" << option;
    return out;
}

const std::vector<Reader> readers{
    {predict,
     words_of("--ranks 4 --tokens 64 --machines ./m.toml --layouts file:layout.txt --masks "
              "causal+documents:@lengths.txt sink:2+documents:@lengths.txt --replicas 2 --placement file:gpus.txt "
              "--preset p.cfg"),
     {"layouts", "machines", "masks", "placement", "preset"},
     {"gpus.txt", "layout.txt", "lengths.txt", "m.toml", "p.cfg"}},
    {compare_layouts,
     words_of(
         "--ranks 4 --layouts zigzag --schedules ring --tokens 64 --masks causal --machines ./m.toml --input in.h5 "
         "--repeats 1"),
     {"input", "machines"},
     {"in.h5", "m.toml"}},
    {longest_context,
     words_of("--ranks 4 --layouts zigzag --schedules ring --machines ./m.toml"),
     {"machines"},
     {"m.toml"}},
    {validate,
     words_of("--machines ./m.toml --measured rings.h5"),
     {"measured", "machines"},
     {"rings.h5", "m.toml"},
     false},
    {validate, {"--published", "table.toml"}, {"published"}, {"table.toml", "m.toml", "theirs.toml"}, false},
};

/// Options that name files, of which no record keeps a digest.
const std::set<std::string> written{"output", "json", "trace", "chakra", "save-tensors"};
const std::set<std::string> about_files{"list-machine-keys",
                                        "tokens",
                                        "scale",
                                        "soft-cap",
                                        "heads",
                                        "head-dim",
                                        "value-dim",      // of the input
                                        "device-memory",  // of the machine file
                                        "resume",
                                        "overwrite"};

/// A folder with one of every kind of file that a command reads.
class Inputs : public Folder {
public:
    Inputs() {
        const std::string source = RINGLAB_SOURCE_DIR "/experiments/";
        // One with few prices, so that predicting is quick.
        fs::copy_file(source + "machines/h200_nvswitch_copy_engine.toml", *this / "m.toml");
        fs::copy_file(source + "implementations/ring_flash_attention_fa2.toml", *this / "theirs.toml");
        fs::copy_file(source + "results/validate_4xh200_nccl.h5", *this / "rings.h5");
        std::string positions, gpus;
        for (int i = 0; i < 64; ++i) positions += fmt::format("{}\n", i * 5 % 64);
        for (int i = 0; i < 8; ++i) gpus += fmt::format("{}\n", 7 - i);
        write_file(*this / "layout.txt", positions);
        write_file(*this / "gpus.txt", gpus);
        write_file(*this / "lengths.txt", "20 12 32\n");
        write_file(*this / "p.cfg", "heads = 4:2\nhead-dim = 16\n");
        write_file(*this / "table.toml",
                   "name = \"t\"\nsource = \"s\"\nmachine = \"./m.toml\"\nshape = \"4:2/128/bf16\"\nmask = \"causal\"\n"
                   "ranks = 2\ntokens_per_rank = [256]\nfitted = []\nunit = \"TFLOP/s per GPU\"\n\n[[systems]]\nname = "
                   "\"a\"\nimplementation = \"theirs.toml\"\nlayout = \"zigzag\"\nforward = [1]\nboth = [1]\n");
        BOOST_REQUIRE(
            run(*this, gradients, small + words_of("--input normal --head-dim 8 --save-tensors t -o r.h5")).status ==
            0);
        fs::rename(fs::directory_iterator(*this / "t")->path(), *this / "in.h5");
        fs::remove_all(*this / "t");
        fs::remove(*this / "r.h5");
    }
};

std::string sha256_of(const fs::path& path) { return experiments::digest_of_file(path); }

/// The file with something at its end that changes no result.
void append_nothing(const fs::path& path) {
    write_file(path, contents_of(path) + (path.extension() == ".h5" ? std::string(1, '\0') : "\n"));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_changed_files)

BOOST_DATA_TEST_CASE(all_files_that_a_command_opens_stand_in_its_record_and_are_the_same_when_it_is_resumed,
                     boost::unit_test::data::make(readers)) {
    const Inputs folder;
    Opened opened(folder);
    const auto arguments = sample.arguments + Words{"-o", "record.h5"};
    const auto ending = run(folder, sample.program, arguments, 120);
    BOOST_REQUIRE_MESSAGE((ending.status == 0 || ending.status == 2), ending.err);
    auto names = opened.names();
    std::erase_if(names, [](const auto& name) { return name.starts_with("record.h5") || name.starts_with("."); });
    BOOST_TEST(names == sample.files, boost::test_tools::per_element());

    const auto written_record = experiments::hdf5::File::open(folder / "record.h5");
    const auto session = written_record.group("provenance/0");
    const auto files = session.texts("files"), digests = session.texts("files_sha256");
    std::set<std::string> kept;
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (!fs::exists(folder / files[i])) continue;  // it comes with Ringlab
        kept.insert(fs::path(files[i]).filename());
        BOOST_TEST(digests[i] == sha256_of(folder / files[i]));
    }
    BOOST_TEST(kept == sample.files, boost::test_tools::per_element());

    if (!sample.resumes) return;
    const auto record = contents_of(folder / "record.h5");
    for (const auto& file : sample.files) {
        const auto before = contents_of(folder / file), digest = sha256_of(folder / file);
        append_nothing(folder / file);
        const auto refused = run(folder, sample.program, arguments + Words{"--resume"}, 120);
        BOOST_TEST(refused.status == 1, file << ": " << refused.out);
        const auto lines = lines_beside_progress(refused.err);
        BOOST_TEST_REQUIRE(lines.size() == 1u, refused.err);
        for (const auto& part : {file + "' has changed", digest, sha256_of(folder / file)})
            BOOST_TEST(contains(lines[0], part), lines[0] << " lacks " << part);
        BOOST_TEST((contents_of(folder / "record.h5") == record), file);
        write_file(folder / file, before);
    }
    const auto resumed = run(folder, sample.program, arguments + Words{"--resume"}, 120);
    BOOST_TEST(resumed.status == ending.status, resumed.err);
    BOOST_TEST(!contains(resumed.err, "[note] 'record.h5' was begun"), resumed.err);
}

// A new option that names a file fails here, until it is tried above.
BOOST_AUTO_TEST_CASE(all_options_that_name_files_are_tried) {
    std::set<std::string> known;
    for (const auto& some : {written, about_files}) known.insert(some.begin(), some.end());
    for (const auto& reader : readers) known.insert(reader.options.begin(), reader.options.end());
    const std::regex option(R"(\n  (?:-\w, )?--([\w-]+)([^\n]*(?:\n {28}[^\n]*)*))"),
        names_file(R"(\b(files?|path|FILE|FOLDER|PATH)\b)");
    const Folder folder;
    std::size_t found = 0;
    for (const auto& program : {advise, bf16_error, calibrate, compare_layouts, decode, gradients, longest_context,
                                predict, throughput, validate}) {
        const auto help = run(folder, program, {"--help"}).out;
        for (std::sregex_iterator match(help.begin(), help.end(), option), end; match != end; ++match) {
            if (!std::regex_search((*match)[2].str(), names_file)) continue;
            ++found;
            BOOST_TEST(known.contains((*match)[1]), program << " --" << (*match)[1] << " names a file: try it above");
        }
    }
    BOOST_TEST(found > 40u);
    for (const auto& [name, entry] : layouts::layouts().entries())
        BOOST_TEST((name == "file" || !std::regex_search(entry.usage, names_file)), entry.usage);
    // Masks read lengths, all by one function.
    for (const auto& [name, entry] : layouts::masks().entries())
        BOOST_TEST((entry.usage.ends_with("|@FILE") || !std::regex_search(entry.usage, names_file)), entry.usage);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
