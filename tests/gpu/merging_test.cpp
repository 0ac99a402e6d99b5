// A pass in one launch per rank: launches that follow each other, and what comes of waiting in vain. The ranks share a
// GPU, each with a stream; their thread blocks are few enough to run at the same time. executor_test.cpp judges
// results.

#include "gpu/kernels/merging.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <random>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::DeviceBuffer;
using layouts::DType;

// Query heads of one kv head; keys and rows of a rank. Several thread blocks send a rank's rows, which are 17 KB.
constexpr int group = 12, dim = 64, keys = 1000, rows = 11;
constexpr int passes = 5;
constexpr std::uint32_t first_number = 0xfffffffdu;  // so that numbers wrap around
constexpr std::size_t elements_of_q = std::size_t{rows} * group * dim;

/// Normal numbers in bf16.
DeviceBuffer random_numbers(std::size_t count, int seed) {
    std::mt19937 bits(static_cast<unsigned>(seed));
    std::normal_distribution<double> normal;
    std::vector<double> numbers(count);
    for (auto& number : numbers) number = normal(bits);
    return on_device(numbers, DType::bf16);
}

/// One rank of several, under the full mask: its rows see the keys of all.
class VirtualRank {
public:
    VirtualRank(int rank, int ranks, std::chrono::nanoseconds most_wait)
        : rank_(rank),
          ranks_(ranks),
          most_wait_(most_wait),
          k_(random_numbers(std::size_t{keys} * dim, 100 + rank)),
          v_(random_numbers(std::size_t{keys} * dim, 200 + rank)),
          pairs_(static_cast<std::size_t>(ranks) * pairs_of_peer * sizeof(gpu::Pair)),
          late_(gpu::uploaded(std::vector<std::uint32_t>(1))) {
        const auto mask = layouts::make_mask("full", std::int64_t{keys} * ranks);
        const auto own_keys =
            std::make_shared<gpu::KeyPositions>(mask, std::vector{layouts::Run{keys * rank, 1, keys}});
        for (int owner = 0; owner < ranks; ++owner) {
            const auto bounds =
                std::make_shared<gpu::RowBounds>(mask, std::vector{layouts::Run{keys * owner, 1, rows}});
            work_.push_back(std::make_unique<gpu::WorkList>(mask, bounds, own_keys,
                                                            gpu::WorkListOptions{.head_dim = dim,
                                                                                 .value_dim = dim,
                                                                                 .family = gpu::kernel_family("hopper"),
                                                                                 .query_heads_per_kv_head = group}));
        }
        pairs_.fill(0xff, stream);
        for (int pass = 0; pass < passes; ++pass) {
            q_.push_back(random_numbers(elements_of_q, 10 * pass + rank));
            o_.emplace_back(elements_of_q * sizeof(float));
            o_.back().fill(0xff, stream);
            lse_.emplace_back(std::size_t{rows} * group * sizeof(float));
        }
        RINGLAB_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&reported), sizeof(*reported), cudaHostAllocMapped));
        *reported = 0;
        stream.synchronize();
    }
    ~VirtualRank() { cudaFreeHost(reported); }
    VirtualRank(const VirtualRank&) = delete;
    VirtualRank& operator=(const VirtualRank&) = delete;

    void launch(int pass, const std::vector<std::unique_ptr<VirtualRank>>& all) {
        std::vector<gpu::Pair*> messages;
        std::vector<gpu::OtherRows> others;
        std::vector<gpu::ResultPairs> arriving;
        for (int peer = 0; peer < ranks_; ++peer) {
            if (peer == rank_) continue;
            const auto& there = *all[static_cast<std::size_t>(peer)];
            messages.push_back(there.q_of(rank_));
            others.push_back({.work = work_[static_cast<std::size_t>(peer)].get(),
                              .q = q_of(peer),
                              .result = there.result_of(rank_)});
            arriving.push_back(result_of(peer));
        }
        gpu::AttendShape shape;
        shape.query_heads_per_kv_head = group;
        shape.head_dim = shape.value_dim = dim;
        shape.scale = 1 / std::sqrt(dim);
        gpu::kernel_family("hopper")->make_merging(
            {.shape = shape,
             .k = {k_.data(), DType::bf16, gpu::dense_strides(keys, 1, dim)},
             .v = {v_.data(), DType::bf16, gpu::dense_strides(keys, 1, dim)},
             .messages = messages,
             .others = others,
             .work = work_[static_cast<std::size_t>(rank_)].get(),
             .q = {q_[static_cast<std::size_t>(pass)].data(), DType::bf16, strides},
             .result = {.o = {o_[static_cast<std::size_t>(pass)].data(), DType::fp32, strides},
                        .lse = {lse_[static_cast<std::size_t>(pass)].as<float>(), lse_strides}},
             .arriving = arriving,
             .own = result_of(rank_),
             .most_wait = most_wait_,
             .late = late_.as<std::uint32_t>(),
             .reported = reported})(first_number + static_cast<std::uint32_t>(pass), stream);
    }

    /// o, then lse, of all passes.
    std::vector<double> results() const {
        std::vector<double> all;
        for (const auto* buffers : {&o_, &lse_})
            for (const auto& buffer : *buffers)
                std::ranges::copy(from_device(buffer, DType::fp32), std::back_inserter(all));
        return all;
    }

    gpu::Stream stream;
    std::uint32_t* reported = nullptr;

