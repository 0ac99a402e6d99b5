// Several blocks in one launch: what it waits for, and what comes of waiting in vain.

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/hopper/fused_work.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::DeviceBuffer;
using layouts::DType;
using layouts::Pass;

/// Memory that copy engines reach without a multiprocessor.
class PinnedBits {
public:
    explicit PinnedBits(std::size_t count) : count_(count) {
        RINGLAB_CUDA(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes()));
        std::mt19937 bits(7);
        // bf16 of both signs, from 2^-2 to 2^1.
        for (std::size_t i = 0; i < count; ++i)
            data_[i] = static_cast<std::uint16_t>((bits() & 0x8000) | (0x3e80 + bits() % 0x0180));
    }
    ~PinnedBits() { cudaFreeHost(data_); }
    PinnedBits(const PinnedBits&) = delete;
    PinnedBits& operator=(const PinnedBits&) = delete;

    const std::uint16_t* data() const { return data_; }
    std::size_t bytes() const { return count_ * sizeof(std::uint16_t); }

private:
    std::size_t count_;
    std::uint16_t* data_ = nullptr;
};

/// The second of two ranks, whose launch takes its own block and then, head by head, the other's, which is NaN until it
/// comes.
class TwoBlocks {
public:
    static constexpr std::int64_t kv_heads = 2;

    struct Options {
        std::int64_t dim = 128, tokens = 700;  // of a rank
        std::int64_t group = 2;
        std::chrono::nanoseconds most_wait = std::chrono::seconds(20);
        bool deterministic = true;
        bool adds = false;  // to the gradient of the other's block, which comes after the block
    };

    explicit TwoBlocks(Pass pass) : TwoBlocks(pass, Options{}) {}
    TwoBlocks(Pass pass, const Options& options)
        : dim_(options.dim),
          group_(options.group),
          pass_(pass),
          mask_(layouts::make_mask("causal", 2 * options.tokens)),
          layout_(layouts::make_layout("zigzag", 2 * options.tokens, 2)),
          own_(layout_.shard_tokens(1) * kv_heads * dim_ * 2),
          other_(layout_.shard_tokens(0) * kv_heads * dim_ * 2),
          q_(query_elements()),
          o_(query_elements() * sizeof(float)),
          adds_(options.adds),
          gradients_((own_.bytes() + other_.bytes()) * 2),
          earlier_(other_.bytes() / sizeof(std::uint16_t) * 2) {
        own_device_ = DeviceBuffer(own_.bytes());
        own_device_.upload(own_.data());
        other_device_ = DeviceBuffer(other_.bytes());
        q_device_ = DeviceBuffer(q_.bytes());
        q_device_.upload(q_.data());
        lse_ = DeviceBuffer(static_cast<std::size_t>(rows()) * sizeof(float));
        statistics_ = gpu::uploaded(std::vector<float>(static_cast<std::size_t>(2 * rows()), 0.5f));
        auto& blocks = blocks_;
        for (int head = 0; head < kv_heads; ++head) {
            blocks.push_back(block(own_device_, 1, head, 0));
            blocks.push_back(block(other_device_, 0, head, own_.bytes() * 2));
            blocks.back().arrives = true;
            blocks.back().adds = blocks.back().gradient_arrives = adds_;
        }
        work_ = std::make_unique<gpu::hopper::HopperFusedWork>(
            mask_, std::make_shared<gpu::RowBounds>(mask_, layout_.shard(1)), blocks,
            gpu::FusedOptions{{pass, dim_, dim_, options.deterministic, gpu::kernel_family("hopper")},
                              shape(),
                              1,
                              options.most_wait});
        begin();
    }

    void begin() {
        other_device_.fill(0xff, stream_);
        o_.fill(0xff, stream_);
        gradients_.fill(0xff, stream_);
        if (pass_ == Pass::backward) o_.fill(0, stream_);
        stream_.synchronize();
        work_->begin_pass(++passes_);
    }

