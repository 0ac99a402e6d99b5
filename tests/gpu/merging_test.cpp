// A pass in one launch per rank: what launches of several ranks exchange, and what comes of waiting in vain. The ranks
// share a GPU, each with a stream; their thread blocks are few enough to run at the same time.

#include "gpu/kernels/merging.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cmath>
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

/// Normal numbers that bf16 holds exactly.
std::vector<double> random_numbers(std::size_t count, unsigned seed) {
    std::mt19937 bits(seed);
    std::normal_distribution<double> normal;
    std::vector<double> numbers(count);
    for (auto& number : numbers) number = reference::rounded(normal(bits), DType::bf16);
    return numbers;
}

/// One rank of several, under the full mask: its rows see the keys of all.
class VirtualRank {
public:
    VirtualRank(int rank, int ranks, std::chrono::nanoseconds most_wait)
        : k(random_numbers(std::size_t{keys} * dim, 100u + static_cast<unsigned>(rank))),
          v(random_numbers(k.size(), 200u + static_cast<unsigned>(rank))),
          rank_(rank),
          ranks_(ranks),
          most_wait_(most_wait),
          k_(on_device(k, DType::bf16)),
          v_(on_device(v, DType::bf16)),
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
            q.push_back(random_numbers(elements_of_q, 10u * static_cast<unsigned>(pass) + static_cast<unsigned>(rank)));
            q_.push_back(on_device(q.back(), DType::bf16));
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

    std::vector<float> o(int pass) const {
        std::vector<float> numbers(elements_of_q);
        o_[static_cast<std::size_t>(pass)].download(numbers.data());
        return numbers;
    }
    std::vector<float> lse(int pass) const {
        std::vector<float> numbers(std::size_t{rows} * group);
        lse_[static_cast<std::size_t>(pass)].download(numbers.data());
        return numbers;
    }

    const std::vector<double> k, v;
    std::vector<std::vector<double>> q;  // by pass
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

/// In fp64, over the keys of all ranks. A p rounded to bf16 is off by 2^-9 at most. Scores and sums in fp32 add less
/// than 2^-11: up to 3000 terms of 2^-24 each, and scores that are off by less than 2^-15.
void check_rows(const std::vector<std::unique_ptr<VirtualRank>>& ranks, int rank, int pass) {
    const auto& self = *ranks[static_cast<std::size_t>(rank)];
    const auto o = self.o(pass), lse = self.lse(pass);
    const auto& q = self.q[static_cast<std::size_t>(pass)];
    double worst = 0, worst_lse = 0;
    for (std::size_t row = 0; row < std::size_t{rows} * group; ++row) {
        std::vector<double> sum(dim), magnitude(dim);
        double total = 0;
        for (const auto& other : ranks)
            for (std::size_t key = 0; key < keys; ++key) {
                double score = 0;
                for (std::size_t d = 0; d < dim; ++d) score += q[row * dim + d] * other->k[key * dim + d];
                const double p = std::exp(score / std::sqrt(dim));
                total += p;
                for (std::size_t d = 0; d < dim; ++d) {
                    sum[d] += p * other->v[key * dim + d];
                    magnitude[d] += p * std::abs(other->v[key * dim + d]);
                }
            }
        worst_lse = std::max(worst_lse, std::abs(static_cast<double>(lse[row]) - std::log(total)));
        for (std::size_t d = 0; d < dim; ++d) {
            const auto off = std::abs(static_cast<double>(o[row * dim + d]) - sum[d] / total);
            worst = std::max(worst, std::isnan(off) ? INFINITY : off / (magnitude[d] / total));
        }
    }
    BOOST_TEST(worst <= std::ldexp(1, -9) + std::ldexp(1, -11));
    BOOST_TEST(worst_lse <= std::ldexp(1, -11));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(merging, *boost::unit_test::precondition(has_hopper))

// All launches are enqueued at once, the last rank's first, so that only flags order them.
BOOST_DATA_TEST_CASE(launches_of_all_ranks_give_attention_over_all_keys_pass_after_pass, data::make({1, 2, 3}), count) {
    const auto ranks = make_ranks(count, std::chrono::seconds(10));
    for (int rank = count; rank-- > 0;)
        for (int pass = 0; pass < passes; ++pass) ranks[static_cast<std::size_t>(rank)]->launch(pass, ranks);
    RINGLAB_CUDA(cudaDeviceSynchronize());
    for (int rank = 0; rank < count; ++rank) {
        BOOST_TEST(*ranks[static_cast<std::size_t>(rank)]->reported == 0u);
        for (int pass = 0; pass < passes; ++pass) BOOST_TEST_CONTEXT("rank " << rank << ", pass " << pass)
        check_rows(ranks, rank, pass);
    }
}

BOOST_AUTO_TEST_CASE(repeats_give_the_same_bits) {
    std::vector<std::vector<float>> found;
    for (int repeat = 0; repeat < 2; ++repeat) {
        const auto ranks = make_ranks(3, std::chrono::seconds(10));
        for (const int rank : {repeat, 1 - repeat, 2})  // another one is last
            ranks[static_cast<std::size_t>(rank)]->launch(0, ranks);
        RINGLAB_CUDA(cudaDeviceSynchronize());
        found.push_back(ranks[0]->o(0));
    }
    BOOST_TEST((found[0] == found[1]));
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
