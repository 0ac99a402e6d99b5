#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/hopper/backward/backward_config.hpp"
#include "gpu/kernels/hopper/forward/forward_config.hpp"
#include "gpu/kernels/hopper/fused_work.hpp"
#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/hopper/split_kv/split_kv.hpp"
#include "gpu/kernels/hopper/split_kv/split_kv_config.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <utility>

namespace ringlab::gpu::hopper {
namespace {

using layouts::Pass;

void require_no_dropout(const AttendShape& shape) {
    require(!shape.dropout.drops(),
            "dropout {}: the hopper kernels have none; make the work list for the portable family",
            text_of(shape.dropout));
}

bool splits_kv(const WorkListOptions& options, std::int64_t query_tokens) {
    return options.pass == Pass::forward && query_tokens <= most_split_kv_rows;
}

void attend_by_split_kv(const ForwardParams& params, const WorkList& work, const AttendShape& shape,
                        cudaStream_t stream) {
    for (const auto& [tensor, name] : {std::pair(&params.q, "q"), std::pair(&params.k, "k"), std::pair(&params.v, "v")})
        require(tensor->chunks_fit,
                "{} at {} with strides {}, {}, {} (batch, token, head): the hopper kernels need data and strides in "
                "multiples of 16 bytes; make the work list for the portable family",
                name, tensor->data, tensor->strides.batch, tensor->strides.token, tensor->strides.head);
    const auto row_groups =
        shape.batch * shape.kv_heads * split_kv_row_groups(work.rows().tokens(), shape.query_heads_per_kv_head);
    const int blocks = blocks_per_row_group(row_groups, work.tiles().longest());
    for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                  [&]<DimClass dims>() { launch_split_kv<dims>(params, blocks, shape.dtype, stream); });
}

/// sm_90a: bulk copies (TMA) and warpgroup products (WGMMA). Data and strides must be multiples of 16 bytes.
class HopperFamily : public KernelFamily {
public:
    std::string name() const override { return "hopper"; }
    int preference() const override { return 1; }

    std::string why_not_on_this_device() const override {
        int device = 0, major = 0, minor = 0;
        RINGLAB_CUDA(cudaGetDevice(&device));
        RINGLAB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
        RINGLAB_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
        if (major == 9 && minor == 0) return {};  // code for sm_90a runs on this capability and no later one
        return fmt::format("they run on devices of compute capability 9.0, this one has {}.{}", major, minor);
    }

    bool takes_dims(std::int64_t head_dim, std::int64_t value_dim) const override {
        dim_class(head_dim, value_dim);    // throws if there are no such kernels
        constexpr std::int64_t chunk = 8;  // rows of dense tensors are then multiples of 16 bytes
        return head_dim % chunk == 0 && value_dim % chunk == 0;
    }

    std::int64_t split_kv_rows() const override { return most_split_kv_rows; }

    KernelWorkTiles work_tiles(Pass pass, std::int64_t head_dim, std::int64_t value_dim) const override {
        KernelWorkTiles tiles{pass == Pass::backward, tile(pass, dim_class(head_dim, value_dim))};
        if (pass == Pass::backward) tiles.shared_by = {2, 4, 8};
        return tiles;
    }

    WorkListPlan plan(const WorkListOptions& options, std::int64_t query_tokens) const override {
        constexpr std::size_t counters = 16;  // launches that may run at the same time
        const auto dims = dim_class(options.head_dim, options.value_dim);
        return {.tile = splits_kv(options, query_tokens) ? tile_of<SplitKvConfig>(dims) : tile(options.pass, dims),
                .with_semaphores = options.pass == Pass::backward && options.deterministic,
                .grouped = options.pass == Pass::backward && !options.deterministic,
                .counters = counters};
    }

    void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        const auto& shape = args.shape;
        const auto& tiles = work.tiles();
        // A first or last block writes every row, also rows that see nothing of it.
        const auto count = args.first || args.last ? tiles.items() : tiles.busy_items();
        const auto params = forward_params(args, geometry(shape, work, Pass::forward), launch_items(tiles, count));
        if (splits_kv(work.options(), work.rows().tokens())) return attend_by_split_kv(params, work, shape, stream);
        enqueue(make_forward_launch(args, work, params), shape, stream);
    }

    void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        enqueue(make_backward_launch(args, work), args.shape, stream);
    }

    bool can_fuse() const override { return true; }
    std::unique_ptr<FusedWork> make_fused(const layouts::Mask& mask, std::shared_ptr<const RowBounds> rows,
                                          std::span<const FusedBlock> blocks,
                                          const FusedOptions& options) const override {
        return std::make_unique<HopperFusedWork>(mask, std::move(rows), blocks, options);
    }

private:
    static TileShape tile(Pass pass, DimClass dims) {
        return pass == Pass::forward ? tile_of<ForwardConfig>(dims) : tile_of<BackwardConfig>(dims);
    }
};

const KernelFamilyRegistration registered_hopper(std::make_unique<HopperFamily>());

}  // namespace

void enqueue(const ForwardLaunch& launch, const AttendShape& shape, cudaStream_t stream) {
    require_no_dropout(shape);
    for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                  [&]<DimClass dims>() { launch_forward<dims>(launch, shape.dtype, stream); });
}

void enqueue(const BackwardLaunch& launch, const AttendShape& shape, cudaStream_t stream) {
    require_no_dropout(shape);
    for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                  [&]<DimClass dims>() { launch_backward<dims>(launch, shape.dtype, stream); });
}

}  // namespace ringlab::gpu::hopper
