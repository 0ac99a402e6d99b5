#include "experiments/execution/hosts.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::experiments::tests {
namespace {

using processes::Host;
using Placement = layouts::RingGroup::Placement;

const std::vector<Host> blocks{{"a", {0, 1, 2}}, {"b", {3, 4}}}, turns{{"a", {0, 2, 4}}, {"b", {1, 3}}};

template <class Attempt>
std::string error_of(Attempt attempt) {
    try {
        attempt();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

std::string gpus_error(const std::vector<std::vector<std::string>>& gpus, const std::vector<Host>& hosts, bool alone) {
    std::vector<ProcessCard> cards;
    for (const auto& seen : gpus) cards.push_back({"1", "", seen});
    return error_of([&] { require_gpus(cards, hosts, alone); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hosts)

BOOST_AUTO_TEST_CASE(crossings_are_neighbours_on_different_hosts_around_the_ring) {
    BOOST_TEST(crossings({5, 1, {}}, blocks).now == 2);
    BOOST_TEST(crossings({5, 1, {}}, turns).now == 4);
    BOOST_TEST(crossings({5, 1, {}}, turns).least == 2);
    const std::vector<Host> pairs{{"a", {0, 1}}, {"b", {2, 3}}};
    BOOST_TEST(crossings({2, 2, Placement::consecutive}, pairs).now == 0);
    BOOST_TEST(crossings({2, 2, Placement::consecutive}, pairs).least == 0);
    BOOST_TEST(crossings({2, 2, Placement::strided}, pairs).now == 4);
    BOOST_TEST(crossings({4, 1, {}}, {{"a", {0, 1, 2, 3}}}).now == 0);
}

BOOST_AUTO_TEST_CASE(bytes_between_hosts_are_those_of_messages_that_cross) {
    layouts::Problem problem;
    problem.tokens = 40;
    const auto mask = layouts::make_mask("full", 40);
    const auto schedule = layouts::make_schedule(problem, mask, layouts::make_layout("contiguous", 40, 5), {});
    // K and V of 8 tokens, 128 dims each, bf16, hop 4 times over each of 5 links.
    const std::int64_t link = 4 * 8 * 2 * 128 * 2;
    BOOST_TEST(bytes_between_hosts(*schedule, {5, 1, {}}, blocks) == 2 * link);
    BOOST_TEST(bytes_between_hosts(*schedule, {5, 1, {}}, turns) == 4 * link);
    BOOST_TEST(bytes_between_hosts(*schedule, {5, 1, {}}, {{"a", {0, 1, 2, 3, 4}}}) == 0);
}

BOOST_AUTO_TEST_CASE(a_person_is_told_of_hosts_and_of_a_better_order) {
    BOOST_TEST(host_notes({5, 1, {}}, {{"a", {0, 1, 2, 3, 4}}}).empty());
    BOOST_TEST(host_notes({5, 1, {}}, blocks) == std::vector<std::string>{"2 hosts: a (ranks 0-2), b (ranks 3-4)"},
               boost::test_tools::per_element());
    const auto notes = host_notes({5, 1, {}}, turns);
    BOOST_REQUIRE(notes.size() == 2u);
    BOOST_TEST(notes[0] == "2 hosts: a (ranks 0, 2, 4), b (ranks 1, 3)");
    BOOST_TEST(notes[1].starts_with("4 of 5 neighbours of a ring of 5 are on another host, where 2 would do"));
}

BOOST_AUTO_TEST_CASE(processes_that_differ_are_named_with_host_and_values) {
    const ProcessCard one{"1.0", "layouts = zigzag\nranks = 5\n"};
    const auto error = [&](const ProcessCard& other) {
        return error_of([&] { require_alike({one, one, one, other, other}, blocks); });
    };
    BOOST_TEST(error(one) == "");
    BOOST_TEST(error({"1.1", one.configuration}) ==
               "rank 3 on b is version 1.1, rank 0 on a is version 1.0; start the same program on all hosts");
    BOOST_TEST(
        error({"1.0", "layouts = zigzag\nranks = 4\n"}) ==
        "rank 3 on b was started with ranks = 4, rank 0 on a with ranks = 5; give all processes the same arguments");
    BOOST_TEST(error({"1.0", "layouts = zigzag\n"}) ==
               "rank 3 on b was started with nothing of it, rank 0 on a with ranks = 5; give all processes the same "
               "arguments");
}

BOOST_AUTO_TEST_CASE(every_rank_wants_a_gpu_where_it_is) {
    const std::vector<std::string> three{"01", "02", "03"}, two{"01", "02"}, one{"01"};
    BOOST_TEST(gpus_error({three, three, three, two, two}, blocks, true) == "");
    // Another address space of PCI on each host.
    BOOST_TEST(gpus_error({three, three, three, one, one}, blocks, false) == "");
    BOOST_TEST(
        gpus_error({three, three, three, one, one}, blocks, true) ==
        "b has 2 ranks (ranks 3-4) and 1 GPU for them: ranks 3 and 4 would share GPU 01, where each needs one of its "
        "own; start fewer ranks there");
    BOOST_TEST(gpus_error({three, three, three, {}, {}}, blocks, true) ==
               "rank 3 sees no GPU on b; start ranks only where there are GPUs");
    // As Slurm hands them out: each process sees its own alone.
    BOOST_TEST(gpus_error({{"01"}, {"02"}, {"03"}, {"01"}, {"02"}}, blocks, true) == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
