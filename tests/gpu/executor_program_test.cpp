// What needs no device: programs made of schedules, and teams of issuing threads.

#include "gpu/program.hpp"
#include "gpu/team.hpp"
#include "tests/gpu/executor_case.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstring>
#include <set>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::OpKind;

BOOST_AUTO_TEST_SUITE(programs)

const std::vector<std::string> schedule_names{"ring", "all-gather", "all-gather:2", "pull", "pull:2"};
const std::vector<std::string> masks{"full", "causal", "window:100,0", "documents:97,43,300,136",
                                     "window:31,17+valid:100-200"};

BOOST_DATA_TEST_CASE(every_transfer_stays_inside_the_exchange_memory_of_both_ends,
                     data::make(schedule_names) * data::make({1, 2, 3, 8}) * data::make({false, true}), schedule, ranks,
                     served) {
    for (const std::string layout : {"contiguous", "zigzag", "striped"})
        for (const auto& mask : masks) {
            const RingCase c{small_problem(), mask, layout, schedule, ranks};
            BOOST_TEST_CONTEXT(c) {
                const auto passes = make_passes(c);
                for (const auto* pass : {passes.forward.get(), passes.backward.get()}) {
                    const auto programs = gpu::make_programs(*pass, served);
                    const auto memory_bytes = [&](int rank, layouts::Payload payload) {
                        const auto& program = programs[static_cast<std::size_t>(rank)];
                        const auto own = payload == layouts::Payload::kv ? c.problem.dtype : program.own_gradient_dtype;
                        return gpu::SlotMap(*pass, rank, payload, own, pass->slots()).bytes();
                    };
                    for (const auto& program : programs)
                        for (const auto& [op, is_served, two_sided, first, last, local, gradient, remote] :
                             program.code) {
                            if (op.lane == layouts::Lane::compute) continue;
                            const auto bytes = static_cast<std::size_t>(op.bytes);
                            BOOST_TEST(local + bytes <= memory_bytes(program.rank, op.payload));
                            if (op.kind == OpKind::send || (op.kind == OpKind::fetch && !two_sided))
                                BOOST_TEST(remote + bytes <= memory_bytes(op.peer, op.payload));
                            BOOST_TEST((op.kind == OpKind::fetch && served) == two_sided);
                            BOOST_TEST((!is_served || served));
                        }
                }
            }
        }
}

BOOST_AUTO_TEST_CASE(each_head_range_of_a_rank_begins_once_and_ends_once) {
    for (const auto& schedule : schedule_names) {
        const RingCase c{small_problem(), "causal", "zigzag", schedule, 4};
        const auto passes = make_passes(c);
        for (const auto& program : gpu::make_programs(*passes.forward, false)) {
            std::set<int> running, ended;
            for (const auto& instruction : program.code) {
                if (instruction.op.kind != OpKind::attend) continue;
                const int head = instruction.op.heads.begin;
                BOOST_TEST(instruction.first != running.contains(head));
                BOOST_TEST(!ended.contains(head));
                running.insert(head);
                if (instruction.last) ended.insert(head);
            }
            BOOST_TEST(running == ended);
        }
    }
}

using Sizes = std::vector<std::size_t>;

Sizes sizes_of_joins(const layouts::Schedule& schedule) {
    const auto programs = gpu::make_programs(schedule, false);
    Sizes sizes;
    for (const auto& join : programs[1].joins) sizes.push_back(join.size());
    return sizes;
}

BOOST_AUTO_TEST_CASE(attends_are_joined_as_the_schedule_says) {
    const auto check = [](const std::string& schedule, const Sizes& forward, const Sizes& backward) {
        const auto passes = make_passes({small_problem(), "full", "zigzag", schedule, 4});
        const auto of_forward = sizes_of_joins(*passes.forward), of_backward = sizes_of_joins(*passes.backward);
        BOOST_TEST_CONTEXT(schedule) {
            BOOST_TEST(of_forward == forward, boost::test_tools::per_element());
            BOOST_TEST(of_backward == backward, boost::test_tools::per_element());
        }
    };
    check("ring", {}, {});
    check("pull:2", {8}, {8});
    check("all-gather:2", {4, 4}, {3, 2});  // backward, parts that have come are added in between
}

/// Fetches one head after the other into the same slot, and says that all attends are one launch.
class OneSlot : public layouts::Schedule {
public:
    using Schedule::Schedule;

    layouts::SlotPlan slots() const override { return {1, 1, 0, 0}; }
    layouts::Ops ops(int rank) const override {
        const int other = 1 - rank;
        layouts::OpIndex read = -1;
        for (int head = 0; head < 2; ++head) {
            const layouts::HeadRange heads{head, head + 1};
            auto own = attend(rank, 0, rank, heads, 0, -1);
            own.fused = head > 0;
            co_yield own;
            auto fetch = transfer(OpKind::fetch, layouts::Payload::kv, 1, other, other, heads, 1);
            fetch.run_after(read);
            const auto arrival = co_yield fetch;
            auto last = attend(rank, 1, other, heads, 1, -1);
            last.fused = true;
            last.run_after(arrival);
            read = co_yield last;
        }
    }
};

BOOST_AUTO_TEST_CASE(an_attend_that_waits_for_another_ones_end_is_not_joined_with_it) {
    const auto problem = small_problem();
    const OneSlot schedule(problem, layouts::make_mask("full", problem.tokens),
                           layouts::make_layout("zigzag", problem.tokens, 2), {});
    const auto sizes = sizes_of_joins(schedule);
    BOOST_TEST(sizes == Sizes{3}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_gradient_that_is_summed_at_home_is_summed_in_fp32) {
    RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    c.gradient_dtype = layouts::DType::bf16;
    for (const auto& program : gpu::make_programs(*make_passes(c).backward, false))
        BOOST_TEST((program.own_gradient_dtype == layouts::DType::bf16));  // it comes home complete
    c.schedule = "all-gather";
    for (const auto& program : gpu::make_programs(*make_passes(c).backward, false))
        BOOST_TEST((program.own_gradient_dtype == layouts::DType::fp32));
}

// A ring's gradients come home complete, and one rank's attend overwrites: nothing is there to add to. Keys that nobody
// sees have a gradient that nobody writes.
BOOST_AUTO_TEST_CASE(the_own_gradient_is_zeroed_where_its_first_writer_adds_or_nobody_writes) {
    const auto adding = [](const std::string& mask, int ranks) {
        const auto passes = make_passes({small_problem(), mask, "contiguous", "ring", ranks});
        std::vector<bool> adds;
        for (const auto& program : gpu::make_programs(*passes.backward, false))
            adds.push_back(program.adds_to_own_gradient);
        for (const auto& program : gpu::make_programs(*passes.forward, false))
            BOOST_TEST(!program.adds_to_own_gradient);
        return adds;
    };
    BOOST_TEST(adding("causal", 1) == (std::vector{false}), boost::test_tools::per_element());
    BOOST_TEST(adding("causal", 4) == (std::vector{false, false, false, false}), boost::test_tools::per_element());
    BOOST_TEST(adding("full+valid:0-100", 4) == (std::vector{false, true, true, true}),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
