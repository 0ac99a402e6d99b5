// The attention kernels against the fp64 reference, over masks, layouts, ranks, dims, heads, types and policies: as the
// executor calls them.

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <future>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;

/// A factor of K for each token.
using KeyFactor = double (*)(std::size_t token);

void multiply_keys(reference::Tensor& k, KeyFactor factor, DType dtype) {
    for (std::size_t b = 0; b < k.shape(0); ++b)
        for (std::size_t t = 0; t < k.shape(1); ++t)
            for (std::size_t h = 0; h < k.shape(2); ++h)
                for (std::size_t d = 0; d < k.shape(3); ++d) k(b, t, h, d) *= factor(t);
    k = reference::rounded(std::move(k), dtype);
}

/// Agreement of many cases with the reference. The error model takes several times as long as the reference, on one
/// core, and both take far longer than the device: so each core computes them for a case of its own.
class Cases {
public:
    ~Cases() noexcept(false) {
        if (std::uncaught_exceptions() == 0) finish(0);
    }

    void add(const RingCase& c, KeyFactor factor = nullptr) {
        finish(std::max(1u, std::thread::hardware_concurrency()) - 1);
        std::function<void(reference::Inputs&)> change;
        if (factor) change = [=, dtype = c.problem.dtype](auto& inputs) { multiply_keys(inputs.k, factor, dtype); };
        expected_.push_back(
            {c, std::async(std::launch::async, [=, seed = new_seed()] { return expected_of(c, seed, change, 1); })});
    }

private:
    void finish(std::size_t most_left) {
        for (; expected_.size() > most_left; expected_.pop_front())
            agrees(expected_.front().first, expected_.front().second.get());
    }

    const reference::SingleThreadedBlas guard_;
    std::deque<std::pair<RingCase, std::future<Expected>>> expected_;
};

/// A ring on one device by the kernels of one family.
RingCase ring_of(const std::string& family, const layouts::Problem& problem, const std::string& mask = "causal",
                 const std::string& layout = "contiguous", int ranks = 1, bool deterministic = false) {
    RingCase c{problem, mask, layout, "ring", ranks};
    c.options.kernels = gpu::kernel_family(family);
    c.options.deterministic = deterministic;
    c.options.devices = {0};
    c.options.timelines = layouts::Timelines::none;
    return c;
}

layouts::Problem problem(std::int64_t tokens, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                         std::int64_t value_dim, DType dtype = DType::bf16, std::int64_t batch = 1) {
    return {.batch = batch,
            .tokens = tokens,
            .query_heads = query_heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .value_dim = value_dim,
            .dtype = dtype};
}

const std::vector<std::string> masks{"full",
                                     "causal",
                                     "window:100,0",
                                     "window:31,17",
                                     "causal+documents:97,43,300,1,129,720",
                                     "documents:500,3,787",
                                     "prefix:333",
                                     "block-causal:129,6x172,129",
                                     "padded-segments:257/200,256/0,300,477/476",
                                     "shared-question:389,211,1,500,189",
                                     "prefix-documents:129,171,400,1,300,289",
                                     "causal+window:64,0+sink:4",
                                     "causal+valid:0-700,733-1201"};
// A sample: a kernel sees runs of positions, and these have one, two, and strides. Whole layouts are in
// executor_test.cpp.
const std::vector<std::string> layout_names{"contiguous", "zigzag", "striped", "striped:5"};

struct Dims {
    std::int64_t head, value;
};
std::ostream& operator<<(std::ostream& out, const Dims& d) { return out << d.head << "/" << d.value; }

const std::vector<Dims> all_dims{{64, 64},   {128, 128}, {192, 128}, {256, 256}, {16, 16},
                                 {40, 24},   {33, 17},   {80, 96},   {128, 64},  {64, 128},
                                 {129, 127}, {200, 250}, {192, 192}, {256, 64},  {136, 248}};

