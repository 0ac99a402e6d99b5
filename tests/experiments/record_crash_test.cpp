#include "record_support.hpp"

#include <fmt/format.h>

#include <chrono>
#include <random>
#include <set>

namespace ringlab::experiments::test {
namespace {

std::string run_name(int number) { return fmt::format("run {}", number); }

RunWriter run_of(int number) { return sample_run(number, 4, 2, 20); }

/// What an experiment does: all runs that the record does not have, each reported after its commit has returned.
void do_missing_runs(const fs::path& path, int count, int report) {
    Record record(path, RecordMode::resume, header(), fixed_provenance());
    for (int number = 0; number < count; ++number) {
        if (record.has(run_name(number))) continue;
        record.commit(run_name(number), run_of(number));
        if (write(report, &number, sizeof(number)) != sizeof(number)) return;
    }
    record.finish();
}

/// Moments at which to kill a child, in microseconds: within the time that a few commits take here and now.
std::uniform_int_distribution<int> moments_of_some_commits() {
    const Folder folder;
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    const auto begin = std::chrono::steady_clock::now();
    do_missing_runs(folder / "record.h5", 6, ends[1]);
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    close(ends[0]);
    close(ends[1]);
    return std::uniform_int_distribution<int>(
        0, static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count()));
}

/// How many kills: many by hand, few in the suite.
int kill_count(int few) {
    const char* given = std::getenv("RINGLAB_TEST_KILLS");
    return given ? std::max(few, std::atoi(given)) : few;
}

const int run_count = 8 * kill_count(50);  // more than children get done before so many kills, as a rule

/// Everything in a group as text, so that two records can be compared whatever their bytes.
std::string contents(const hdf5::Group& group) {
    std::string text;
    for (const auto& name : group.members()) {
        if (name == "provenance" || name == "session") continue;  // of which a resumed record has more
        if (group.is_group(name)) {
            text += name + "{" + contents(group.group(name)) + "}";
        } else {
            const auto dataset = group.dataset(name);
            text += name + "[";
            if (dataset.element() == hdf5::Element::text)
                for (const auto& value : dataset.texts()) text += value + " ";
            else
                for (const auto value : dataset.doubles()) text += fmt::format("{} ", value);
            text += dataset.text("units") + "]";
        }
    }
    return text;
}

/// Kills a child that works on the record after `microseconds`; the numbers of runs that it reported.
std::set<int> killed_after(const fs::path& path, int microseconds) {
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
        close(ends[0]);
        try {
            do_missing_runs(path, run_count, ends[1]);
        } catch (const std::exception& error) {
            fmt::print(stderr, "{}\n", error.what());
            _exit(1);
        }
        _exit(0);
    }
    close(ends[1]);
    usleep(static_cast<useconds_t>(microseconds));
    kill(child, SIGKILL);
    std::set<int> reported;
    for (int number; read(ends[0], &number, sizeof(number)) == sizeof(number);) reported.insert(number);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    BOOST_TEST((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    return reported;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(record_crash)

// Each child resumes what those before it left. The one run in flight when the kill comes may be in the file, whole, or
// not.
BOOST_AUTO_TEST_CASE(killed_at_random_moments_the_file_opens_with_exactly_the_finished_runs) {
    const Folder folder;
    const auto path = folder / "record.h5";
    std::mt19937 random(1);
    auto moment = moments_of_some_commits();
    std::set<int> finished;
    int in_flight_present = 0;
    const int count_of_kills = kill_count(50);
    int kills = 0;
    for (; kills < count_of_kills && std::ssize(finished) < run_count; ++kills) {
        finished.merge(killed_after(path, moment(random)));
        if (!fs::exists(path)) {
            BOOST_TEST(finished.empty());
            continue;
        }
        std::set<int> held;
        const auto file = hdf5::File::open(path);
        for (const auto& name : runs_of(file)) held.insert(std::stoi(name.substr(4)));
        if (!held.empty()) BOOST_TEST(file.dataset("spans/bytes").integers().size() == 80 * held.size());
        for (const int number : finished) BOOST_TEST(held.contains(number), run_name(number) << " was lost");
        BOOST_TEST(held.size() <= finished.size() + 1);
        in_flight_present += held.size() > finished.size();
        finished = held;
    }
    BOOST_TEST_MESSAGE(fmt::format("{} runs after {} kills; {} times the run in flight was in the file",
                                   finished.size(), kills, in_flight_present));
    BOOST_TEST(finished.size() >= 10);  // else the kills came before there was anything to lose
    BOOST_TEST(kills >= 10);            // else too late: moments are long where other work slowed the commits timed

    // Resumed to the end, the record says what an uninterrupted one says, and nothing is left lying about.
    const int count = static_cast<int>(finished.size()) + 10;
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    const auto whole = folder / "whole.h5";
    do_missing_runs(path, count, ends[1]);
    do_missing_runs(whole, count, ends[1]);
    close(ends[0]);
    close(ends[1]);
    BOOST_TEST((contents(hdf5::File::open(path)) == contents(hdf5::File::open(whole))));
    std::set<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder.path())) left.insert(entry.path().filename());
    BOOST_TEST(left == (std::set<std::string>{"record.h5", "whole.h5"}));
}

// A file-size limit makes write() fail as a full disk does: part is written, then no more.
BOOST_AUTO_TEST_CASE(a_commit_that_does_not_fit_fails_clearly_and_the_record_goes_on_once_there_is_room) {
    const Folder folder;
    const auto path = folder / "record.h5";
    const int status = in_child([&] {
        std::signal(SIGXFSZ, SIG_IGN);
        Record record(path, RecordMode::create, header(), fixed_provenance());
        record.commit("one", sample_run(1));
        const auto before = bytes_of(path);
        const rlimit limit{before.size() / 2, RLIM_INFINITY};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
        std::string text;
        try {
            record.commit("two", sample_run(2));
        } catch (const Error& error) {
            text = error.what();
        }
        if (!contains(text, "'two' is not recorded") || !contains(text, "File too large") ||
            !contains(text, "holds the 1 runs finished before it") || !one_line(text))
            return 3;
        if (bytes_of(path) != before || std::distance(fs::directory_iterator(folder.path()), {}) != 1) return 4;
        if (record.has("two") || !record.has("one")) return 5;
        const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
        if (setrlimit(RLIMIT_FSIZE, &room) != 0) return 6;
        record.commit("two", sample_run(2));
        return 0;
    });
    BOOST_TEST(status == 0);
    BOOST_TEST(runs_of(hdf5::File::open(path)) == (std::vector<std::string>{"one", "two"}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
