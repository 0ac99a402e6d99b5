#include "tests/gpu/attend_case.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "reference/tensors/rounding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <random>

std::ostream& ringlab::layouts::boost_test_print_type(std::ostream& out, DType dtype) {
    return out << to_string(dtype);
}

std::ostream& ringlab::layouts::boost_test_print_type(std::ostream& out, Pass pass) { return out << to_string(pass); }

std::ostream& ringlab::gpu::boost_test_print_type(std::ostream& out, Major major) {
    return out << (major == Major::queries ? "by query tile" : "by key tile");
}

namespace ringlab::tests {
namespace {

using gpu::Extent;
using layouts::DType;
using reference::Lse;
using reference::Tensor;
using Positions = std::vector<std::int64_t>;

/// A dense (batch, tokens, heads, dim) tensor on the device, full of NaN until written.
class DeviceTensor {
public:
    DeviceTensor() = default;
    DeviceTensor(Extent extent, DType dtype)
        : extent_(extent),
          dtype_(dtype),
          buffer_(static_cast<std::size_t>(extent.batch * extent.tokens * extent.heads * extent.dim *
                                           layouts::bytes_of(dtype))) {
        buffer_.fill(0xff, nullptr);
    }

    gpu::View view() const { return {buffer_.data(), dtype_, strides()}; }
    gpu::RowView rows() const { return {buffer_.as<float>(), strides()}; }
    const Extent& extent() const { return extent_; }
    void set_zero() { buffer_.fill(0, nullptr); }

    /// From the given tokens, and heads from `first_head` on, of a global tensor.
    void upload(const Tensor& global, const Positions& positions, std::size_t first_head = 0) {
        std::vector<double> values;
        for_each([&](std::size_t b, std::size_t i, std::size_t h, std::size_t d) {
            values.push_back(global(b, static_cast<std::size_t>(positions[i]), first_head + h, d));
        });
        buffer_ = on_device(values, dtype_);
    }

    template <class Visit>  // visit(batch, local token, head, dim, value)
    void download(Visit visit) const {
        const auto values = from_device(buffer_, dtype_);
        auto next = values.begin();
        for_each([&](std::size_t b, std::size_t i, std::size_t h, std::size_t d) { visit(b, i, h, d, *next++); });
    }

    void download(Tensor& global, const Positions& positions) const {
        download([&](std::size_t b, std::size_t i, std::size_t h, std::size_t d, double x) {
            global(b, static_cast<std::size_t>(positions[i]), h, d) = x;
        });
    }
    void download(Lse& global, const Positions& positions) const {
        download([&](std::size_t b, std::size_t i, std::size_t h, std::size_t, double x) {
            global(b, static_cast<std::size_t>(positions[i]), h) = x;
        });
    }

private:
    gpu::Strides strides() const { return gpu::dense_strides(extent_.tokens, extent_.heads, extent_.dim); }

    template <class Visit>
    void for_each(Visit visit) const {
        const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
        for (std::size_t b = 0; b < size(extent_.batch); ++b)
            for (std::size_t i = 0; i < size(extent_.tokens); ++i)
                for (std::size_t h = 0; h < size(extent_.heads); ++h)
                    for (std::size_t d = 0; d < size(extent_.dim); ++d) visit(b, i, h, d);
    }

    Extent extent_;
    DType dtype_ = DType::fp32;
    gpu::DeviceBuffer buffer_;
};

/// K and V of one owner and head group.
struct Block {
    DeviceTensor k, v;
};

class Run {
public:
    Run(const AttendCase& c, const layouts::Mask& mask, const layouts::Layout& layout, const reference::Inputs& inputs)
        : case_(c), p_(c.problem), mask_(mask), layout_(layout), inputs_(inputs) {
        for (int rank = 0; rank < layout.ranks(); ++rank) {
            rows_.push_back(std::make_shared<gpu::RowBounds>(mask, layout.shard(rank)));
            keys_.push_back(std::make_shared<gpu::KeyPositions>(mask, layout.shard(rank)));
        }
        const auto& in = inputs;
        out_.exact = {Tensor(in.dout.shape()), Lse({in.q.shape(0), in.q.shape(1), in.q.shape(2)}), Tensor(in.q.shape()),
                      Tensor(in.k.shape(), 0.0), Tensor(in.v.shape(), 0.0)};
        out_.o_rounded = Tensor(in.dout.shape());
    }

