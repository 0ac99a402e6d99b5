// The executor, its ranks, issuers and copy transport over a runtime without devices: what their threads do to each
// other, for the thread sanitizer to watch.

#include "gpu/execution/executor.hpp"
#include "tests/error_of.hpp"
#include "tests/gpu/pretended_hosts.hpp"
#include "tests/gpu/wrapped_transport.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>

namespace ringlab::gpu {

struct Counts {
    std::atomic<int> sent = 0, flagged = 0;
};

namespace {

namespace data = boost::unit_test::data;
using layouts::Pass;
using layouts::Timelines;

struct Passes {
    std::unique_ptr<layouts::Schedule> forward, backward;
};

Passes make_passes(const std::string& schedule_name, int ranks, const std::string& mask_name = "causal",
                   const std::string& layout_name = "zigzag") {
    layouts::Problem problem;
    problem.tokens = 48 * ranks;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = problem.value_dim = 16;
    const auto mask = layouts::make_mask(mask_name, problem.tokens);
    const auto layout = layouts::make_layout(layout_name, problem.tokens, ranks);
    layouts::ScheduleOptions how;
    how.schedule = schedule_name;
    Passes passes;
    passes.forward = make_schedule(problem, mask, layout, how);
    how.pass = Pass::backward;
    passes.backward = make_schedule(problem, mask, layout, how);
    return passes;
}

GpuOptions options_for(TransportKind transport, int ranks) {
    GpuOptions options;
    options.transport = transport;
    options.group.ring = ranks;
    options.repeats = 3;
    options.keep_results = false;
    options.kernels = kernel_family("portable");
    return options;
}

/// A transport that is late with the first message it receives, and for ever with the next ones.
class SlowTransport : public WrappedTransport {
public:
    SlowTransport(std::unique_ptr<Transport> real, Clock::duration late)
        : WrappedTransport(std::move(real)), late_(late) {}

    bool can_complete_receive(const Message&) const override { return received_ == 0 && Clock::now() > begin_ + late_; }
    void complete_receive(const Message& message, cudaStream_t stream) override {
        WrappedTransport::complete_receive(message, stream);
        ++received_;
    }

private:
    Clock::duration late_;
    Clock::time_point begin_ = Clock::now();
    int received_ = 0;
};

/// Counts the messages that it sends, and those of them that set an arrival flag.
class CountingTransport : public WrappedTransport {
public:
    CountingTransport(std::unique_ptr<Transport> real, Counts& counts)
        : WrappedTransport(std::move(real)), counts_(counts) {}