    void launch() {
        const auto strides = gpu::dense_strides(layout_.shard_tokens(1), kv_heads * group_, dim_);
        if (pass_ == Pass::forward) {
            gpu::ForwardArgs args;
            args.shape = shape();
            args.q = {q_device_.data(), DType::bf16, strides};
            args.result.o = {o_.data(), DType::fp32, strides};
            args.result.lse = {lse_.as<float>(), gpu::dense_strides(layout_.shard_tokens(1), kv_heads * group_)};
            work_->attend_forward(args, stream_);
        } else {
            gpu::BackwardArgs args;
            args.shape = shape();
            args.q = args.dout = {q_device_.data(), DType::bf16, strides};
            args.statistics = {statistics_.as<float>(),
                               gpu::statistics_strides(kv_heads * group_, layout_.shard_tokens(1))};
            args.dq = {o_.data(), DType::fp32, strides};
            work_->attend_backward(args, stream_);
        }
    }

    void bring_the_other() {
        RINGLAB_CUDA(
            cudaMemcpyAsync(other_device_.data(), other_.data(), other_.bytes(), cudaMemcpyHostToDevice, copies_));
        for (const std::size_t block : {1u, 3u}) work_->arrived(block, copies_);
    }

    /// Earlier parts of the gradient of the other's block.
    void bring_its_gradient() {
        RINGLAB_CUDA(cudaMemcpyAsync(gradients_.as<char>() + own_.bytes() * 2, earlier_.data(), earlier_.bytes(),
                                     cudaMemcpyHostToDevice, copies_));
        for (const std::size_t block : {1u, 3u}) work_->gradient_arrived(block, copies_);
    }

    /// The results() that a launch would have that adds to earlier parts, from those of one that overwrites.
    std::vector<float> with_earlier(std::vector<float> results) const {
        const auto first = results.size() - earlier_.bytes() / sizeof(float);
        const auto* earlier = reinterpret_cast<const float*>(earlier_.data());
        for (auto i = first; i < results.size(); ++i) results[i] += earlier[i - first];
        return results;
    }

    /// All that the launch has written: o, or dq, dk and dv of all blocks.
    std::vector<float> results() {
        stream_.synchronize();
        std::vector<float> all(o_.bytes() / sizeof(float));
        o_.download(all.data());
        if (pass_ == Pass::forward) return all;
        const auto begin = all.size();
        all.resize(begin + gradients_.bytes() / sizeof(float));
        gradients_.download(all.data() + begin);
        return all;
    }

    /// dk and dv of the own block's first head, as they are when copies_ has come so far.
    std::vector<float> first_gradient() {
        std::vector<float> all(own_.bytes() / sizeof(std::uint16_t) / kv_heads);
        RINGLAB_CUDA(cudaMemcpyAsync(all.data(), gradients_.data(), all.size() * sizeof(float), cudaMemcpyDeviceToHost,
                                     copies_));
        copies_.synchronize();
        return all;
    }

    /// results() of the backward pass, each block by a launch of its own.
    std::vector<float> results_of_launches_apart() {
        begin();
        bring_the_other();
        copies_.synchronize();
        const auto tokens = layout_.shard_tokens(1);
        const auto rows = std::make_shared<gpu::RowBounds>(mask_, layout_.shard(1));
        const auto strides = gpu::dense_strides(tokens, kv_heads * group_, dim_);
        for (const auto& block : blocks_) {
            const auto keys = std::make_shared<gpu::KeyPositions>(mask_, block.keys);
            const gpu::WorkList list(mask_, rows, keys, {pass_, dim_, dim_, false, gpu::kernel_family("hopper")});
            const auto first_head = block.first_head * group_;
            const gpu::Statistics statistics{statistics_.as<float>(),
                                             gpu::statistics_strides(kv_heads * group_, tokens)};
            gpu::BackwardArgs args;
            args.shape = shape();
            args.shape.kv_heads = 1;
            args.q = args.dout = {q_device_.as<std::uint16_t>() + first_head * strides.head, DType::bf16, strides};
            args.k = block.k;
            args.v = block.v;
            args.statistics = statistics.from_head(first_head);
            args.dq = {o_.as<float>() + first_head * strides.head, DType::fp32, strides};
            args.dk = block.dk;
            args.dv = block.dv;
            attend_backward(args, list, stream_);
            stream_.synchronize();
        }
        return results();
    }