    AttendOutputs all() {
        for (int rank = 0; rank < layout_.ranks(); ++rank) one_rank(rank);
        return std::move(out_);
    }

private:
    std::int64_t group_heads() const { return p_.kv_heads / case_.head_groups; }
    std::int64_t first_head(int group) const { return group * group_heads(); }
    std::int64_t first_query_head(int group) const { return first_head(group) * p_.query_heads_per_kv_head(); }

    gpu::AttendShape shape() const {
        return {.batch = p_.batch,
                .kv_heads = group_heads(),
                .query_heads_per_kv_head = p_.query_heads_per_kv_head(),
                .head_dim = p_.head_dim,
                .value_dim = p_.value_dim,
                .scale = p_.effective_scale(),
                .soft_cap = p_.soft_cap,
                .dtype = p_.dtype};
    }

    gpu::WorkList work(int rank, int owner, layouts::Pass pass) const {
        return {mask_,
                rows_[static_cast<std::size_t>(rank)],
                keys_[static_cast<std::size_t>(owner)],
                {.pass = pass,
                 .head_dim = p_.head_dim,
                 .value_dim = p_.value_dim,
                 .deterministic = case_.deterministic,
                 .family = gpu::kernel_family(case_.family)}};
    }

    Block block(int owner, int group) const {
        const auto positions = layout_.positions(owner);
        Block b{{{p_.batch, layout_.shard_tokens(owner), group_heads(), p_.head_dim}, p_.dtype},
                {{p_.batch, layout_.shard_tokens(owner), group_heads(), p_.value_dim}, p_.dtype}};
        b.k.upload(inputs_.k, positions, static_cast<std::size_t>(first_head(group)));
        b.v.upload(inputs_.v, positions, static_cast<std::size_t>(first_head(group)));
        return b;
    }

    Extent extent(int rank, std::int64_t dim) const {
        return {p_.batch, layout_.shard_tokens(rank), p_.query_heads, dim};
    }

    void one_rank(int rank) {
        const auto positions = layout_.positions(rank);
        DeviceTensor q(extent(rank, p_.head_dim), p_.dtype), dout(extent(rank, p_.value_dim), p_.dtype);
        q.upload(inputs_.q, positions);
        dout.upload(inputs_.dout, positions);
        const DType running = case_.policy == Policy::rounded_running ? p_.dtype : DType::fp32;
        DeviceTensor o(extent(rank, p_.value_dim), running), lse(extent(rank, 1), DType::fp32);
        DeviceTensor o_rounded(extent(rank, p_.value_dim), p_.dtype);

        if (case_.policy == Policy::carry)
            forward_by_carry(rank, q, o, o_rounded, lse);
        else
            forward_by_partials(rank, q, o, lse);
        o.download(out_.exact.o, positions);
        if (case_.policy == Policy::carry) o_rounded.download(out_.o_rounded, positions);
        lse.download(out_.exact.lse, positions);
        backward(rank, q, dout, o, lse);
    }

    void forward_by_carry(int rank, const DeviceTensor& q, const DeviceTensor& o, const DeviceTensor& o_rounded,
                          const DeviceTensor& lse) {
        DeviceTensor carry_o(extent(rank, p_.value_dim), DType::fp32);
        DeviceTensor m(extent(rank, 1), DType::fp32), l(extent(rank, 1), DType::fp32);
        const gpu::Carry carry{carry_o.view(), m.rows(), l.rows()};
        for (int group = 0; group < case_.head_groups; ++group)
            for (int step = 0; step < layout_.ranks(); ++step) {
                const int owner = (rank - step + layout_.ranks()) % layout_.ranks();
                const auto kv = block(owner, group);
                const auto h = first_query_head(group);
                gpu::attend_forward({.shape = shape(),
                                     .q = q.view().from_head(h),
                                     .k = kv.k.view(),
                                     .v = kv.v.view(),
                                     .first = step == 0,
                                     .last = step + 1 == layout_.ranks(),
                                     .carry = {carry.o.from_head(h), carry.m.from_head(h), carry.l.from_head(h)},
                                     .result = {.o = o.view().from_head(h),
                                                .o_rounded = o_rounded.view().from_head(h),
                                                .lse = lse.rows().from_head(h)}},
                                    work(rank, owner, layouts::Pass::forward), nullptr);
            }
    }