    void send(const Message& message, cudaStream_t stream) override {
        ++counts_.sent;
        counts_.flagged += message.has_arrival_flag;
        WrappedTransport::send(message, stream);
    }

private:
    Counts& counts_;
};

FabricFactory counting(FabricFactory make, Counts& counts) {
    return joined_by(std::move(make), [&](Fabric& real, const JoiningRank& joining) {
        return std::make_unique<CountingTransport>(real.join(joining), counts);
    });
}

/// The result of one ring.
GpuRun run_ring(const Passes& passes, const GpuOptions& options, const FabricFactory& make_fabric = {}) {
    const auto team = make_thread_team(team_size(options));
    auto runs = run(*team, *passes.forward, passes.backward.get(), {}, options, make_fabric);
    BOOST_TEST_REQUIRE(runs.size() == 1u);
    return std::move(runs.front());
}

/// The error that ends it.
std::string error_of_ring(const Passes& passes, const GpuOptions& options, const Join& join) {
    return tests::error_of([&] { run_ring(passes, options, joined_by(make_copy_fabric, join)); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_threads)

// A sample, one of each way that messages travel, because the thread sanitizer is slow.
BOOST_DATA_TEST_CASE(ranks_of_every_kind_of_schedule_come_to_an_end,
                     data::make({"ring", "all-gather:2", "pull", "bidirectional", "pass-q", "seen", "ulysses:1",
                                 "joined-ring:1", "joined-merge"}) *
                         data::make({2, 3, 4}) *
                         data::make({static_cast<int>(TransportKind::copy), static_cast<int>(TransportKind::loopback)}),
                     schedule_name, ranks, kind) {
    const auto ring = run_ring(make_passes(schedule_name, ranks), options_for(static_cast<TransportKind>(kind), ranks));
    BOOST_TEST(ring.forward.seconds.size() == 3u);
    BOOST_TEST(ring.backward.timelines.size() == 3u);
    BOOST_TEST(ring.backward.timelines.at(0).spans.size() > 0u);
}

BOOST_DATA_TEST_CASE(a_pass_that_is_one_launch_needs_no_copy_engine, data::make({2, 3, 4}), ranks) {
    for (const std::string schedule_name : {"merge", "joined-merge"}) {
        auto passes = make_passes(schedule_name, ranks);
        passes.backward.reset();
        Counts counts;
        auto options = options_for(TransportKind::copy, ranks);
        options.timeout = std::chrono::seconds(10);
        const auto ring = run_ring(passes, options, counting(make_copy_fabric, counts));
        BOOST_TEST(ring.forward.timelines.at(0).spans.size() > 0u);
        BOOST_TEST((counts.sent == 0) == (schedule_name == "joined-merge"));
    }
}

// Messages inside a host by copy engines; between hosts another fabric of copies stands for NCCL, with no arrival flags
// and no fetches. What goes over it is what leaves a host.
BOOST_DATA_TEST_CASE(messages_between_hosts_go_over_a_fabric_of_their_own,
                     data::make({"ring", "all-gather:2", "pull", "bidirectional", "pass-q", "seen", "ulysses:1",
                                 "joined-ring:1", "joined-merge"}) *
                         data::make({2, 3, 4}),
                     schedule_name, ranks) {
    const tests::PretendedHosts hosts(2);
    const auto passes = make_passes(schedule_name, ranks);
    Counts counts;
    std::atomic<bool> inside = false;
    auto options = options_for(TransportKind::mixed, ranks);
    options.timeout = std::chrono::seconds(20);
    const auto between = [&](Team& members, const FabricOptions& how, const Routes& routes) {
        for (const auto& [edge, is_overlapped] : routes) inside = inside || edge.from / 2 == edge.to / 2;
        auto all = how;
        all.hosts = {};
        return make_copy_fabric(members, all, routes);
    };
    run_ring(passes, options, [&](Team& members, const FabricOptions& how, const Routes& routes) {
        return make_mixed_fabric(members, how, routes, counting(between, counts));
    });
    BOOST_TEST(!inside);
    int expected = 0;
    for (const auto* schedule : {passes.forward.get(), passes.backward.get()})
        for (const auto& rank : layouts::resolve(*schedule, layouts::Fetches::served).ranks)
            for (const auto& one : rank.code) expected += one.sends() && rank.rank / 2 != one.op.peer / 2;
    BOOST_TEST(counts.sent == options.repeats * expected);
    BOOST_TEST(counts.flagged == 0);
    BOOST_TEST((expected > 0) == (ranks > 2));
}

BOOST_AUTO_TEST_CASE(ranks_share_a_host_as_the_environment_pretends) {
    const auto team = make_thread_team(5);
    const layouts::RingGroup one_ring{.ring = 5};
    const auto timeout = std::chrono::seconds(5);
    BOOST_TEST(!RankHosts::of_team(*team, timeout).split_a_ring(one_ring));
    {
        const tests::PretendedHosts pretended(2);
        const auto hosts = RankHosts::of_team(*team, timeout);
        BOOST_TEST(hosts.split_a_ring(one_ring));
        BOOST_TEST(hosts.share(2, 3));
        BOOST_TEST(!hosts.share(1, 2));
        BOOST_TEST(hosts.first_rank_beside(4) == 4);
    }
    {
        const tests::PretendedHosts pretended(5);
        BOOST_TEST(!RankHosts::of_team(*team, timeout).split_a_ring(one_ring));
    }
    const tests::PretendedHosts pretended(0);
    BOOST_CHECK_EXCEPTION(RankHosts::of_team(*team, timeout), Error, [](const Error& error) {
        return std::string(error.what()).starts_with("RINGLAB_RANKS_PER_HOST is '0'; it must be");
    });
}

/// Processes that take turns on one thread. A rank that gathers hears what it and those before it have said, so the
/// last one hears all.
class ProcessesInTurn : public Team {
public:
    explicit ProcessesInTurn(int ranks) : given_(static_cast<std::size_t>(ranks)) {}

    int rank = 0;  ///< whose turn it is

    int size() const override { return static_cast<int>(given_.size()); }
    int first_local() const override { return rank; }
    int local_size() const override { return 1; }
    std::vector<Bytes> all_gather(int member, Bytes bytes, Clock::duration) override {
        given_.at(static_cast<std::size_t>(member)) = std::move(bytes);
        return {given_.begin(), given_.begin() + rank + 1};
    }
    std::vector<Bytes> gather_to_root(Bytes, Clock::duration) override { return {}; }
    void give_up(const std::string&) override {}
    Clock::duration clock_offset() const override { return {}; }
    Clock::duration clock_uncertainty() const override { return {}; }
    void cancel() noexcept override {}
    bool cancelled() const noexcept override { return false; }

private:
    std::vector<Bytes> given_;
};

BOOST_AUTO_TEST_CASE(processes_that_pretend_different_hosts_are_refused) {
    const auto timeout = std::chrono::seconds(5);
    const auto refuses = [&](ProcessesInTurn& team, const std::string& line) {
        BOOST_TEST(tests::error_of([&] { RankHosts::of_team(team, timeout); }) == line);
    };
    {
        ProcessesInTurn team(2);
        BOOST_TEST(!RankHosts::of_team(team, timeout).split_a_ring({.ring = 1}));
        const tests::PretendedHosts pretended(2);
        team.rank = 1;
        refuses(team, "RINGLAB_RANKS_PER_HOST is not set for rank 0 and '2' for rank 1; all ranks need the same");
    }
    ProcessesInTurn team(3);
    for (team.rank = 0; team.rank < 2; ++team.rank) {
        const tests::PretendedHosts pretended(1);
        RankHosts::of_team(team, timeout);
    }
    const tests::PretendedHosts pretended(0);
    refuses(team, "RINGLAB_RANKS_PER_HOST is '1' for rank 0 and '0' for rank 2; all ranks need the same");
}

// Two hosts of two ranks. Rings of two that each lie in one host are rings inside a host, for all that depends on it.
BOOST_AUTO_TEST_CASE(rings_that_each_lie_in_one_host_do_not_go_over_hosts) {
    const RankHosts hosts({0, 0, 2, 2});
    using Placement = layouts::RingGroup::Placement;
    struct Expectation {
        layouts::RingGroup group;
        bool over_hosts;
    };
    for (const auto& [group, over_hosts] :
         {Expectation{{.ring = 2, .replicas = 2}, false},
          Expectation{{.ring = 2, .replicas = 2, .placement = Placement::strided}, true},
          Expectation{{.ring = 4}, true}}) {
        BOOST_TEST_CONTEXT("rings of " << group.ring << ", over hosts: " << over_hosts) {
            BOOST_TEST(hosts.split_a_ring(group) == over_hosts);
            const auto passes = make_passes("pull", group.ring);
            bool fetches = false;
            for (const auto* schedule : {passes.forward.get(), passes.backward.get()})
                for (const auto& rank : program_of(*schedule, group, hosts).ranks)
                    for (const auto& one : rank.code)
                        fetches |= one.op.kind == layouts::OpKind::fetch && !one.receives();
            BOOST_TEST(fetches == !over_hosts);
            const auto team = make_thread_team(4);
            team->run([&](int member) {
                const auto start = launch_start(TransportKind::mixed, hosts, group, *team, member, member % 2,
                                                std::chrono::seconds(5));
                const auto expected = over_hosts ? FusedStart::local_before : FusedStart::at_once;
                require(start.fused == expected, "launches of member {} start otherwise", member);
            });
        }
    }
}

// `calibrate` times messages and the host like this.
BOOST_DATA_TEST_CASE(messages_travel_where_next_to_nothing_is_seen,
                     data::make({"ring", "all-gather", "pull"}) * data::make({2, 4}), schedule_name, ranks) {
    const auto passes = make_passes(schedule_name, ranks, fmt::format("valid:0-{}", ranks), "striped");
    auto options = options_for(TransportKind::copy, ranks);
    options.warm_up = 4;
    options.repeats = 12;
    options.round_results = true;
    for (const auto timelines : {Timelines::none, Timelines::all}) {
        options.timelines = timelines;
        const auto ring = run_ring(passes, options);
        BOOST_TEST(ring.forward.issue.size() == 12u);
        for (const auto& timeline : ring.backward.timelines) {
            std::int64_t bytes = 0;
            for (const auto& span : timeline.spans) bytes += span.bytes;
            BOOST_TEST(bytes > 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(a_rank_that_fails_ends_the_others) {
    const auto said = error_of_ring(make_passes("ring", 3), options_for(TransportKind::copy, 3),
                                    [](Fabric& real, const JoiningRank& joining) {
                                        if (joining.rank == 1) fail("rank 1 cannot join");
                                        return real.join(joining);
                                    });
    BOOST_TEST(said.find("rank 1 cannot join") != std::string::npos, said);
}

// The others have come to the end of the pass long before, and wait there.
BOOST_AUTO_TEST_CASE(a_rank_that_is_stuck_in_an_operation_speaks_before_those_that_wait_for_it) {
    auto options = options_for(TransportKind::copy, 3);
    options.timeout = std::chrono::seconds(2);
    const auto said =
        error_of_ring(make_passes("bidirectional", 3), options,
                      [&](Fabric& real, const JoiningRank& joining) -> std::unique_ptr<Transport> {
                          if (joining.rank != 1) return real.join(joining);
                          return std::make_unique<SlowTransport>(real.join(joining), options.timeout * 2 / 3);
                      });
    BOOST_TEST(said.find("has not ended after 2 s") != std::string::npos, said);
}

// The layout of a head of more than 2Mi tokens of 256 fp32 dims.
BOOST_AUTO_TEST_CASE(rows_may_be_further_apart_than_cuda_takes_in_one_call) {
    constexpr std::size_t pitch = (std::size_t{1} << 31) + 64, bytes = 8;
    const std::unique_ptr<char, decltype(&std::free)> far(static_cast<char*>(std::malloc(2 * pitch)), &std::free);
    BOOST_TEST_REQUIRE(far.get());
    const Stream stream;
    std::array<char, 2 * bytes> near{"rows far apart."}, back{};
    copy_rows(far.get(), pitch, near.data(), bytes, bytes, 2, stream);
    copy_rows(back.data(), bytes, far.get(), pitch, bytes, 2, stream);
    fill_rows(far.get(), pitch, 1, bytes, 2, stream);
    stream.synchronize();
    BOOST_TEST(back == near, boost::test_tools::per_element());
    BOOST_TEST(far.get()[pitch + bytes - 1] == 1);
}

BOOST_AUTO_TEST_CASE(launches_that_block_the_host_wait_for_nothing_that_it_enqueues_later) {
    const auto threads = make_thread_team(2);
    const layouts::RingGroup group{.ring = 2};
    std::atomic<int> wrong = 0;
    const auto start = [&](TransportKind transport, int member) {
        const auto hosts = transport == TransportKind::nccl ? RankHosts::apart(2) : RankHosts();
        return launch_start(transport, hosts, group, *threads, member, member, std::chrono::seconds(20)).fused;
    };
    threads->run([&](int member) { wrong += start(TransportKind::copy, member) != FusedStart::at_once; });
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    std::string said;
    threads->run([&](int member) {
        wrong += start(TransportKind::copy, member) != FusedStart::all_arrived;
        try {
            start(TransportKind::nccl, member);
        } catch (const Error& error) {
            if (member == 0) said = error.what();
        }
    });
    unsetenv("CUDA_LAUNCH_BLOCKING");
    BOOST_TEST(wrong == 0);
    BOOST_TEST(said.starts_with("CUDA_LAUNCH_BLOCKING is set"), said);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::gpu