// A block of the hopper family's backward kernel has 128 keys, or 64 where dims are split between warpgroups.
const std::vector<std::int64_t> whole_and_split_dims{128, 256};

// A warpgroup hands over one part of dq, two, or two that lie in the stages of dO and Q.
const std::vector<Dims> dims_in_order{{128, 128}, {192, 128}, {256, 256}};

BOOST_AUTO_TEST_SUITE(attend, *boost::unit_test::precondition(has_gpu))

// 1290 tokens over 3 ranks: zigzag chunks of 215, shards of 430; no tile side divides them.
BOOST_DATA_TEST_CASE(every_mask_and_layout_agrees_with_the_reference, data::make(families()), family) {
    Cases cases;
    for (const auto& mask : masks)
        for (const auto& layout : layout_names)
            cases.add(ring_of(family, problem(1290, 4, 2, 64, 64), mask, layout, 3));
}

BOOST_DATA_TEST_CASE(every_mask_agrees_in_order_too, data::make(families()), family) {
    Cases cases;
    for (const auto& mask : masks)
        for (const auto& dims : dims_in_order)
            cases.add(ring_of(family, problem(1290, 4, 2, dims.head, dims.value), mask, "zigzag", 3, true));
}

BOOST_DATA_TEST_CASE(every_mask_agrees_where_dims_are_split, data::make(families()), family) {
    Cases cases;
    for (const auto& mask : masks) cases.add(ring_of(family, problem(1290, 4, 2, 256, 256), mask, "striped:5", 3));
}

BOOST_DATA_TEST_CASE(every_pair_of_dims_agrees, data::make(families()), family) {
    Cases cases;
    for (const auto& dims : all_dims)
        for (const auto dtype : {DType::bf16, DType::fp16})
            for (const bool deterministic : {false, true})
                cases.add(ring_of(family, problem(388, 4, 2, dims.head, dims.value, dtype, 2), "causal", "zigzag", 2,
                                  deterministic));
}

// The hopper family computes p of a full tile with the maxima of earlier tiles, unless a row's sum grows past a limit.
// From one tile to the next the largest score of a row rises by about 2^4, by 2^30 or by more than fp32 can hold, or
// falls.
BOOST_DATA_TEST_CASE(maxima_may_rise_late, data::make(families()), family) {
    Cases cases;
    for (const auto dtype : {DType::bf16, DType::fp16})
        for (const auto& dims : std::vector<Dims>{{64, 64}, {128, 128}, {192, 128}, {256, 256}})
            for (const KeyFactor key_factor :
                 std::vector<KeyFactor>{[](std::size_t t) { return t < 400 ? 0.1 : 1.0; },
                                        [](std::size_t t) { return t < 400 ? 0.1 : 7.0; },
                                        [](std::size_t t) { return t < 400 ? 0.1 : 60.0; },
                                        [](std::size_t t) { return t < 400 ? 60.0 : 0.1; }})
                cases.add(ring_of(family, problem(800, 2, 1, dims.head, dims.value, dtype), "full"), key_factor);
}

BOOST_AUTO_TEST_CASE(long_rows_agree) {
    Cases cases;
    for (const auto* mask : {"full", "window:3000,3000", "documents:3333,67", "block-causal:3150,5x50"})
        for (const auto dtype : {DType::bf16, DType::fp16})
            for (const int heads : {2, 3, 4})
                cases.add(ring_of("portable", problem(3400, heads, 1, 128, 120, dtype), mask));
}