    void forward_by_partials(int rank, const DeviceTensor& q, const DeviceTensor& o, const DeviceTensor& lse) {
        for (int step = 0; step < layout_.ranks(); ++step) {
            const int owner = (rank - step + layout_.ranks()) % layout_.ranks();
            DeviceTensor partial(extent(rank, p_.value_dim), p_.dtype), partial_lse(extent(rank, 1), DType::fp32);
            for (int group = 0; group < case_.head_groups; ++group) {
                const auto kv = block(owner, group);
                const auto h = first_query_head(group);
                gpu::attend_forward({.shape = shape(),
                                     .q = q.view().from_head(h),
                                     .k = kv.k.view(),
                                     .v = kv.v.view(),
                                     .carry = {},
                                     .result = {.o = partial.view().from_head(h),
                                                .o_rounded = {},
                                                .lse = partial_lse.rows().from_head(h)}},
                                    work(rank, owner, layouts::Pass::forward), nullptr);
            }
            gpu::merge({.extent = o.extent(),
                        .first = step == 0,
                        .o = o.view(),
                        .lse = lse.rows(),
                        .partial_o = partial.view(),
                        .partial_lse = partial_lse.rows()},
                       nullptr);
        }
    }

    void backward(int rank, const DeviceTensor& q, const DeviceTensor& dout, const DeviceTensor& o,
                  const DeviceTensor& lse) {
        const auto tokens = layout_.shard_tokens(rank);
        DeviceTensor pairs({p_.batch, p_.query_heads, tokens, 2}, DType::fp32);
        const gpu::Statistics statistics{pairs.rows().data, gpu::statistics_strides(p_.query_heads, tokens)};
        gpu::prepare_backward(
            {.extent = o.extent(), .o = o.view(), .dout = dout.view(), .lse = lse.rows(), .statistics = statistics},
            nullptr);
        DeviceTensor dq(extent(rank, p_.head_dim), DType::fp32);
        dq.set_zero();
        for (int step = 0; step < layout_.ranks(); ++step) {
            const int owner = (rank - step + layout_.ranks()) % layout_.ranks();
            for (int group = 0; group < case_.head_groups; ++group) {
                const auto kv = block(owner, group);
                const auto h = first_query_head(group);
                const DeviceTensor dk(kv.k.extent(), case_.gradient_dtype), dv(kv.v.extent(), case_.gradient_dtype);
                gpu::attend_backward({.shape = shape(),
                                      .q = q.view().from_head(h),
                                      .k = kv.k.view(),
                                      .v = kv.v.view(),
                                      .dout = dout.view().from_head(h),
                                      .statistics = statistics.from_head(h),
                                      .dq = dq.view().from_head(h),
                                      .dk = dk.view(),
                                      .dv = dv.view()},
                                     work(rank, owner, layouts::Pass::backward), nullptr);
                sum_into(out_.exact.dk, dk, owner, group);
                sum_into(out_.exact.dv, dv, owner, group);
            }
        }
        dq.download(out_.exact.dq, layout_.positions(rank));
    }

    void sum_into(Tensor& global, const DeviceTensor& part, int owner, int group) const {
        const auto positions = layout_.positions(owner);
        const auto first = static_cast<std::size_t>(first_head(group));
        part.download([&](std::size_t b, std::size_t i, std::size_t h, std::size_t d, double x) {
            global(b, static_cast<std::size_t>(positions[i]), first + h, d) += x;
        });
    }

