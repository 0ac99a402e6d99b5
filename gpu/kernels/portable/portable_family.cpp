#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "gpu/kernels/portable/portable.hpp"
#include "gpu/kernels/portable/shared_memory.hpp"
#include "gpu/kernels/portable/tile_config.hpp"

namespace ringlab::gpu::portable {
namespace {

using layouts::Pass;

/// Every head dim and stride, on every device that the build has code for (CMAKE_CUDA_ARCHITECTURES, sm_80 and later).
class PortableFamily : public KernelFamily {
public:
    std::string name() const override { return "portable"; }
    int preference() const override { return 0; }
    std::string why_not_on_this_device() const override { return {}; }

    bool takes_dims(std::int64_t head_dim, std::int64_t value_dim) const override {
        dim_class(head_dim, value_dim);  // throws if there are no such kernels
        return true;
    }

    KernelWorkTiles work_tiles(Pass pass, std::int64_t head_dim, std::int64_t value_dim) const override {
        return {pass == Pass::backward, tile(pass, head_dim, value_dim)};
    }

    WorkListPlan plan(const WorkListOptions& options, const WorkListRows&) const override {
        WorkListPlan plan{.tile = tile(options.pass, options.head_dim, options.value_dim)};
        if (options.pass == Pass::backward && options.deterministic)
            plan.query_tile = tile_of<QueryGradientConfig>(
                require_class(Kernel::query_gradient, options.head_dim, options.value_dim));
        return plan;
    }

    void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        const auto& shape = args.shape;
        const auto& tiles = work.tiles();
        // A first or last block writes every row, also rows that see nothing of it.
        const auto count = args.first || args.last ? tiles.items() : tiles.busy_items();
        const auto plain = forward_params(args, geometry(shape, work, Pass::forward), launch_items(tiles, count));
        with_dropout(plain, shape, [&](const auto& params) {
            for_dim_class(require_class(Kernel::forward, shape.head_dim, shape.value_dim),
                          [&]<DimClass dims>() { launch_forward<dims>(params, shape.dtype, stream); });
        });
    }

    void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        const auto& shape = args.shape;
        const auto& tiles = work.tiles();
        const auto* query_tiles = work.query_tiles();
        const auto plain =
            backward_params(args, geometry(shape, work, Pass::backward),
                            launch_items(tiles, tiles.items()),  // dK and dV of idle tiles become 0
                            query_tiles ? launch_items(*query_tiles, query_tiles->busy_items()) : Items{});
        with_dropout(plain, shape, [&](const auto& params) {
            for_dim_class(require_class(Kernel::backward, shape.head_dim, shape.value_dim), [&]<DimClass dims>() {
                launch_backward<dims>(params, shape.dtype, query_tiles != nullptr, stream);
            });
            if (!query_tiles) return;
            for_dim_class(require_class(Kernel::query_gradient, shape.head_dim, shape.value_dim),
                          [&]<DimClass dims>() { launch_query_gradient<dims>(params, shape.dtype, stream); });
        });
    }

private:
    /// On the current device, whose shared memory may ask for a larger class of dims with smaller tiles.
    static TileShape tile(Pass pass, std::int64_t head_dim, std::int64_t value_dim) {
        if (pass == Pass::forward) return tile_of<ForwardConfig>(require_class(Kernel::forward, head_dim, value_dim));
        return tile_of<BackwardConfig>(require_class(Kernel::backward, head_dim, value_dim));
    }
};

const KernelFamilyRegistration registered_portable(std::make_unique<PortableFamily>());

}  // namespace
}  // namespace ringlab::gpu::portable
