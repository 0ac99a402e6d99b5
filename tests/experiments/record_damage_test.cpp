#include "record_support.hpp"

#include <fmt/format.h>

namespace ringlab::experiments::test {
namespace {

/// Tries to resume the damaged file in a child: 0 if it was accepted, 1 if refused with one line and the file left as
/// it was, 2 if it broke that promise, a negative signal if the library did not survive it.
int resume_in_child(const fs::path& path) {
    return in_child([&] {
        const auto before = bytes_of(path);
        try {
            const Record record(path, RecordMode::resume, header(), fixed_provenance());
            return 0;
        } catch (const Error& error) {
            const bool clear = one_line(error.what()) && contains(error.what(), path.string());
            return clear && bytes_of(path) == before ? 1 : 2;
        } catch (...) {
            return 2;
        }
    });
}

std::string whole_record(const fs::path& path) {
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        for (int number = 0; number < 3; ++number) record.commit(fmt::format("run {}", number), sample_run(number));
    }
    return bytes_of(path);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(record_damage)

BOOST_AUTO_TEST_CASE(a_truncated_record_is_refused_with_one_line_at_every_length) {
    const Folder folder;
    const auto path = folder / "record.h5";
    const auto whole = whole_record(path);
    std::vector<std::size_t> lengths{0, 1, 7, 8, 9, 47, 48, 49, whole.size() - 1, whole.size() - 8};
    for (std::size_t length = 64; length < whole.size(); length += whole.size() / 60) lengths.push_back(length);
    for (const auto length : lengths) {
        put_bytes(path, whole.substr(0, length));
        BOOST_TEST(resume_in_child(path) == 1, "cut to " << length << " of " << whole.size());
    }
}

BOOST_AUTO_TEST_CASE(foreign_files_are_refused_with_one_line_and_left_alone) {
    const Folder folder;
    const auto path = folder / "record.h5";
    for (const auto& bytes : {std::string("not HDF5"), std::string(100'000, '\0'), std::string(3000, 'x')}) {
        put_bytes(path, bytes);
        BOOST_TEST(resume_in_child(path) == 1);
    }
    const auto sealed = [&](const char* attribute, hdf5::Attribute value) {
        fs::remove(path);
        auto file = hdf5::File::create(path);
        file.set(attribute, value);
        save(file, path);
        return error_of([&] { Record(path, RecordMode::resume, header(), fixed_provenance()); });
    };
    BOOST_TEST(contains(sealed("experiment", std::string("record_test")), "not a record of Ringlab"));
    BOOST_TEST(contains(sealed("ringlab_schema", std::int64_t{99}), "has schema 99"));
    BOOST_TEST(contains(error_of([&] { open_record(path); }), "follows schema 99 of records; this program reads"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
