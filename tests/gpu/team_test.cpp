// Teams of issuing threads.

#include "gpu/team/team.hpp"
#include "processes/peers.hpp"
#include "tests/gpu/executor_case.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstring>

namespace ringlab::tests {
namespace {

BOOST_AUTO_TEST_SUITE(team)

constexpr auto timeout = std::chrono::seconds(20);

BOOST_AUTO_TEST_CASE(everyone_gets_what_everyone_gave_round_after_round) {
    const auto team = gpu::make_thread_team(5);
    std::atomic<int> wrong = 0;
    team->run([&](int member) {
        for (int round = 0; round < 200; ++round) {
            gpu::Bytes bytes(sizeof(int));
            const int number = 1000 * round + member;
            std::memcpy(bytes.data(), &number, sizeof(number));
            const auto all = team->all_gather(member, bytes, timeout);
            for (int other = 0; other < 5; ++other) {
                int got = -1;
                std::memcpy(&got, all[static_cast<std::size_t>(other)].data(), sizeof(got));
                if (got != 1000 * round + other) ++wrong;
            }
        }
    });
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(one_failure_ends_all_with_its_own_message) {
    const auto team = gpu::make_thread_team(4);
    const auto message = error_of([&] {
        team->run([&](int member) {
            if (member == 2) fail("member 2 has had enough");
            team->barrier(member, timeout);
        });
    });
    BOOST_TEST(message == "member 2 has had enough");
}

BOOST_AUTO_TEST_CASE(waiting_for_someone_who_never_comes_ends_with_the_time_out) {
    const auto team = gpu::make_thread_team(2);
    const auto message = error_of([&] {
        team->run([&](int member) {
            if (member == 0) team->barrier(member, std::chrono::milliseconds(50));
        });
    });
    BOOST_TEST(message.find("member 0 of 2 has waited 0.05 s") != std::string::npos, message);
}

BOOST_AUTO_TEST_CASE(a_message_that_ends_too_early_is_refused) {
    processes::Bytes bytes;
    processes::append(bytes, std::vector{1.0, 2.0});
    for (std::size_t kept = 0; kept < bytes.size(); ++kept) {
        std::span<const std::byte> some(bytes.data(), kept);
        std::vector<double> numbers;
        BOOST_CHECK_THROW(processes::take(some, numbers), Error);
    }
    std::span<const std::byte> all(bytes);
    std::vector<double> numbers;
    processes::take(all, numbers);
    BOOST_TEST(numbers.size() == 2u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
