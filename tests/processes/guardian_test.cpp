// Calls that end a process are made in a child, whose standard error and status tell how it went.
#include "processes/watching/guardian.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

namespace ringlab::processes::tests {
namespace {

using std::chrono::milliseconds;

struct Ending {
    int status = 0;
    std::string text;
};

/// Runs `body` in `count` children of a process of their own, all at once; they end with 0 after a while if nothing
/// else ends them. The status is the sum of theirs.
Ending run_children(int count, void (*body)(FirstError&)) {
    int ends[2];
    BOOST_REQUIRE(pipe(ends) == 0);
    const pid_t parent = fork();
    if (parent == 0) {
        dup2(ends[1], STDERR_FILENO);
        for (int i = 0; i < count; ++i)
            if (fork() == 0) {
                FirstError first_error("prog");
                body(first_error);
                _exit(0);
            }
        int sum = 0, status = 0;
        while (wait(&status) > 0) sum += WIFEXITED(status) ? WEXITSTATUS(status) : 100;
        _exit(sum);
    }
    close(ends[1]);
    Ending ending;
    char buffer[256];
    for (ssize_t size = 0; (size = read(ends[0], buffer, sizeof(buffer))) > 0;)
        ending.text.append(buffer, static_cast<std::size_t>(size));
    close(ends[0]);
    int status = 0;
    waitpid(parent, &status, 0);
    ending.status = WEXITSTATUS(status);
    return ending;
}

bool is_stopped(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string stat;
    std::getline(file, stat);
    return stat.find(") T ") != std::string::npos;
}

void wait_in_a_call(FirstError& first_error) {
    Guardian guardian(first_error, milliseconds(100));
    guardian.advise("; advice");
    guardian.set_name("rank 3");
    guardian.watch("MPI_Something", milliseconds(100));
    std::this_thread::sleep_for(std::chrono::seconds(20));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(guardian)

BOOST_AUTO_TEST_CASE(a_call_that_does_not_return_ends_the_process_with_one_line) {
    const auto ending = run_children(1, wait_in_a_call);
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(ending.text ==
               "prog: rank 3 has waited 0.1 s in MPI_Something for the other processes; one of them is stopped, stuck "
               "or dead; advice\n");
}

BOOST_AUTO_TEST_CASE(one_of_several_processes_says_the_first_error) {
    // Both where the launcher gives a folder for the run and where it does not.
    const auto folder = std::string("/tmp/ringlab-guardian-") + std::to_string(getpid());
    for (const bool given : {false, true}) {
        if (given) {
            BOOST_REQUIRE(std::system(("mkdir " + folder).c_str()) == 0);
            setenv("PMIX_SERVER_TMPDIR", folder.c_str(), 1);
            setenv("PMIX_NAMESPACE", "launcher/1@2", 1);
        }
        const auto ending = run_children(4, wait_in_a_call);
        BOOST_TEST(ending.status == 4);
        BOOST_TEST(std::count(ending.text.begin(), ending.text.end(), '\n') == 1, ending.text);
    }
    unsetenv("PMIX_SERVER_TMPDIR");
    unsetenv("PMIX_NAMESPACE");
    BOOST_TEST(std::system(("rm -r " + folder).c_str()) == 0);
}

BOOST_AUTO_TEST_CASE(a_call_that_returns_in_time_and_one_that_is_not_watched_end_nothing) {
    const auto ending = run_children(1, [](FirstError& first_error) {
        Guardian guardian(first_error, milliseconds(200));
        for (int i = 0; i < 10; ++i) {
            guardian.watch("MPI_Something", milliseconds(200));
            std::this_thread::sleep_for(milliseconds(40));
            guardian.watch(nullptr, {});
        }
        std::this_thread::sleep_for(milliseconds(500));
    });
    BOOST_TEST(ending.status == 0);
    BOOST_TEST(ending.text == "");
}

BOOST_AUTO_TEST_CASE(time_in_which_the_process_was_stopped_itself_does_not_count) {
    const auto ending = run_children(1, [](FirstError& first_error) {
        Guardian guardian(first_error, std::chrono::seconds(4));
        guardian.watch("MPI_Something", std::chrono::seconds(4));
        const pid_t self = getpid();
        if (fork() == 0) {
            while (!is_stopped(self)) std::this_thread::sleep_for(milliseconds(5));
            sleep(6);
            kill(self, SIGCONT);
            _exit(0);
        }
        // At once and by itself: time until another process gets to it on a busy machine would count.
        kill(self, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(500));
    });
    BOOST_TEST(ending.status == 0);
    BOOST_TEST(ending.text == "");
}

BOOST_AUTO_TEST_CASE(a_request_to_end_leaves_a_line) {
    const auto ending = run_children(1, [](FirstError& first_error) {
        Guardian guardian(first_error, std::chrono::seconds(20));
        guardian.set_name("rank 0");
        kill(getpid(), SIGTERM);
        std::this_thread::sleep_for(std::chrono::seconds(20));
    });
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(ending.text ==
               "prog: rank 0 is asked to end (SIGTERM), as launchers do when they are interrupted or another "
               "process has died\n");
}

BOOST_AUTO_TEST_CASE(a_request_to_end_after_another_process_has_died_names_it) {
    const auto ending = run_children(1, [](FirstError& first_error) {
        Guardian guardian(first_error, std::chrono::seconds(20));
        guardian.set_name("rank 0");
        guardian.suspect_by([] { return std::string("rank 2 (process 17) has died"); });
        kill(getpid(), SIGTERM);
        std::this_thread::sleep_for(std::chrono::seconds(20));
    });
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(ending.text == "prog: rank 0: rank 2 (process 17) has died\n");
}

BOOST_AUTO_TEST_CASE(what_it_is_told_to_look_at_ends_the_process) {
    const auto ending = run_children(1, [](FirstError& first_error) {
        Guardian guardian(first_error, milliseconds(200));
        guardian.look_by([seen = 0](Clock::duration) mutable { return std::string(++seen < 3 ? "" : "no more"); });
        std::this_thread::sleep_for(std::chrono::seconds(20));
    });
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(ending.text.ends_with("no more\n"), ending.text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
