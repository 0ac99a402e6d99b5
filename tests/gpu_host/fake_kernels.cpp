// Kernels that compute nothing, but touch what they read and write in stream order.

#include "gpu/device/driver.hpp"
#include "gpu/elements/elementwise.hpp"
#include "gpu/kernels/fused_work.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "gpu/kernels/merging.hpp"
#include "gpu/kernels/rows.hpp"
#include "gpu/ranks/latent_products.hpp"
#include "tests/gpu_host/fake_cuda.hpp"

#include <atomic>

namespace ringlab::gpu {

void wait_in_kernel(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value, const std::uint32_t* late);

namespace {

thread_local volatile char last_byte_read;

void look(void* data) { last_byte_read = *static_cast<const char*>(data); }

std::atomic<int> without_work_list = 0;

void look_at_work_list(void* items) { without_work_list += *static_cast<const std::int32_t*>(items) < 0; }

void read(const WorkList& work, cudaStream_t stream) {
    if (work.tiles().items() > 0)
        cudaLaunchHostFunc(stream, look_at_work_list, const_cast<std::int32_t*>(work.tiles().device_items()));
}

/// The first byte of a tensor stands for all of it.
void read(const ConstView& view, cudaStream_t stream) {
    if (view.data) cudaLaunchHostFunc(stream, look, const_cast<void*>(view.data));
}
void write(const View& view, cudaStream_t stream) {
    if (view.data) cudaMemsetAsync(view.data, 0, 1, stream);
}

}  // namespace

namespace {

class FakeFamily : public KernelFamily {
public:
    std::string name() const override { return "portable"; }
    int preference() const override { return 0; }
    std::string why_not_on_this_device() const override { return {}; }
    bool takes_dims(std::int64_t, std::int64_t) const override { return true; }
    KernelWorkTiles work_tiles(layouts::Pass, std::int64_t, std::int64_t) const override { return {}; }
    WorkListPlan plan(const WorkListOptions&, const WorkListRows&) const override {
        return {.tile = {64, 64}, .splits_kv = true};
    }

    void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        read(work, stream);
        for (const auto& view : {args.q, args.k, args.v}) read(view, stream);
        if (!args.last) write(args.carry.o, stream);
        if (args.last) write(args.result.o, stream);
    }
    void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        read(work, stream);
        for (const auto& view : {args.q, args.k, args.v, args.dout}) read(view, stream);
        for (const auto& view : {args.dq, args.dk, args.dv}) write(view, stream);
    }

    bool can_merge(const AttendShape&, std::span<const WorkList* const>, std::size_t, int) const override {
        return true;
    }
    MergingWork make_merging(const MergingArgs& args) const override {
        struct Kept {
            MergingArgs args;
            std::vector<Pair*> messages;
            std::vector<OtherRows> others;
            std::vector<ResultPairs> arriving;
        };
        const Kept kept{args,
                        {args.messages.begin(), args.messages.end()},
                        {args.others.begin(), args.others.end()},
                        {args.arriving.begin(), args.arriving.end()}};
        return [kept](std::uint32_t number, cudaStream_t stream) {
            // A pair is told by its number, the high half.
            const auto send = [&](Pair* pair) {
                write_value(stream, reinterpret_cast<std::uint32_t*>(pair) + 1, number);
            };
            const auto await = [&](const Pair* pair) {
                wait_in_kernel(stream, reinterpret_cast<const std::uint32_t*>(pair) + 1, number, kept.args.late);
            };
            for (auto* message : kept.messages) send(message);
            for (const auto& view : {kept.args.k, kept.args.v}) read(view, stream);
            for (const auto& other : kept.others) {
                await(other.q);
                send(other.result.o);
            }
            if (!kept.args.work) return;
            read(kept.args.q, stream);
            for (const auto& result : kept.arriving) await(result.o);
            write(kept.args.result.o, stream);
        };
    }
};

const KernelFamilyRegistration registered_fake(std::make_unique<FakeFamily>());

}  // namespace

void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) {
    work.family().attend_forward(args, work, stream);
}
void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) {
    work.family().attend_backward(args, work, stream);
}

void merge(const MergeArgs& args, cudaStream_t stream) {
    read(args.partial_o, stream);
    write(args.o, stream);
}

void prepare_backward(const PrepareBackwardArgs& args, cudaStream_t stream) {
    read(args.o, stream);
    read(args.dout, stream);
}

void rotate(const RotateArgs& args, cudaStream_t stream) {
    read(args.source, stream);
    write(args.destination, stream);
}

void add_sinks(const AddSinksArgs& args, cudaStream_t stream) { write(args.o, stream); }
void sink_gradient(const SinkGradientArgs&, cudaStream_t) {}

void add(const Extent&, const View& destination, const ConstView& source, cudaStream_t stream) {
    read(source, stream);
    write(destination, stream);
}

void convert(std::span<const Conversion> conversions, cudaStream_t stream) {
    for (const auto& one : conversions) {
        read(one.source, stream);
        for (const auto& sum : one.sums) read(sum, stream);
        write(one.destination, stream);
    }
}

class Cublas {};
LatentProducts::LatentProducts(const layouts::Schedule& forward, const layouts::Schedule*, int)
    : problem_(forward.problem()) {}
LatentProducts::~LatentProducts() = default;
void LatentProducts::load(const HostTensor<std::uint16_t>&) {}
void LatentProducts::load_random(int) {}
void LatentProducts::begin_gradient(cudaStream_t) {}
std::vector<float> LatentProducts::gradient() const {
    const auto [one, heads, rows, rank] = problem_.value_shape();
    return std::vector<float>(static_cast<std::size_t>(heads * rows * rank));
}
void LatentProducts::expand(const Extent&, const ConstView& latent, const View& k, const View& v, int,
                            cudaStream_t stream) {
    read(latent, stream);
    for (const auto& view : {k, v}) write(view, stream);
}
void LatentProducts::compress(const Compression& what, cudaStream_t stream) {
    for (const auto& view : {what.dk, what.dv, what.latent}) read(view, stream);
    write(what.dlatent, stream);
}

void clear_tokens(const Extent&, const View& tensor, const std::int32_t*, std::int64_t, cudaStream_t stream) {
    write(tensor, stream);
}

void fill_rows(const Extent&, const RowView&, float, cudaStream_t) {}

void fill_normal(void* data, DType dtype, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
    cudaMemsetAsync(data, static_cast<int>(seed), static_cast<std::size_t>(count * layouts::bytes_of(dtype)), stream);
}

}  // namespace ringlab::gpu

namespace ringlab::tests {

int attends_without_work_list() { return gpu::without_work_list; }

}  // namespace ringlab::tests