// Rows of a zigzag rank with keys of the other one: half of the row tiles see nothing, among others with 24 key tiles
// and more. They give back their carry.
BOOST_AUTO_TEST_CASE(heads_in_one_launch_have_the_bits_of_launches_of_their_own,
                     *boost::unit_test::precondition(has_hopper)) {
    constexpr int ranks = 2;
    constexpr std::int64_t tokens = 16384, heads = 32, group = 4, dim = 128, own = tokens / ranks, row = own * dim;
    const auto mask = layouts::make_mask("causal", tokens);
    const auto layout = layouts::make_layout("zigzag", tokens, ranks);
    const gpu::WorkList work(mask, std::make_shared<gpu::RowBounds>(mask, layout.shard(0)),
                             std::make_shared<gpu::KeyPositions>(mask, layout.shard(1)), {});
    const auto tensor = [](std::int64_t count, DType dtype) {
        return gpu::DeviceBuffer(static_cast<std::size_t>(count * layouts::bytes_of(dtype)));
    };
    std::mt19937_64 generator(23);
    const auto random = [&](std::int64_t count) {  // bf16 of both signs, from 2^-2 to 2^1
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
        for (auto& x : bits) {
            const auto any = generator();
            x = static_cast<std::uint16_t>((any & 0x8000) | (0x3e80 + (any & 0x7fff) % 0x0180));
        }
        return gpu::uploaded(bits);
    };
    const auto q = random(heads * row), k = random(heads / group * row), v = random(heads / group * row);
    auto o = tensor(heads * row, DType::bf16), lse = tensor(heads * own, DType::fp32);
    auto carry_o = tensor(heads * row, DType::fp32), carry_m = tensor(heads * own, DType::fp32);
    auto carry_l = tensor(heads * own, DType::fp32);
    for (auto* carry : {&carry_o, &carry_m, &carry_l}) carry->fill(0, nullptr);  // of rows that have seen nothing
    const gpu::Strides by_head{heads * row, dim, row}, rows_by_head{heads * own, 1, own};
    const auto attend = [&](std::int64_t first_head, std::int64_t kv_heads, std::int64_t per_kv_head) {
        const auto of_query = [&](const gpu::DeviceBuffer& buffer, DType dtype) {
            return gpu::View{buffer.data(), dtype, by_head}.from_head(first_head);
        };
        const auto of_rows = [&](const gpu::DeviceBuffer& buffer) {
            return gpu::RowView{buffer.as<float>(), rows_by_head}.from_head(first_head);
        };
        const auto of_keys = [&](const gpu::DeviceBuffer& buffer) {
            return gpu::View{buffer.data(), DType::bf16, by_head}.from_head(first_head / group);
        };
        gpu::attend_forward({.shape = {.kv_heads = kv_heads, .query_heads_per_kv_head = per_kv_head, .scale = 0.1},
                             .q = of_query(q, DType::bf16),
                             .k = of_keys(k),
                             .v = of_keys(v),
                             .first = false,
                             .carry = {of_query(carry_o, DType::fp32), of_rows(carry_m), of_rows(carry_l)},
                             .result = {.o = of_query(o, DType::bf16), .o_rounded = {}, .lse = of_rows(lse)}},
                            work, nullptr);
    };
    const auto results = [&] {
        std::pair bits{std::vector<std::uint16_t>(heads * row), std::vector<std::uint32_t>(heads * own)};
        o.download(bits.first.data());
        lse.download(bits.second.data());
        return bits;
    };
    for (std::int64_t head = 0; head < heads; ++head) attend(head, 1, 1);
    const auto expected = results();

    o.fill(0xff, nullptr);
    attend(0, heads / group, group);
    BOOST_TEST((results() == expected));
}

struct Heads {
    std::int64_t query, kv;
    int groups;
};
std::ostream& operator<<(std::ostream& out, const Heads& h) {
    return out << h.query << ":" << h.kv << " in " << h.groups;
}

BOOST_DATA_TEST_CASE(heads_may_be_shared_and_go_in_groups,
                     data::make(families()) *
                         data::make(std::vector<Heads>{{1, 1, 1}, {4, 4, 2}, {6, 1, 1}, {6, 2, 2}, {8, 4, 4}}) *
                         data::make(whole_and_split_dims),
                     family, heads, dim) {
    auto c = ring_of(family, problem(291, heads.query, heads.kv, dim, dim, DType::bf16, 3), "causal", "contiguous", 3);
    c.schedule = fmt::format("all-gather:{}", heads.groups);
    agrees_with_the_reference(c);
}