private:
    static constexpr gpu::Strides strides = gpu::dense_strides(rows, group, dim);
    static constexpr gpu::Strides lse_strides = gpu::dense_strides(rows, group);

    static constexpr std::size_t pairs_of_peer = 2 * elements_of_q + std::size_t{rows} * group;
    static_assert(std::size_t{rows} * group % 2 == 0);

    gpu::Pair* q_of(int owner) const {
        return pairs_.as<gpu::Pair>() + pairs_of_peer * static_cast<std::size_t>(owner);
    }
    gpu::ResultPairs result_of(int peer) const {
        auto* const pairs = q_of(peer) + elements_of_q;
        return {pairs, pairs + elements_of_q};
    }

    int rank_, ranks_;
    std::chrono::nanoseconds most_wait_;
    std::vector<std::unique_ptr<gpu::WorkList>> work_;  // by owner of the rows
    DeviceBuffer k_, v_, pairs_, late_;
    std::vector<DeviceBuffer> q_, o_, lse_;  // by pass
};

std::vector<std::unique_ptr<VirtualRank>> make_ranks(int count, std::chrono::nanoseconds most_wait) {
    std::vector<std::unique_ptr<VirtualRank>> ranks;
    for (int rank = 0; rank < count; ++rank) ranks.push_back(std::make_unique<VirtualRank>(rank, count, most_wait));
    return ranks;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(merging, *boost::unit_test::precondition(has_hopper))

// First each pass ends before the next one begins. Then all launches are enqueued at once, the last rank's first, so
// that only flags order them.
BOOST_DATA_TEST_CASE(launches_that_follow_each_other_give_the_bits_of_passes_apart, data::make({1, 2, 3}), count) {
    const auto apart = make_ranks(count, std::chrono::seconds(10)),
               at_once = make_ranks(count, std::chrono::seconds(10));
    for (int pass = 0; pass < passes; ++pass) {
        for (const auto& rank : apart) rank->launch(pass, apart);
        RINGLAB_CUDA(cudaDeviceSynchronize());
    }
    for (int rank = count; rank-- > 0;)
        for (int pass = 0; pass < passes; ++pass) at_once[static_cast<std::size_t>(rank)]->launch(pass, at_once);
    RINGLAB_CUDA(cudaDeviceSynchronize());
    for (std::size_t rank = 0; rank < apart.size(); ++rank) {
        BOOST_TEST(*at_once[rank]->reported == 0u);
        const auto expected = apart[rank]->results();
        BOOST_TEST(std::ranges::all_of(expected, [](double x) { return std::isfinite(x); }));
        BOOST_TEST((at_once[rank]->results() == expected));
    }
}

BOOST_AUTO_TEST_CASE(a_launch_whose_peer_never_comes_ends_and_says_what_is_missing) {
    const auto ranks = make_ranks(3, std::chrono::milliseconds(200));
    const auto begin = std::chrono::steady_clock::now();
    for (const std::size_t rank : {0u, 2u}) ranks[rank]->launch(0, ranks);  // rank 1 does not
    RINGLAB_CUDA(cudaDeviceSynchronize());
    const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    BOOST_TEST(seconds >= 0.2);
    BOOST_TEST(seconds < 5);
    for (const auto& [rank, index] : {std::pair(0u, 0u), std::pair(2u, 1u)}) {
        BOOST_TEST_REQUIRE(*ranks[rank]->reported != 0u);
        BOOST_TEST(gpu::LatePeer::from(*ranks[rank]->reported).index == index);  // rank 1, among the others
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
