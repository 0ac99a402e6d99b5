// Ranks that stay ready between passes, over a runtime without devices: threads stand for processes.

#include "gpu/ring/ready_ring.hpp"
#include "tests/error_of.hpp"
#include "tests/gpu_host/fake_cuda.hpp"
#include "tests/gpu_host/reused_memory.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>

namespace ringlab::gpu {
namespace {

namespace data = boost::unit_test::data;
using layouts::Pass;
using tests::ReusedMemory;

/// A member of a team of threads, as if it were a process of its own.
class ProcessTeam : public Team {
public:
    ProcessTeam(Team& threads, int member) : threads_(threads), member_(member) {}

    int size() const override { return threads_.size(); }
    int first_local() const override { return member_; }
    int local_size() const override { return 1; }
    std::vector<Bytes> all_gather(int, Bytes bytes, Clock::duration timeout) override {
        return threads_.all_gather(member_, std::move(bytes), timeout);
    }
    std::vector<Bytes> gather_to_root(Bytes, Clock::duration) override { return {}; }
    void give_up(const std::string& why) override { threads_.give_up(why); }
    Clock::duration clock_offset() const override { return {}; }
    Clock::duration clock_uncertainty() const override { return {}; }
    void cancel() noexcept override { threads_.cancel(); }
    bool cancelled() const noexcept override { return threads_.cancelled(); }

private:
    Team& threads_;
    int member_;
};

constexpr std::int64_t tokens = 48, query_heads = 4, kv_heads = 2, dim = 16;

std::shared_ptr<RingPlan> make_plan(ReadyRing& ring, int ranks, const std::string& schedule_name,
                                    const std::string& spec = "causal", std::int64_t shard_tokens = tokens) {
    layouts::Problem problem;
    problem.tokens = shard_tokens * ranks;
    problem.query_heads = query_heads;
    problem.kv_heads = kv_heads;
    problem.head_dim = problem.value_dim = dim;
    const auto mask = layouts::make_mask(spec, problem.tokens);
    const auto layout = layouts::make_layout("zigzag", problem.tokens, ranks);
    layouts::ScheduleOptions how;
    how.schedule = schedule_name;
    auto forward = make_schedule(problem, mask, layout, how);
    how.pass = Pass::backward;
    auto backward = make_schedule(problem, mask, layout, how);
    return ring.make_plan(std::move(forward), std::move(backward), false);
}

/// Device memory for one tensor after another.
class Shard {
public:
    explicit Shard(std::int64_t of_rank = tokens) : tokens_(of_rank) {}

    CallerTensors tensors() {
        CallerTensors all;
        all.q = view(query_heads, DType::bf16);
        all.k = view(kv_heads, DType::bf16);
        all.v = view(kv_heads, DType::bf16);
        all.o = view(query_heads, DType::bf16);
        all.o_exact = view(query_heads, DType::fp32);
        all.lse = {static_cast<float*>(view(query_heads, DType::fp32).data), dense_strides(tokens_, query_heads)};
        all.dout = view(query_heads, DType::bf16);
        all.dq = view(query_heads, DType::bf16);
        all.dk = view(kv_heads, DType::bf16);
        all.dv = view(kv_heads, DType::bf16);
        return all;
    }

private:
    View view(std::int64_t heads, DType dtype) {
        const auto& memory =
            memory_.emplace_back(static_cast<std::size_t>(tokens_ * heads * dim * layouts::bytes_of(dtype)));
        return {memory.data(), dtype, dense_strides(tokens_, heads, dim)};
    }

    const std::int64_t tokens_;
    std::vector<DeviceBuffer> memory_;
};

/// The first bytes of results.
using Seen = std::array<unsigned char, 3>;

/// A rank of a ring of processes, with tensors and a stream of its caller.
struct RingMember {
    RingMember(Team& threads, int member, Clock::duration timeout = std::chrono::seconds(20))
        : device(member), process(threads, member), ring(process, memory, {.device = member, .timeout = timeout}) {}

    /// A pass, with local memory that is given back at once.
    void run(const std::shared_ptr<RingPlan>& plan, Pass pass, CallerTensors with) {
        with.local = memory.allocate(plan->local_bytes(pass), caller);
        ring.run(plan, pass, with, 0, caller);
        memory.release(with.local);
    }
    void run(const std::shared_ptr<RingPlan>& plan, Pass pass) { run(plan, pass, tensors); }