// On 132 multiprocessors the batch decides whether an item of the backward pass has a block to itself or is shared by
// 2, 4 or 8, which add up.
BOOST_DATA_TEST_CASE(few_items_are_shared_among_blocks, data::make(families()), family) {
    Cases cases;
    for (const std::int64_t batch : {1, 40, 100, 290})
        for (const bool deterministic : {false, true})
            for (const auto dim : whole_and_split_dims)
                cases.add(ring_of(family, problem(130, 2, 1, dim, dim, DType::bf16, batch), "causal", "contiguous", 1,
                                  deterministic));
}

// Items of 128 keys (64 where dims are split) of many heads: sections of them that fill 132 multiprocessors, whose
// blocks go over rows in step.
BOOST_DATA_TEST_CASE(sections_of_items_in_step_agree, data::make({64, 256}) * data::make({"causal", "full"}), dim,
                     mask) {
    agrees_with_the_reference(ring_of("auto", problem(500, 64, 64, dim, dim), mask));
}

struct ChunkCase {
    std::int64_t tokens, query_heads, kv_heads, dim;
};
std::ostream& operator<<(std::ostream& out, const ChunkCase& c) {
    return out << c.tokens << " tokens, " << c.query_heads << ":" << c.kv_heads << " heads of " << c.dim;
}

// 256 items a head in two chunks; 102 in three with some left over; and 63, of which in order some are left of chunks
// of 16, since 8 query heads read each. In order items go otherwise, so what both add up differs by roundings alone:
// 2^-23 at most for each of the products of 16 rows (or keys) that a sum is made of.
BOOST_DATA_TEST_CASE(chunks_of_items_in_step_agree_with_items_in_order,
                     data::make({"causal", "full"}) *
                         data::make(std::vector<ChunkCase>{{32768, 4, 4, 64}, {13000, 8, 8, 64}, {8000, 64, 8, 16}}),
                     mask_name, chunks) {
    auto c =
        ring_of("auto", problem(chunks.tokens, chunks.query_heads, chunks.kv_heads, chunks.dim, chunks.dim), mask_name);
    const auto inputs = host_inputs(c.problem, 23);
    const auto in_lockstep = run_case(c, inputs).outputs;
    c.options.deterministic = true;
    const auto in_order = run_case(c, inputs).outputs;
    BOOST_TEST((run_case(c, inputs).outputs.dq.values == in_order.dq.values));
    const auto d = reference::deviations(to_reference(in_lockstep), to_reference(in_order));
    const auto products = chunks.tokens * c.problem.query_heads_per_kv_head() / 16;
    const double most = static_cast<double>(products) * std::ldexp(1.0, -23);
    BOOST_TEST(d.dq.relative_rms <= most);
    BOOST_TEST(d.dk.relative_rms <= most);
    BOOST_TEST(d.dv.relative_rms <= most);
}

BOOST_DATA_TEST_CASE(few_tokens_are_enough,
                     data::make(families()) * data::make({2, 7, 16, 63, 64, 65, 97, 128, 129}) *
                         data::make(whole_and_split_dims),
                     family, tokens, dim) {
    agrees_with_the_reference(ring_of(family, problem(tokens, 2, 1, dim, dim)));
}

/// Rows of the last `tokens` alone, which one of two ranks owns: over the keys of both, one behind the other's carry.
void add_few_rows(Cases& cases, RingCase c, std::int64_t tokens) {
    c.problem.queries = {{c.problem.tokens - tokens, c.problem.tokens}};
    c.ranks = 2;
    cases.add(c);
}

BOOST_DATA_TEST_CASE(few_rows_over_many_keys_agree_under_every_mask, data::make(families()), family) {
    Cases cases;
    for (const auto& mask : masks)
        for (const int tokens : {1, 16})
            add_few_rows(cases, ring_of(family, problem(1290, 4, 1, 128, 128), mask), tokens);
}

