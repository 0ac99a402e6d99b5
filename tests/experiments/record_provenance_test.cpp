#include "experiments/files/digest.hpp"
#include "experiments/record/provenance.hpp"
#include "record_support.hpp"

#include <algorithm>
#include <cctype>
#include <map>

namespace ringlab::experiments::test {
namespace {

std::string digest(const std::string& text) { return digest_of(text); }

/// The text with every digit turned into 0.
std::string pattern_of(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; }, '0');
    return text;
}

std::map<std::string, hdf5::Attribute> collected() {
    const char* argv[] = {"compare_layouts", "--mask", "it's causal", "", "--ranks=8"};
    std::map<std::string, hdf5::Attribute> all;
    const auto provenance = collect_provenance(5, argv);
    for (const auto& [name, value] : provenance.entries()) all[name] = value;
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(provenance)

// The examples of FIPS 180-4.
BOOST_AUTO_TEST_CASE(digests_are_the_published_ones_of_sha_256) {
    BOOST_TEST(digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    BOOST_TEST(digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    BOOST_TEST(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    BOOST_TEST(digest(std::string(1'000'000, 'a')) ==
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

BOOST_AUTO_TEST_CASE(a_file_has_the_digest_of_its_bytes) {
    const Folder folder;
    for (const std::size_t size : {0, 1, 65535, 65536, 65537, 200'000}) {
        const std::string text(size, 'q');
        put_bytes(folder / "file", text);
        BOOST_TEST(digest_of_file(folder / "file") == digest(text), size);
    }
    BOOST_TEST(contains(error_of([&] { digest_of_file(folder / "none"); }), "No such file"));
    BOOST_TEST(contains(error_of([&] { digest_of_file(folder.path()); }), "cannot"));
}

BOOST_AUTO_TEST_CASE(everything_that_matters_is_collected) {
    const auto all = collected();
    for (const char* name : {"command_line", "date", "ringlab_version", "commit", "compiler", "compiler_flags",
                             "build_type", "boost", "hdf5", "xtensor", "openblas", "mpi", "cpu", "os", "kernel"}) {
        BOOST_REQUIRE(all.contains(name));
        BOOST_TEST(!std::get<std::string>(all.at(name)).empty(), name);
        BOOST_TEST_MESSAGE(name << " = " << std::get<std::string>(all.at(name)));
    }
    BOOST_TEST(std::get<std::string>(all.at("command_line")) ==
               "compare_layouts --mask 'it'\\''s causal' '' --ranks=8");
    BOOST_TEST(pattern_of(std::get<std::string>(all.at("date"))) == "0000-00-00T00:00:00Z");
    const auto commit = std::get<std::string>(all.at("commit"));
    const bool hexadecimal = commit.find_first_not_of("0123456789abcdef") >= 40;
    BOOST_TEST((commit == "unknown" || (hexadecimal && (commit.size() == 40 || commit.substr(40) == "+dirty"))),
               commit);
    BOOST_TEST(std::get<std::int64_t>(all.at("cpu_count")) >= 1);
    BOOST_TEST(std::get<std::int64_t>(all.at("memory_bytes")) > 0);
}

BOOST_AUTO_TEST_CASE(files_and_what_backends_know_are_added_or_replaced) {
    const Folder folder;
    put_bytes(folder / "machine.toml", "abc");
    Provenance provenance;
    provenance.set_file("machine_file", folder / "machine.toml");
    provenance.set("devices", std::vector<std::string>{"a"});
    provenance.set("devices", std::vector<std::string>{"a", "b"});
    BOOST_REQUIRE(provenance.entries().size() == 3);
    BOOST_TEST(std::get<std::string>(provenance.entries()[1].second) == digest("abc"));
    BOOST_TEST(std::get<std::vector<std::string>>(provenance.entries()[2].second).size() == 2);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