    const AttendCase& case_;
    const layouts::Problem& p_;
    const layouts::Mask& mask_;
    const layouts::Layout& layout_;
    const reference::Inputs& inputs_;
    std::vector<std::shared_ptr<const gpu::RowBounds>> rows_;
    std::vector<std::shared_ptr<const gpu::KeyPositions>> keys_;
    AttendOutputs out_;
};

}  // namespace

gpu::DeviceBuffer on_device(std::span<const double> values, DType dtype) {
    gpu::DeviceBuffer buffer(values.size() * static_cast<std::size_t>(layouts::bytes_of(dtype)));
    if (dtype == DType::fp32) {
        const std::vector<float> floats(values.begin(), values.end());
        buffer.upload(floats.data());
    } else {
        std::vector<std::uint16_t> bits(values.size());
        reference::to_bits(values, dtype, bits);
        buffer.upload(bits.data());
    }
    return buffer;
}

std::vector<double> from_device(const gpu::DeviceBuffer& buffer, DType dtype) {
    if (dtype == DType::fp32) {
        std::vector<float> floats(buffer.bytes() / sizeof(float));
        buffer.download(floats.data());
        return {floats.begin(), floats.end()};
    }
    std::vector<std::uint16_t> bits(buffer.bytes() / sizeof(std::uint16_t));
    buffer.download(bits.data());
    std::vector<double> values(bits.size());
    reference::from_bits(bits, dtype, values);
    return values;
}

boost::test_tools::assertion_result has_gpu(boost::unit_test::test_unit_id) {
    int devices = 0;
    boost::test_tools::assertion_result result(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0);
    result.message() << "no GPU on this machine";
    return result;
}

boost::test_tools::assertion_result has_hopper(boost::unit_test::test_unit_id id) {
    auto result = has_gpu(id);
    if (!result) return result;
    result = boost::test_tools::assertion_result(std::ranges::count(families(), "hopper") > 0);
    if (!result) result.message() << "no GPU on this machine that runs the kernels for sm_90a";
    return result;
}

// Called before main(), when families may not have registered themselves yet: so by name.
std::vector<std::string> families() {
    int devices = 0, major = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return {"portable"};
    RINGLAB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major == 9) return {"portable", "hopper"};
    return {"portable"};
}

std::ostream& operator<<(std::ostream& out, Policy policy) {
    switch (policy) {
        case Policy::carry: return out << "carry";
        case Policy::partials: return out << "partials";
        case Policy::rounded_running: return out << "rounded running result";
    }
    return out;
}

std::ostream& operator<<(std::ostream& out, const AttendCase& c) {
    const auto& p = c.problem;
    return out << fmt::format(
                      "{} {} over {} ranks, batch {}, {} tokens, heads {}:{}, dims {}/{}, scale {}, cap {}, {}{}, {} "
                      "head groups, {} kernels, ",
                      c.mask, c.layout, c.ranks, p.batch, p.tokens, p.query_heads, p.kv_heads, p.head_dim, p.value_dim,
                      p.scale, p.soft_cap, to_string(p.dtype), c.deterministic ? ", deterministic" : "", c.head_groups,
                      c.family)
               << c.policy;
}

void check(const char* name, const reference::Deviation& measured, const reference::Bound& bound) {
    BOOST_TEST_CONTEXT(name << ": relative rms " << measured.relative_rms << " of " << bound.relative_rms
                            << ", largest " << measured.max_to_largest << " of " << bound.max_to_largest) {
        BOOST_TEST(measured.relative_rms <= bound.relative_rms);
        BOOST_TEST(measured.max_to_largest <= bound.max_to_largest);
    }
}

void check(const reference::OutputDeviations& measured, const reference::Bounds& bounds) {
    check("o", measured.o, bounds.o_unrounded);
    check("lse", measured.lse, bounds.lse);
    check("dq", measured.dq, bounds.dq);
    check("dk", measured.dk, bounds.dk);
    check("dv", measured.dv, bounds.dv);
    check("dsinks", measured.dsinks, bounds.dsinks);
}

reference::Inputs random_inputs(const layouts::Problem& p, std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    const auto tensor = [&](const std::array<std::int64_t, 4>& shape, double size = 1) {
        auto t = reference::zeros_of(shape);
        for (auto& x : t) x = size * normal(generator);
        return reference::rounded(std::move(t), p.dtype);
    };
    const double of_matrices = p.latent.is_given() ? 1 / std::sqrt(static_cast<double>(p.latent.rank)) : 1;
    return {tensor({p.batch, p.rows(), p.query_heads, p.head_dim}), tensor(p.key_shape()),
            tensor(p.value_shape(), of_matrices), tensor({p.batch, p.rows(), p.query_heads, p.value_dim})};
}

AttendOutputs run_on_device(const AttendCase& c, const layouts::Mask& mask, const layouts::Layout& layout,
                            const reference::Inputs& inputs) {
    return Run(c, mask, layout, inputs).all();
}

}  // namespace ringlab::tests