    /// Inputs, both passes, and a look at the results, all in order of the stream `caller`.
    void take_a_step(const std::shared_ptr<RingPlan>& plan, const CallerTensors& with, Seen& seen) {
        const auto results = {with.o_exact.data, with.dq.data, with.dk.data};
        for (const void* input : {with.q.data, with.k.data, with.v.data, with.dout.data})
            cudaMemsetAsync(const_cast<void*>(input), 1, dim, caller);
        for (void* result : results) cudaMemsetAsync(result, 0xff, 1, caller);
        run(plan, Pass::forward, with);
        run(plan, Pass::backward, with);
        auto* to = seen.data();
        for (void* result : results) cudaMemcpyAsync(to++, result, 1, cudaMemcpyDeviceToHost, caller);
    }
    void take_a_step(const std::shared_ptr<RingPlan>& plan, Seen& seen) { take_a_step(plan, tensors, seen); }

    /// Waits until the ring may be destroyed.
    void let_go() {
        caller.synchronize();
        while (!ring.let_go()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    /// Waits for the others' hosts.
    void meet() { process.barrier(process.first_local(), std::chrono::seconds(20)); }

    const DeviceScope device;
    ProcessTeam process;
    ReusedMemory memory;
    ReadyRing ring;
    const Stream caller;
    Shard shard;
    const CallerTensors tensors = shard.tensors();
};

/// How much is wrong, by `body` of each rank, which runs on a thread of its own. Then the ring lets go.
int wrong_on_ranks(int ranks, const std::function<int(RingMember&)>& body,
                   Clock::duration timeout = std::chrono::seconds(20)) {
    const auto threads = make_thread_team(ranks);
    std::atomic<int> wrong = 0;
    threads->run([&](int member) {
        RingMember own(*threads, member, timeout);
        wrong += body(own);
        own.let_go();
        wrong += own.ring.held().device != 0;
    });
    return wrong;
}

/// Steps whose results were read before they were there: kernels here write a 0.
template <std::size_t steps>
int missing(RingMember& own, const std::array<Seen, steps>& seen) {
    own.caller.synchronize();
    return static_cast<int>(std::ranges::count_if(seen, [](const Seen& step) { return step != Seen{}; }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ready_rings)

// A sample, one of each way that messages travel, because the thread sanitizer is slow.
// The caller draws new tensors and reads results on its own stream, and no host waits in between.
BOOST_DATA_TEST_CASE(passes_follow_each_other_without_a_word_between_hosts,
                     data::make({"ring", "all-gather:2", "pull", "bidirectional", "pass-q", "seen", "ulysses:1",
                                 "joined-merge", "joined-ring:steps"}) *
                         data::make({1, 2, 3}),
                     schedule_name, ranks) {
    const int wrong = wrong_on_ranks(ranks, [&](RingMember& own) {
        const auto plan = make_plan(own.ring, ranks, schedule_name);
        std::array<Seen, 12> seen;
        for (auto& step : seen) own.take_a_step(plan, step);
        return missing(own, seen);
    });
    BOOST_TEST(wrong == 0);
}

// Each costs the host time. Of two ranks' forward pass: where it begins and ends on the caller's stream, where messages
// may begin and end, and where the pass ends.
BOOST_DATA_TEST_CASE(a_pass_records_events_only_where_something_waits_for_them,
                     data::make({"ring", "joined-ring:steps"}), schedule_name) {
    const int wrong = wrong_on_ranks(2, [&](RingMember& own) {
        const auto plan = make_plan(own.ring, 2, schedule_name);
        own.run(plan, Pass::forward);
        const int before = tests::events_recorded();
        own.run(plan, Pass::forward);
        return int{tests::events_recorded() - before != 5};
    });
    BOOST_TEST(wrong == 0);
}

// Where one launch computes all that a row sees, its softmax is never stored. A ring of one rank has one such launch.
BOOST_AUTO_TEST_CASE(a_forward_pass_wants_memory_of_its_caller_only_for_a_softmax_that_is_stored) {
    for (const int ranks : {1, 2}) {
        const int wrong = wrong_on_ranks(ranks, [&](RingMember& own) {
            const auto plan = make_plan(own.ring, ranks, "ring");
            return ((plan->local_bytes(Pass::forward) > 0) != (ranks > 1)) + (plan->local_bytes(Pass::backward) == 0);
        });
        BOOST_TEST(wrong == 0, ranks);
    }
}

// Every step has a plan of its own, of three schedules, which use the same memory. It is gone before its passes have
// ended. One rank is slow, and the thread sanitizer sees who touches memory that it still uses.
BOOST_DATA_TEST_CASE(plans_of_a_ring_take_turns_in_the_same_memory, data::make({1, 2, 3}), ranks) {
    tests::slow_down_copies(ranks - 1);
    const int wrong = wrong_on_ranks(ranks, [&](RingMember& own) {
        std::array<Seen, 24> seen;
        std::int64_t held = 0;
        int changes = 0;
        for (std::size_t step = 0; step < seen.size(); ++step) {
            const std::array schedule_names{"pull", "ring", "pass-q"};
            const auto cut = static_cast<std::int64_t>(7 + 5 * (step % 4));
            const auto plan = make_plan(own.ring, ranks, schedule_names.at(step % schedule_names.size()),
                                        fmt::format("causal+documents:{},{}", cut, tokens * ranks - cut));
            own.take_a_step(plan, seen.at(step));
            const auto now = own.ring.held().device;
            if (step < 3) held = now;
            changes += now != held;
        }
        return changes + missing(own, seen);
    });
    tests::slow_down_copies(-1);
    BOOST_TEST(tests::attends_without_work_list() == 0);
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(a_larger_plan_makes_the_memory_grow_and_earlier_plans_go_on) {
    const int wrong = wrong_on_ranks(2, [&](RingMember& own) {
        std::array<Seen, 4> seen;
        const auto small = make_plan(own.ring, 2, "ring");
        own.take_a_step(small, seen[0]);
        const auto held = own.ring.held().device;
        Shard large_shard(400 * tokens);
        const auto large = make_plan(own.ring, 2, "ring", "full", 400 * tokens);
        const bool grew = own.ring.held().device > held;
        own.take_a_step(small, seen[1]);
        own.take_a_step(large, large_shard.tensors(), seen[2]);
        own.take_a_step(small, seen[3]);
        return !grew + missing(own, seen);
    });
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(a_plan_for_which_one_rank_has_no_memory_is_refused_by_all_and_earlier_plans_go_on) {
    std::array<std::string, 2> said;
    const int wrong = wrong_on_ranks(2, [&](RingMember& own) {
        std::array<Seen, 2> seen;
        const auto small = make_plan(own.ring, 2, "ring");
        own.take_a_step(small, seen[0]);
        const auto held = own.ring.held().device;
        own.meet();
        tests::limit_allocations(1, static_cast<std::size_t>(held));
        said.at(static_cast<std::size_t>(own.process.first_local())) =
            tests::error_of([&] { make_plan(own.ring, 2, "ring", "full", 400 * tokens); });
        const bool is_as_before = own.ring.held().device == held && !own.ring.is_broken();
        own.take_a_step(small, seen[1]);
        return !is_as_before + missing(own, seen);
    });
    tests::limit_allocations(-1);
    BOOST_TEST(wrong == 0);
    BOOST_TEST(said[0].starts_with("rank 1 cannot: no device memory"), said[0]);
    BOOST_TEST(said[1].starts_with("no device memory"), said[1]);
}

// A step with shapes that were seen gets the same pieces of the caller's memory again.
BOOST_AUTO_TEST_CASE(new_packings_of_the_same_size_allocate_nothing) {
    const int wrong = wrong_on_ranks(2, [&](RingMember& own) {
        Seen seen;
        const auto step = [&](int cut) {
            const auto plan =
                make_plan(own.ring, 2, "ring", fmt::format("causal+documents:{},{}", cut, tokens * 2 - cut));
            own.take_a_step(plan, seen);
            own.caller.synchronize();
        };
        for (int cut = 1; cut < 4; ++cut) step(cut);
        const auto before = own.memory.allocations;
        const auto held = own.ring.held();
        for (int cut = 4; cut < 40; ++cut) step(cut);
        return own.memory.allocations - before + (own.ring.held().device != held.device) +
               (own.ring.held().host != held.host);
    });
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(a_pass_that_waits_for_a_rank_that_never_comes_lets_the_callers_stream_go) {
    std::string said;
    const auto body = [&](RingMember& own) {
        const auto plan = make_plan(own.ring, 2, "pull");
        // On both: the first one waits on the host for the other rank.
        own.run(plan, Pass::forward);
        own.caller.synchronize();
        own.meet();
        const auto& memory = plan->work().memory();
        auto& last_byte = reinterpret_cast<unsigned char&>(memory.data()[memory.map().bytes() - 1]);
        last_byte = 0;
        int wrong = 0;
        if (own.process.is_root()) {
            said = tests::error_of([&] {
                for (int pass = 0; pass < 3; ++pass) {
                    own.run(plan, Pass::forward);
                    own.caller.synchronize();
                }
            });
            wrong += !own.ring.is_broken();
            wrong += last_byte != 0xff;  // NaN, so that the pass has no result that looks like one
        }
        own.meet();
        return wrong;
    };
    BOOST_TEST(wrong_on_ranks(2, body, std::chrono::seconds(1)) == 0);
    BOOST_TEST(said.starts_with("a forward pass has not ended after 1 s"), said);
}

// Each pass takes a third of the time-out, and the caller itself sees its end.
BOOST_AUTO_TEST_CASE(passes_that_are_slow_but_end_do_not_add_up_to_the_time_out) {
    tests::slow_down_copies(1, std::chrono::milliseconds(100));
    const auto body = [&](RingMember& own) {
        const auto plan = make_plan(own.ring, 2, "pull");
        for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::seconds(3);) {
            own.run(plan, Pass::forward);
            own.caller.synchronize();
            own.meet();
        }
        return int{own.ring.is_broken()};
    };
    const int wrong = wrong_on_ranks(2, body, std::chrono::seconds(1));
    tests::slow_down_copies(-1);
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(another_threads_capture_of_a_graph_does_not_end_a_ring) {
    tests::slow_down_copies(0, std::chrono::milliseconds(300));
    const int wrong = wrong_on_ranks(2, [&](RingMember& own) {
        const auto plan = make_plan(own.ring, 2, "pull");
        own.run(plan, Pass::forward);
        own.meet();
        tests::capture_a_graph(true);
        std::this_thread::sleep_for(std::chrono::milliseconds(250));
        own.run(plan, Pass::forward);
        own.meet();
        tests::capture_a_graph(false);
        own.caller.synchronize();
        return int{own.ring.is_broken()};
    });
    tests::slow_down_copies(-1);
    BOOST_TEST(wrong == 0);
}

BOOST_DATA_TEST_CASE(a_ring_is_free_when_its_peers_have_let_go_too, data::make({false, true}), is_broken) {
    const auto body = [&](RingMember& own) {
        const bool is_first = own.process.is_root();
        int wrong = 0;
        const auto plan = make_plan(own.ring, 2, "pull");
        own.run(plan, Pass::forward);
        own.caller.synchronize();
        own.meet();
        if (is_broken && is_first) {
            own.run(plan, Pass::forward);  // without the other
            wrong += own.ring.let_go();    // as long as the pass waits
            own.caller.synchronize();
        }
        if (is_first) wrong += own.ring.let_go();
        wrong += own.ring.held().device == 0;
        own.meet();
        own.let_go();
        return wrong + !own.ring.let_go();
    };
    BOOST_TEST(wrong_on_ranks(2, body, std::chrono::seconds(is_broken ? 1 : 20)) == 0);
}

BOOST_AUTO_TEST_CASE(passes_of_two_rings_on_a_device_run_in_the_order_of_the_calls) {
    const auto threads = make_thread_team(2);
    std::atomic<int> wrong = 0;
    threads->run([&](int member) {
        RingMember first(*threads, member), second(*threads, member);
        const auto of_first = make_plan(first.ring, 2, "pull"), of_second = make_plan(second.ring, 2, "ring");
        for (auto* own : {&first, &second}) own->run(own == &first ? of_first : of_second, Pass::forward);
        threads->barrier(member, std::chrono::seconds(20));
        tests::slow_down_copies(0, std::chrono::milliseconds(100));
        first.run(of_first, Pass::forward);
        const Event ended(Event::Use::ordering);
        ended.record(first.caller);
        second.run(of_second, Pass::forward);
        second.caller.synchronize();
        wrong += !ended.done();
        for (auto* own : {&first, &second}) own->let_go();
    });
    tests::slow_down_copies(-1);
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(memory_that_one_rank_cannot_open_is_refused_by_all) {
    const auto threads = make_thread_team(3);
    std::array<std::string, 3> said;
    tests::open_no_memory_of_others(1);
    threads->run([&](int member) {
        RingMember own(*threads, member, std::chrono::seconds(5));
        said.at(static_cast<std::size_t>(member)) = tests::error_of([&] { make_plan(own.ring, 3, "ring"); });
    });
    tests::open_no_memory_of_others(-1);
    for (const std::size_t rank : {0u, 2u}) BOOST_TEST(said.at(rank).starts_with("rank 1 cannot: CUDA"), said.at(rank));
    BOOST_TEST(said[1].starts_with("CUDA"), said[1]);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::gpu
