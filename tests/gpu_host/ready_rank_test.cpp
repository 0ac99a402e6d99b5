// Ranks that stay ready between passes, over a runtime without devices: threads stand for processes.

#include "gpu/execution/ready_rank.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::gpu {
namespace {

namespace data = boost::unit_test::data;
using layouts::Pass;

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
    bool agree(bool root_says) override { return root_says; }
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

std::unique_ptr<ReadyRank> make_rank(Team& team, const std::string& algorithm, Clock::duration timeout) {
    layouts::Problem problem;
    problem.tokens = tokens * team.size();
    problem.query_heads = query_heads;
    problem.kv_heads = kv_heads;
    problem.head_dim = problem.value_dim = dim;
    const auto mask = layouts::make_mask("causal", problem.tokens);
    const auto layout = layouts::make_layout("zigzag", problem.tokens, team.size());
    layouts::ScheduleOptions how;
    how.schedule = algorithm;
    auto forward = make_schedule(problem, mask, layout, how);
    how.pass = Pass::backward;
    auto backward = make_schedule(problem, mask, layout, how);
    return std::make_unique<ReadyRank>(
        team, std::move(forward), std::move(backward),
        ReadyRank::Options{.device = team.first_local(), .deterministic = false, .timeout = timeout});
}

/// Device memory for one tensor after another.
class Shard {
public:
    CallerTensors tensors() {
        CallerTensors all;
        all.q = view(query_heads, DType::bf16);
        all.k = view(kv_heads, DType::bf16);
        all.v = view(kv_heads, DType::bf16);
        all.o = view(query_heads, DType::bf16);
        all.o_exact = view(query_heads, DType::fp32);
        all.lse = {static_cast<float*>(view(query_heads, DType::fp32).data), dense_strides(tokens, query_heads)};
        all.dout = view(query_heads, DType::bf16);
        all.dq = view(query_heads, DType::bf16);
        all.dk = view(kv_heads, DType::bf16);
        all.dv = view(kv_heads, DType::bf16);
        return all;
    }

private:
    View view(std::int64_t heads, DType dtype) {
        const auto& memory =
            memory_.emplace_back(static_cast<std::size_t>(tokens * heads * dim * layouts::bytes_of(dtype)));
        return {memory.data(), dtype, dense_strides(tokens, heads, dim)};
    }

    std::vector<DeviceBuffer> memory_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(ready_ranks)

// A sample, one of each way that messages travel, because the thread sanitizer is slow.
// The caller draws new tensors and reads results on its own stream, and no host waits in between.
BOOST_DATA_TEST_CASE(passes_follow_each_other_without_a_word_between_hosts,
                     data::make({"ring", "all-gather:2", "pull", "bidirectional", "pass-q", "seen", "ulysses:1",
                                 "joined-merge"}) *
                         data::make({1, 2, 3}),
                     algorithm, ranks) {
    const auto threads = make_thread_team(ranks);
    std::atomic<int> wrong = 0;  // steps whose results were read before they were there
    threads->run([&](int member) {
        const DeviceScope scope(member);
        ProcessTeam process(*threads, member);
        const auto rank = make_rank(process, algorithm, std::chrono::seconds(20));
        const Stream caller;
        Shard shard;
        const auto tensors = shard.tensors();
        const auto results = {tensors.o_exact.data, tensors.dq.data, tensors.dk.data};
        constexpr int steps = 12;
        std::array<std::array<unsigned char, 3>, steps> seen;
        for (auto& step : seen) {
            for (const void* input : {tensors.q.data, tensors.k.data, tensors.v.data, tensors.dout.data})
                cudaMemsetAsync(const_cast<void*>(input), 1, dim, caller);
            for (void* result : results) cudaMemsetAsync(result, 0xff, 1, caller);
            rank->run(Pass::forward, tensors, 0, caller);
            rank->run(Pass::backward, tensors, 0, caller);
            auto* to = step.data();
            for (void* result : results) cudaMemcpyAsync(to++, result, 1, cudaMemcpyDeviceToHost, caller);
        }
        caller.synchronize();
        rank->disconnect();
        for (const auto& step : seen) wrong += step != std::array<unsigned char, 3>{};  // kernels here write a 0
    });
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(a_pass_that_waits_for_a_rank_that_never_comes_lets_the_callers_stream_go) {
    const auto threads = make_thread_team(2);
    std::string said;
    threads->run([&](int member) {
        const DeviceScope scope(member);
        ProcessTeam process(*threads, member);
        const auto rank = make_rank(process, "pull", std::chrono::seconds(1));
        Shard shard;
        if (member == 0) {
            const Stream caller;
            const auto tensors = shard.tensors();
            rank->run(Pass::forward, tensors, 0, caller);
            caller.synchronize();
            try {
                rank->run(Pass::forward, tensors, 0, caller);
            } catch (const Error& error) {
                said = error.what();
            }
        }
        threads->barrier(member, std::chrono::seconds(20));
    });
    BOOST_TEST(said.starts_with("a forward pass has not ended after 1 s"), said);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::gpu