    gpu::hopper::HopperFusedWork& work() { return *work_; }
    const gpu::Stream& stream() const { return stream_; }
    const gpu::Stream& copies() const { return copies_; }

private:
    std::int64_t rows() const { return layout_.shard_tokens(1) * kv_heads * group_; }
    std::size_t query_elements() const { return static_cast<std::size_t>(rows() * dim_); }
    gpu::AttendShape shape() const {
        return {
            .kv_heads = kv_heads, .query_heads_per_kv_head = group_, .head_dim = dim_, .value_dim = dim_, .scale = 0.1};
    }

    gpu::FusedBlock block(const DeviceBuffer& kv, int owner, int head, std::size_t gradient) {
        const auto elements = layout_.shard_tokens(owner) * dim_;  // of K of a head
        const auto place = [&](void* memory, DType dtype, std::int64_t at) -> gpu::View {
            return {static_cast<char*>(memory) + at * layouts::bytes_of(dtype), dtype,
                    gpu::dense_strides(layout_.shard_tokens(owner), 1, dim_)};
        };
        auto* to = gradients_.as<char>() + gradient;
        return {.owner = owner,
                .keys = layout_.shard(owner),
                .first_head = head,
                .k = place(kv.data(), DType::bf16, 2 * head * elements),
                .v = place(kv.data(), DType::bf16, (2 * head + 1) * elements),
                .dk = place(to, DType::fp32, 2 * head * elements),
                .dv = place(to, DType::fp32, (2 * head + 1) * elements),
                .is_awaited = pass_ == Pass::backward};
    }

    std::int64_t dim_, group_;
    Pass pass_;
    layouts::Mask mask_;
    layouts::Layout layout_;
    PinnedBits own_, other_, q_;
    DeviceBuffer own_device_, other_device_, q_device_, o_, lse_, statistics_;
    bool adds_;
    DeviceBuffer gradients_;
    PinnedBits earlier_;  // pairs of which are fp32
    std::uint32_t passes_ = 0;
    gpu::Stream stream_, copies_{gpu::Stream::Use::transfers};
    std::vector<gpu::FusedBlock> blocks_;
    std::unique_ptr<gpu::hopper::HopperFusedWork> work_;
};

