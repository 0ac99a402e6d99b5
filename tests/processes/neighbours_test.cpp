#include "processes/watching/neighbours.hpp"

#include <boost/test/unit_test.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

// This process is the launcher: its children are ranks, of which rank 0 looks at the others.

namespace ringlab::processes::tests {
namespace {

/// A process whose launcher has told it its rank, and that does nothing.
pid_t sleeping_rank(int rank) {
    const pid_t child = fork();
    if (child != 0) return child;
    const auto variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    execlp("env", "env", variable.c_str(), "sleep", "60", nullptr);
    _exit(127);
}

bool shows_its_rank(pid_t process) {
    const auto command = "grep -qs OMPI_COMM_WORLD_RANK /proc/" + std::to_string(process) +
                         "/environ && grep -qs sleep /proc/" + std::to_string(process) + "/comm";
    return std::system(command.c_str()) == 0;
}

/// The suspects of rank 0 of `size` after it has looked, `what_happens` has happened and it has looked again.
template <class Happens>
std::string suspects_of_rank_0(int size, Happens what_happens) {
    int to_child[2], from_child[2];
    BOOST_REQUIRE((pipe(to_child) == 0 && pipe(from_child) == 0));
    const pid_t looks = fork();
    if (looks == 0) {
        for (const auto* variable : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
            setenv(variable, std::to_string(size).c_str(), 1);
        setenv("OMPI_COMM_WORLD_RANK", "0", 1);
        Siblings siblings;
        siblings.look();
        char byte = 'l';
        [[maybe_unused]] auto done = write(from_child[1], &byte, 1);
        done = read(to_child[0], &byte, 1);
        const auto text = siblings.suspects();
        done = write(from_child[1], text.data(), text.size());
        _exit(0);
    }
    char byte = 0;
    BOOST_REQUIRE(read(from_child[0], &byte, 1) == 1);
    what_happens();
    BOOST_REQUIRE(write(to_child[1], &byte, 1) == 1);
    close(from_child[1]);
    std::string text;
    while (read(from_child[0], &byte, 1) == 1) text += byte;
    waitpid(looks, nullptr, 0);
    for (const int end : {to_child[0], to_child[1], from_child[0]}) close(end);
    return text;
}

void end(pid_t process, int signal) {
    kill(process, signal);
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT);  // it stays for its parent to ask
}

}  // namespace

BOOST_AUTO_TEST_SUITE(neighbours)

BOOST_AUTO_TEST_CASE(a_sibling_that_was_seen_is_missed_and_one_that_was_asked_to_end_is_not) {
    const pid_t one = sleeping_rank(1), two = sleeping_rank(2);
    while (!shows_its_rank(one) || !shows_its_rank(two)) usleep(1000);
    BOOST_TEST(suspects_of_rank_0(3, [] {}) == "");
    const auto text = suspects_of_rank_0(3, [&] {
        end(one, SIGKILL);
        waitpid(one, nullptr, 0);
        end(two, SIGTERM);
    });
    BOOST_TEST(text == "rank 1 (process " + std::to_string(one) + ") has died");
    waitpid(two, nullptr, 0);
}

BOOST_AUTO_TEST_CASE(a_sibling_that_was_never_seen_is_missed_by_its_rank) {
    const pid_t two = sleeping_rank(2);
    while (!shows_its_rank(two)) usleep(1000);
    BOOST_TEST(suspects_of_rank_0(3, [] {}) == "rank 1 has died, or was never started");
    end(two, SIGKILL);
    waitpid(two, nullptr, 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
