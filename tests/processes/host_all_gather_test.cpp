#include "processes/host_all_gather.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/unit_test.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::processes::tests {
namespace {

using namespace std::chrono_literals;

constexpr int ranks = 3;

/// Longer than a cache line, and no multiple of one.
struct Block {
    std::array<std::int64_t, 11> numbers{};
};

Block block_of(int rank, std::int64_t round) {
    Block block;
    for (std::size_t i = 0; i < block.numbers.size(); ++i)
        block.numbers[i] = 1'000'000 * rank + round + static_cast<std::int64_t>(i);
    return block;
}

/// Runs `rank_1` and `rank_2` in processes of their own, `rank_0` in this one. Returns the others' exit codes.
std::vector<int> with_ranks(const std::function<void(HostAllGather&)>& rank_0,
                            const std::function<int(HostAllGather&, int)>& others) {
    HostAllGather gather(ranks, sizeof(Block));
    const auto address = gather.address();
    std::vector<pid_t> children;
    for (int rank = 1; rank < ranks; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            HostAllGather theirs(address, rank, ranks, sizeof(Block));
            const int code = others(theirs, rank);
            _exit(code);  // without leave(): as a process that dies
        }
        children.push_back(child);
    }
    rank_0(gather);
    std::vector<int> codes;
    for (const auto child : children) {
        int status = -1;
        waitpid(child, &status, 0);
        codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return codes;
}

/// The number of rounds in which anything else came than what was sent.
int wrong_rounds(HostAllGather& gather, int rank, int rounds) {
    int wrong = 0;
    std::array<Block, ranks> everything;
    for (int round = 1; round <= rounds; ++round) {
        const auto own = block_of(rank, round);
        gather.begin(&own);
        while (!gather.finish(everything.data(), 1ms, 60s)) {
        }
        for (int other = 0; other < ranks; ++other)
            wrong += everything[static_cast<std::size_t>(other)].numbers != block_of(other, round).numbers;
    }
    return std::min(wrong, 100);
}

std::string error_of(HostAllGather& gather, Clock::duration limit) {
    std::array<Block, ranks> everything;
    const Block own;
    try {
        gather.begin(&own);
        while (!gather.finish(everything.data(), 1ms, limit)) {
        }
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_all_gather)

BOOST_AUTO_TEST_CASE(every_rank_gets_the_blocks_of_all) {
    int wrong = 0;
    const auto codes = with_ranks([&](HostAllGather& gather) { wrong = wrong_rounds(gather, 0, 2000); },
                                  [](HostAllGather& gather, int rank) { return wrong_rounds(gather, rank, 2000); });
    BOOST_TEST(wrong == 0);
    BOOST_TEST(codes == (std::vector<int>{0, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_rank_that_has_left_is_named) {
    std::string error;
    with_ranks([&](HostAllGather& gather) { error = error_of(gather, 60s); },
               [](HostAllGather& gather, int rank) {
                   if (rank == 2) {
                       gather.leave();
                       return 0;
                   }
                   return error_of(gather, 60s) == "rank 2 has left" ? 0 : 1;
               });
    BOOST_TEST(error == "rank 2 has left");
}

BOOST_AUTO_TEST_CASE(a_rank_whose_process_has_ended_is_named) {
    std::string error;
    with_ranks([&](HostAllGather& gather) { error = error_of(gather, 60s); },
               [](HostAllGather& gather, int rank) { return rank == 2 ? 0 : !error_of(gather, 60s).empty(); });
    BOOST_TEST(error.starts_with("rank "));
    BOOST_TEST(error.find("is gone (process ") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_rank_that_does_not_come_within_the_limit_is_named) {
    HostAllGather own(2, sizeof(Block));
    const HostAllGather other(own.address(), 1, 2, sizeof(Block));
    BOOST_TEST(error_of(own, 30ms) == "rank 1 did not come within 0.03 s");
}

BOOST_AUTO_TEST_CASE(the_block_of_a_rank_that_left_afterwards_comes) {
    HostAllGather own(2, sizeof(Block));
    HostAllGather other(own.address(), 1, 2, sizeof(Block));
    const auto first = block_of(0, 1), second = block_of(1, 1);
    own.begin(&first);
    other.begin(&second);
    other.leave();
    std::array<Block, 2> everything;
    BOOST_REQUIRE(own.finish(everything.data(), 0s, 1s));
    BOOST_TEST(everything[1].numbers == second.numbers, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_copy_in_a_forked_process_does_not_leave_for_the_rank) {
    HostAllGather own(2, sizeof(Block));
    std::optional<HostAllGather> other(std::in_place, own.address(), 1, 2, sizeof(Block));
    const pid_t child = fork();
    if (child == 0) {
        other.reset();
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    BOOST_TEST(error_of(own, 50ms) == "rank 1 did not come within 0.05 s");
    other.reset();
    const Block block;
    std::array<Block, 2> everything;
    own.begin(&block);
    BOOST_CHECK_EXCEPTION(own.finish(everything.data(), 1s, 1s), Error,
                          [](const Error& error) { return std::string(error.what()) == "rank 1 has left"; });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