// 3 tokens of 16 heads a kv head are three units of rows, of 5 heads one that is not full.
BOOST_DATA_TEST_CASE(few_rows_over_many_keys_agree_for_all_dims_and_heads, data::make(families()), family) {
    Cases cases;
    for (const auto& dims : all_dims)
        for (const int group : {1, 5, 16})
            for (const auto accumulation : {Accumulation::carry, Accumulation::partials}) {
                const auto dtype = group == 5 ? DType::fp16 : DType::bf16;
                auto c = ring_of(family, problem(300, 2 * group, 2, dims.head, dims.value, dtype, 2));
                c.accumulation = accumulation;
                add_few_rows(cases, c, 3);
            }
}

BOOST_DATA_TEST_CASE(few_rows_with_a_soft_cap_agree, data::make(families()), family) {
    Cases cases;
    for (const double scale : {0.3, -0.1}) {
        auto p = problem(5000, 8, 1, 128, 128);
        p.scale = scale;
        p.soft_cap = 5;
        add_few_rows(cases, ring_of(family, p), 2);
    }
}

BOOST_DATA_TEST_CASE(a_single_token_copies_v_and_has_gradient_for_it_alone, data::make(families()), family) {
    const auto c = ring_of(family, problem(1, 2, 1, 128, 128));
    const auto inputs = random_inputs(c.problem, 17);
    const auto found = to_reference(run_case(c, host_inputs(inputs, c.problem.dtype)).outputs);
    for (std::size_t d = 0; d < 128; ++d) {
        BOOST_TEST(found.o(0, 0, 1, d) == inputs.v(0, 0, 0, d));
        BOOST_TEST(std::abs(found.dv(0, 0, 0, d) - inputs.dout(0, 0, 0, d) - inputs.dout(0, 0, 1, d)) < 1e-5);
        // do.v - delta is 0 but for the order of fp32 sums over 128 products.
        BOOST_TEST(std::abs(found.dq(0, 0, 1, d)) < 1e-5);
        BOOST_TEST(std::abs(found.dk(0, 0, 0, d)) < 1e-5);
    }
}

BOOST_DATA_TEST_CASE(any_scale_and_soft_cap_agree,
                     data::make(families()) * data::make({0.03, 0.0, -0.1, 0.7}) * data::make({0.0, 5.0, 50.0}) *
                         data::make({false, true}) * data::make(whole_and_split_dims),
                     family, scale, cap, deterministic, dim) {
    auto p = problem(260, 2, 1, dim, dim);
    // 0 stands for the default in a Problem.
    p.scale = scale;
    p.soft_cap = cap;
    agrees_with_the_reference(ring_of(family, p, "causal", "zigzag", 2, deterministic));
}

// Into an fp32 output, or one that is rounded after each block.
BOOST_DATA_TEST_CASE(policies_keep_their_bounds,
                     data::make(families()) * data::make({"carry", "partials", "rounded running output"}) *
                         data::make({DType::fp32, DType::bf16}) * data::make({"causal", "window:50,0"}),
                     family, policy, gradient_dtype, mask) {
    auto c = ring_of(family, problem(1032, 4, 2, 128, 128), mask, "zigzag", 4);
    c.accumulation = policy == std::string("carry") ? Accumulation::carry : Accumulation::partials;
    c.gradient_dtype = gradient_dtype;
    c.options.round_running_output = policy == std::string("rounded running output");
    agrees_with_the_reference(c);
}