bool all_finite(const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

BOOST_AUTO_TEST_SUITE(fused, *boost::unit_test::precondition(has_hopper))

BOOST_DATA_TEST_CASE(a_launch_reads_a_block_only_once_it_has_arrived,
                     data::make({Pass::forward, Pass::backward}) * data::make({64, 128, 192, 256}) *
                         data::make({700, 3600}),
                     pass, dim, tokens) {
    TwoBlocks two(pass, {.dim = dim, .tokens = tokens});
    two.bring_the_other();
    two.copies().synchronize();
    two.launch();
    const auto expected = two.results();
    BOOST_TEST(all_finite(expected));  // where nothing is written is NaN
    for (int repeat = 0; repeat < 3; ++repeat) {
        two.begin();
        two.launch();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        BOOST_TEST(cudaStreamQuery(two.stream()) == cudaErrorNotReady);
        two.bring_the_other();
        BOOST_TEST((two.results() == expected));
        BOOST_TEST(!two.work().late().has_value());
    }
}

// 11 query tiles of 40 heads are three rounds of the multiprocessors: all are given out head by head.
BOOST_AUTO_TEST_CASE(every_unit_is_done_where_heads_come_one_after_another) {
    TwoBlocks two(Pass::forward, {.tokens = 1400, .group = 40});
    BOOST_TEST(two.work().parameters().head_by_head == two.work().work_tiles());
    two.launch();
    two.bring_the_other();
    BOOST_TEST(all_finite(two.results()));  // where nothing is written is NaN
    BOOST_TEST(!two.work().late().has_value());
}

// The gradient is NaN until it comes, so a launch that added to it too early would show.
BOOST_DATA_TEST_CASE(a_launch_adds_to_a_gradient_once_that_has_arrived,
                     data::make({64, 128, 192, 256}) * data::make({700, 3600}), dim, tokens) {
    TwoBlocks overwrites(Pass::backward, {.dim = dim, .tokens = tokens});
    overwrites.bring_the_other();
    overwrites.launch();
    const auto expected = overwrites.with_earlier(overwrites.results());
    TwoBlocks two(Pass::backward, {.dim = dim, .tokens = tokens, .adds = true});
    for (int repeat = 0; repeat < 3; ++repeat) {
        two.begin();
        two.launch();
        two.bring_the_other();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        BOOST_TEST(cudaStreamQuery(two.stream()) == cudaErrorNotReady);
        two.bring_its_gradient();
        BOOST_TEST((two.results() == expected));
        BOOST_TEST(!two.work().late().has_value());
    }
}

// 256 items a block and head: their thread blocks go over rows in step. Sums are made in another order alone: 2^-23 at
// most for each of the 2048 products of 16 keys (or rows of both query heads) that one is made of.
BOOST_AUTO_TEST_CASE(a_launch_in_step_gives_what_launches_apart_give) {
    TwoBlocks two(Pass::backward, {.dim = 256, .tokens = 16384, .deterministic = false});
    BOOST_TEST(two.work().order().in_lockstep);
    two.bring_the_other();
    two.copies().synchronize();
    two.launch();
    const auto fused = two.results(), apart = two.results_of_launches_apart();
    BOOST_TEST_REQUIRE(fused.size() == apart.size());
    double difference = 0, all = 0;
    for (std::size_t i = 0; i < fused.size(); ++i) {
        difference += std::pow(fused[i] - apart[i], 2);
        all += std::pow(apart[i], 2);
    }
    BOOST_TEST(std::sqrt(difference / all) <= 2048 * std::ldexp(1.0, -23));
}

// A thread block has so many query tiles to go over that a copy behind a count that comes too early would be there
// first.
BOOST_AUTO_TEST_CASE(a_stream_goes_on_when_the_block_that_it_waits_for_has_ended) {
    TwoBlocks two(Pass::backward, {.dim = 256, .tokens = 5000});
    two.launch();
    two.work().wait_until_done(0, two.copies());
    BOOST_TEST(all_finite(two.first_gradient()));  // although the other block has not come
    BOOST_TEST(cudaStreamQuery(two.stream()) == cudaErrorNotReady);
    two.bring_the_other();
    for (const std::size_t block : {1u, 2u, 3u}) two.work().wait_until_done(block, two.copies());
    RINGLAB_CUDA(cudaStreamSynchronize(two.copies()));
    two.results();
    BOOST_TEST(!two.work().late().has_value());
}

BOOST_DATA_TEST_CASE(a_launch_whose_block_never_comes_ends_and_names_it, data::make({Pass::forward, Pass::backward}),
                     pass) {
    TwoBlocks two(pass, {.most_wait = std::chrono::milliseconds(200)});
    two.launch();
    const auto begin = std::chrono::steady_clock::now();
    two.stream().synchronize();
    const auto waited = std::chrono::steady_clock::now() - begin;
    BOOST_TEST((waited >= std::chrono::milliseconds(150)));
    BOOST_TEST((waited < std::chrono::seconds(5)));
    BOOST_TEST_REQUIRE(two.work().late().has_value());
    BOOST_TEST(two.work().late()->block % 2 == 1u);
    BOOST_TEST(!two.work().late()->gradient);
}

BOOST_AUTO_TEST_CASE(a_launch_whose_gradient_never_comes_ends_and_names_it) {
    TwoBlocks two(Pass::backward, {.most_wait = std::chrono::milliseconds(200), .adds = true});
    two.bring_the_other();
    two.launch();
    two.stream().synchronize();
    BOOST_TEST_REQUIRE(two.work().late().has_value());
    BOOST_TEST(two.work().late()->block % 2 == 1u);
    BOOST_TEST(two.work().late()->gradient);
}

BOOST_DATA_TEST_CASE(a_launch_that_is_given_up_ends_at_once, data::make({Pass::forward, Pass::backward}), pass) {
    TwoBlocks two(pass);
    two.launch();
    two.work().give_up();
    const auto begin = std::chrono::steady_clock::now();
    two.stream().synchronize();
    BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
