#include "reference/ranks/transport.hpp"
#include "processes/session.hpp"
#include "tests/error_of.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>
#include <utility>

namespace ringlab::reference::tests {
namespace {

using layouts::Pass;
using ringlab::tests::error_of;

constexpr auto patience = std::chrono::milliseconds(200);

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Bytes filled(std::size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

void finish(Transport& transport, Transfer& transfer) {
    while (!transfer.ended()) transport.wait(patience);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(transport)

BOOST_AUTO_TEST_CASE(messages_match_in_order_per_peer_and_channel) {
    ThreadWorld world({2, 1, {}});
    // Buffers outlive the run.
    std::vector<Bytes> outgoing, incoming(4, filled(1000, 0));
    for (int i = 0; i < 4; ++i) outgoing.push_back(filled(1000, i + 1));
    world.run(std::chrono::seconds(5), [&](Transport& transport) {
        std::vector<std::unique_ptr<Transfer>> transfers;
        const auto channel = [](std::size_t i) { return i % 2 == 0 ? 0 : 1; };
        if (transport.rank() == 0) {
            for (const std::size_t i : {0u, 1u, 2u, 3u})
                transfers.push_back(transport.send(outgoing[i], 1, channel(i)));
        } else {
            // Those of the other channel are asked for first.
            for (const std::size_t i : {1u, 3u, 0u, 2u})
                transfers.push_back(transport.receive(incoming[i], 0, channel(i)));
        }
        for (auto& transfer : transfers) finish(transport, *transfer);
        return Bytes{};
    });
    for (std::size_t i = 0; i < 4; ++i) BOOST_TEST((incoming[i] == outgoing[i]));
}

BOOST_AUTO_TEST_CASE(a_send_ends_when_it_is_received_and_not_before) {
    ThreadWorld world({2, 1, {}});
    Bytes from = filled(8, 1), to = filled(8, 0);
    world.run(std::chrono::seconds(5), [&](Transport& transport) {
        if (transport.rank() == 0) {
            const auto send = transport.send(from, 1, 0);
            BOOST_TEST(!send->ended().has_value());
            transport.start_together();
            finish(transport, *send);
        } else {
            transport.start_together();
            finish(transport, *transport.receive(to, 0, 0));
        }
        return Bytes{};
    });
    BOOST_TEST((to == from));
}

BOOST_AUTO_TEST_CASE(a_fetch_reads_the_peers_memory_within_what_it_exposes) {
    ThreadWorld world({3, 1, {}});
    std::vector<Bytes> exposed{filled(10, 5), filled(20, 6), filled(30, 7)}, fetched(3, filled(4, 0));
    world.run(std::chrono::seconds(5), [&](Transport& transport) {
        const auto rank = static_cast<std::size_t>(transport.rank());
        transport.expose(exposed[rank]);
        finish(transport, *transport.fetch(fetched[rank], static_cast<int>((rank + 1) % 3), 6));
        transport.withdraw();
        return Bytes{};
    });
    for (std::size_t rank = 0; rank < 3; ++rank)
        BOOST_TEST((fetched[rank] == filled(4, static_cast<int>(5 + (rank + 1) % 3))));
    const auto message = error_of([&] {
        world.run(std::chrono::seconds(5), [&](Transport& transport) {
            transport.expose(exposed[0]);
            transport.fetch(fetched[0], 0, 7);
            return Bytes{};
        });
    });
    BOOST_TEST(contains(message, "fetches bytes [7, 11) of rank 0, which exposes 10"), message);
}

BOOST_AUTO_TEST_CASE(results_come_by_global_rank) {
    ThreadWorld world({2, 2, {}});
    const auto results = world.run(std::chrono::seconds(5), [](Transport& transport) {
        return filled(static_cast<std::size_t>(transport.rank()), transport.rank());
    });
    for (int rank = 0; rank < 4; ++rank)
        BOOST_TEST((results[static_cast<std::size_t>(rank)] == filled(static_cast<std::size_t>(rank), rank)));
}

BOOST_AUTO_TEST_CASE(a_message_of_another_size_than_its_receive_is_an_error) {
    ThreadWorld world({2, 1, {}});
    Bytes from = filled(8, 1), to = filled(9, 0);
    const auto message = error_of([&] {
        world.run(patience, [&](Transport& transport) {
            const auto transfer = transport.rank() == 0 ? transport.send(from, 1, 0) : transport.receive(to, 0, 0);
            finish(transport, *transfer);
            return Bytes{};
        });
    });
    BOOST_TEST(contains(message, "rank 0 sends rank 1 a message on channel 0 and the sizes differ"), message);
}

BOOST_AUTO_TEST_CASE(a_rank_that_throws_stops_all_and_its_error_is_reported) {
    ThreadWorld world({4, 1, {}});
    Bytes to = filled(8, 0);
    const auto begin = Clock::now();
    const auto message = error_of([&] {
        world.run(std::chrono::seconds(30), [&](Transport& transport) -> Bytes {
            if (transport.rank() == 2) fail("rank 2 has died");
            const auto transfer = transport.receive(to, 2, 0);
            for (;;) {
                if (transfer->ended()) return {};
                transport.wait(std::chrono::seconds(30));
            }
        });
    });
    BOOST_TEST(message == "rank 2 has died");
    BOOST_TEST((Clock::now() - begin < std::chrono::seconds(10)));
}

BOOST_AUTO_TEST_CASE(a_barrier_that_a_rank_never_reaches_ends_with_an_error) {
    ThreadWorld world({2, 1, {}});
    const auto message = error_of([&] {
        world.run(patience, [&](Transport& transport) {
            if (transport.rank() == 0) transport.start_together();
            return Bytes{};
        });
    });
    BOOST_TEST(message == "rank 0 waits at a barrier, but 1 of 2 ranks have ended");
}

BOOST_AUTO_TEST_CASE(a_peer_that_never_sends_ends_the_run_and_the_message_names_the_operation) {
    const auto begin = Clock::now();
    const GateCase c{small_problem(48), "full", "contiguous", "ring", 4};
    auto options = small_tiles();
    options.timeout = patience;
    WrappedWorld<MutedTransport> world(std::make_unique<ThreadWorld>(layouts::RingGroup{4, 1, {}}));
    const auto schedule = schedule_of(c, Pass::forward);
    const auto message = error_of([&] { run(world, *schedule, nullptr, random_inputs(c.problem, 21), options); });
    BOOST_TEST(contains(message, "has not ended after 0.2 s without progress"), message);
    BOOST_TEST(contains(message, "rank "), message);
    BOOST_TEST(contains(message, "step "), message);
    BOOST_TEST((Clock::now() - begin < std::chrono::seconds(10)));
}

namespace {

constexpr auto long_patience = 5 * patience;  // with room for threads that are late on a busy machine
constexpr auto longer = long_patience * 3 / 2;

/// Rank 0 wakes from its first wait much later than it asked to, and only then rank 1 goes on, as after a pause of the
/// whole process.
class Paused : public WrappedTransport {
public:
    Paused(Transport& inner, const layouts::RingGroup& group) : WrappedTransport(inner, group) { over_ = false; }
    void wait(Clock::duration limit) override {
        WrappedTransport::wait(limit);
        if (rank() != 0 || over_) return;
        std::this_thread::sleep_for(longer);
        over_ = true;
    }
    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        while (rank() == 1 && !over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return WrappedTransport::send(from, peer, channel);
    }

private:
    static inline std::atomic<bool> over_ = false;
};

/// The error of a ring whose ranks wait for `long_patience`.
template <class Wrapped>
std::string error_of_ring_of(int ranks) {
    const GateCase c{small_problem(48), "full", "contiguous", "ring", ranks};
    auto options = small_tiles();
    options.timeout = long_patience;
    WrappedWorld<Wrapped> world(std::make_unique<ThreadWorld>(layouts::RingGroup{ranks, 1, {}}));
    const auto schedule = schedule_of(c, Pass::forward);
    return error_of([&] { run(world, *schedule, nullptr, random_inputs(c.problem, 21), options); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_peer_that_computes_is_waited_for_however_long_it_takes) {
    // Messages move between a rank's attends: what rank 1 is to pass on waits for it.
    BOOST_TEST(error_of_ring_of<LongComputing<longer.count()>>(4) == "(no error)");
}

BOOST_AUTO_TEST_CASE(a_process_that_was_paused_has_not_waited_for_its_peers_meanwhile) {
    BOOST_TEST(error_of_ring_of<Paused>(2) == "(no error)");
}

namespace {

boost::test_tools::assertion_result is_without_mpi(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(!processes::built_with_mpi());
    if (!result) result.message() << "this program is built with MPI";
    return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_program_without_mpi_says_so, *boost::unit_test::precondition(is_without_mpi)) {
    BOOST_TEST(contains(error_of([] { make_mpi_world({2, 1, {}}); }), "built without MPI"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