// Rows past 50 and keys past 60 are not there; rows 50 to 60 see nothing, nor do any see keys from 50 on.
BOOST_DATA_TEST_CASE(rows_that_see_nothing_are_exact, data::make(families()) * data::make({false, true}), family,
                     deterministic) {
    const auto c = ring_of(family, problem(192, 2, 1, 128, 128), "causal+valid:0-50", "zigzag", 2, deterministic);
    const auto mask = layouts::make_mask(c.mask, 192);
    const auto found = to_reference(run_case(c, host_inputs(c.problem, 7)).outputs);
    for (std::size_t i = 0; i < 192; ++i) {
        if (mask.row(static_cast<std::int64_t>(i)) != layouts::RowKeys{}) continue;
        for (std::size_t h = 0; h < 2; ++h) {
            BOOST_TEST(found.lse(0, i, h) == -std::numeric_limits<double>::infinity());
            for (std::size_t d = 0; d < 128; ++d) {
                BOOST_TEST_REQUIRE(found.o(0, i, h, d) == 0.0);
                BOOST_TEST_REQUIRE(found.dq(0, i, h, d) == 0.0);
            }
        }
        for (std::size_t d = 0; d < 128; ++d) {
            BOOST_TEST_REQUIRE(found.dk(0, i, 0, d) == 0.0);
            BOOST_TEST_REQUIRE(found.dv(0, i, 0, d) == 0.0);
        }
    }
}

BOOST_DATA_TEST_CASE(repeats_in_order_are_bit_identical, data::make(families()) * data::make(dims_in_order), family,
                     dims) {
    const auto c = ring_of(family, problem(1290, 4, 2, dims.head, dims.value), "causal", "zigzag", 3, true);
    const auto inputs = host_inputs(c.problem, 11);
    check_identical(run_case(c, inputs).outputs, run_case(c, inputs).outputs);
}

BOOST_AUTO_TEST_CASE(arguments_that_do_not_fit_are_refused) {
    const auto mask = layouts::make_mask("causal", 64);
    const layouts::Run all{0, 1, 64};
    const auto rows = std::make_shared<gpu::RowBounds>(mask, std::span(&all, 1));
    const auto keys = std::make_shared<gpu::KeyPositions>(mask, std::span(&all, 1));
    const gpu::WorkList work(mask, rows, keys, {.head_dim = 64, .value_dim = 64});
    gpu::ForwardArgs args{.shape = {.head_dim = 64, .value_dim = 64}};
    BOOST_CHECK_THROW(gpu::attend_forward(args, work, nullptr), Error);  // no q
    args.shape.head_dim = 128;
    BOOST_CHECK_THROW(gpu::attend_forward(args, work, nullptr), Error);  // work list of other dims
    args.shape = {.head_dim = 64, .value_dim = 64, .dtype = DType::fp32};
    BOOST_CHECK_THROW(gpu::attend_forward(args, work, nullptr), Error);
    BOOST_CHECK_THROW(gpu::WorkList(mask, rows, keys, {.head_dim = 257, .value_dim = 64}), Error);
}

BOOST_DATA_TEST_CASE(strides_that_bulk_copies_cannot_take_are_refused_by_hopper_alone, data::make(families()), family) {
    const auto mask = layouts::make_mask("causal", 64);
    const layouts::Run all{0, 1, 64};
    const gpu::WorkList work(mask, std::make_shared<gpu::RowBounds>(mask, std::span(&all, 1)),
                             std::make_shared<gpu::KeyPositions>(mask, std::span(&all, 1)),
                             {.head_dim = 64, .value_dim = 64, .family = gpu::kernel_family(family)});
    const gpu::DeviceBuffer memory(1 << 20);
    const gpu::View odd{memory.as<char>() + 2, DType::bf16, gpu::dense_strides(64, 1, 64)};
    const gpu::ForwardArgs args{.shape = {.head_dim = 64, .value_dim = 64}, .q = odd, .k = odd, .v = odd};
    if (family == "hopper")
        BOOST_CHECK_THROW(gpu::attend_forward(args, work, nullptr), Error);
    else
        gpu::attend_forward(args, work, nullptr);
    BOOST_TEST(cudaDeviceSynchronize() == cudaSuccess);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
