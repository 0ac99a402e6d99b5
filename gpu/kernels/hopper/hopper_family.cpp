#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/hopper/backward/backward.hpp"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/hopper/fused_work.hpp"
#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/hopper/split_kv/split_kv.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "gpu/kernels/merging.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ringlab::gpu::hopper {
namespace {

using layouts::Pass;

void require_no_dropout(const AttendShape& shape) {
    require(!shape.dropout.drops(),
            "dropout {}: kernels that split the keys have none; make the work list with drops_out",
            text_of(shape.dropout));
}

constexpr std::int64_t most_row_groups = std::int64_t{1} << 24;  // times up to 8 thread blocks are a grid

bool splits_kv(const WorkListOptions& options, const WorkListRows& rows) {
    const bool is_batch =
        rows.tokens <= most_split_kv_tokens && rows.per_key <= static_cast<double>(most_split_kv_rows);
    return options.pass == Pass::forward && !options.drops_out && (rows.tokens <= most_split_kv_rows || is_batch);
}

void require_chunks(const Input& tensor, const char* name) {
    require(tensor.chunks_fit,
            "{} at {} with strides {}, {}, {} (batch, token, head): the hopper kernels need data and strides in "
            "multiples of 16 bytes; make the work list for the portable family",
            name, tensor.data, tensor.strides.batch, tensor.strides.token, tensor.strides.head);
}

std::int64_t row_groups_of(std::int64_t items, const WorkList& list, const AttendShape& shape) {
    return items * shape.batch * shape.kv_heads * row_groups_of_tile(list.tile_tokens(), shape.query_heads_per_kv_head);
}

/// The first `work.count` work tiles of a list.
SplitKvRows split_kv_rows(const Input& q, const WorkList& list, const Items& work, const AttendShape& shape) {
    require_chunks(q, "q");
    const auto row_groups = row_groups_of(work.count, list, shape);
    require(row_groups <= most_row_groups, "{} row groups of all heads are more than the {} of a launch", row_groups,
            most_row_groups);
    return {.q = q,
            .bounds = reinterpret_cast<const int4*>(list.rows().device()),
            .tokens = static_cast<int>(list.rows().tokens()),
            .tile_tokens = list.tile_tokens(),
            .row_groups = static_cast<int>(row_groups),
            .work = work};
}

void add_to(RowGroupLoad& load, const SplitKvRows& rows, const WorkList& list) {
    const auto& tiles = list.tiles();
    load.row_groups += rows.row_groups;
    load.entries += (tiles.full() + tiles.partial()) * (rows.row_groups / std::max(1, rows.work.count));
    load.longest = std::max(load.longest, tiles.longest());
}

void attend_by_split_kv(const ForwardParams& params, const WorkList& work, const AttendShape& shape,
                        cudaStream_t stream) {
    require_no_dropout(shape);
    require_chunks(params.k, "k");
    require_chunks(params.v, "v");
    const SplitKvLaunch launch{params, split_kv_rows(params.q, work, params.work, shape)};
    RowGroupLoad load;
    add_to(load, launch.rows, work);
    const int blocks = blocks_per_row_group(load);
    for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                  [&]<DimClass dims>() { launch_split_kv<dims>(launch, blocks, shape.dtype, stream); });
}

MergingLaunch make_merging_launch(const MergingArgs& args) {
    const auto& shape = args.shape;
    require(args.work || !args.others.empty(), "a launch without rows");
    for (const auto count : {args.messages.size(), args.others.size(), args.arriving.size()})
        require(count <= MergingLaunch::most_peers, "a launch with {} peers; at most {}", count,
                MergingLaunch::most_peers);
    const auto items_of = [&](const WorkList& work) {
        require(work.splits_kv(), "a launch that merges needs work lists that split the keys");
        return launch_items(work.tiles(), work.tiles().items());
    };
    const auto& any = args.work ? *args.work : *args.others.front().work;
    const ForwardArgs own{.shape = shape, .q = args.q, .k = args.k, .v = args.v, .result = args.result};
    MergingLaunch launch{.forward = forward_params(own, geometry(shape, any, Pass::forward), items_of(any)),
                         .rows = {},
                         .messages = {},
                         .others = {},
                         .results = {},
                         .message_count = static_cast<int>(args.messages.size()),
                         .other_count = static_cast<int>(args.others.size()),
                         .result_count = static_cast<int>(args.arriving.size()),
                         .merging_clusters = 0,
                         .own = args.arriving.empty() ? ResultPairs{} : args.own,
                         .number = 0,
                         .late = args.late,
                         .reported = args.reported,
                         .most_nanoseconds = static_cast<std::uint64_t>(args.most_wait.count())};
    require_chunks(launch.forward.k, "k");
    require_chunks(launch.forward.v, "v");
    if (args.work) launch.rows = split_kv_rows(launch.forward.q, *args.work, launch.forward.work, shape);
    std::ranges::copy(args.messages, launch.messages);
    for (std::size_t i = 0; i < args.others.size(); ++i) {
        const auto& other = args.others[i];
        const Input q{.data = nullptr, .strides = {}, .dim = static_cast<int>(shape.head_dim), .chunks_fit = true};
        launch.others[i] = {
            .rows = split_kv_rows(q, *other.work, items_of(*other.work), shape), .q = other.q, .result = other.result};
    }
    std::ranges::copy(args.arriving, launch.results);
    return launch;
}

/// Enough that each warp merges few rows. On a shared device one, because all blocks must fit.
int merging_clusters(const MergingLaunch& launch, int blocks, int ranks_on_device) {
    if (launch.result_count == 0) return 0;
    if (ranks_on_device > 1) return 1;
    constexpr int most_blocks = 128, warps = 8;
    const auto& geometry = launch.forward.geometry;
    const auto rows = geometry.batch * geometry.query_heads * launch.rows.tokens;
    return (std::min(most_blocks, (rows + warps - 1) / warps) + blocks - 1) / blocks;
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

    WorkListPlan plan(const WorkListOptions& options, const WorkListRows& rows) const override {
        constexpr std::size_t counters = 16;  // launches that may run at the same time
        const auto dims = dim_class(options.head_dim, options.value_dim);
        if (splits_kv(options, rows)) {
            auto tile = tile_of<SplitKvConfig>(dims);
            // A tile has rows of one sequence only: rows of several would test every key against the mask.
            const auto of_sequence = std::max(std::int64_t{1}, static_cast<std::int64_t>(std::lround(rows.per_key)));
            tile.rows = static_cast<int>(std::min(of_sequence, split_kv_tile_tokens(options.query_heads_per_kv_head)));
            return {.tile = tile, .splits_kv = true};
        }
        return {.tile = tile(options.pass, dims),
                .with_semaphores = options.pass == Pass::backward && options.deterministic,
                .grouped = options.pass == Pass::backward,
                .counters = counters};
    }

    void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) const override {
        const auto& shape = args.shape;
        const auto& tiles = work.tiles();
        // A first or last block writes every row, also rows that see nothing of it.
        const auto count = args.first || args.last ? tiles.items() : tiles.busy_items();
        const auto params = forward_params(args, geometry(shape, work, Pass::forward), launch_items(tiles, count));
        if (work.splits_kv()) return attend_by_split_kv(params, work, shape, stream);
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

    bool can_merge(const AttendShape& shape, std::span<const WorkList* const> work, std::size_t peers,
                   int ranks_on_device) const override {
        static_assert(most_split_kv_tokens <= most_merging_tokens);
        if (peers > MergingLaunch::most_peers) return false;
        std::int64_t row_groups = 0;
        for (const auto* list : work) {
            if (!list->splits_kv()) return false;
            row_groups += row_groups_of(list->tiles().items(), *list, shape);
        }
        return ranks_on_device == 1 || (row_groups + 1) * ranks_on_device <= sms_of_device();
    }
    MergingWork make_merging(const MergingArgs& args) const override {
        const auto& shape = args.shape;
        require_no_dropout(shape);
        auto launch = make_merging_launch(args);
        RowGroupLoad load;
        if (args.work) add_to(load, launch.rows, *args.work);
        for (std::size_t i = 0; i < args.others.size(); ++i) add_to(load, launch.others[i].rows, *args.others[i].work);
        // On a shared device at most half of the SMs in clusters, which do not fit everywhere.
        const bool few = 4 * load.row_groups * args.ranks_on_device <= sms_of_device();
        const int blocks = args.ranks_on_device == 1 ? blocks_per_row_group(load) : few ? 2 : 1;
        launch.merging_clusters = args.work ? merging_clusters(launch, blocks, args.ranks_on_device) : 0;
        return [launch, blocks, dtype = shape.dtype, dims = dim_class(shape.head_dim, shape.value_dim)](
                   std::uint32_t number, cudaStream_t stream) mutable {
            launch.number = number;
            for_dim_class(dims, [&]<DimClass of>() { launch_split_kv<of>(launch, blocks, dtype, stream); });
        };
    }

private:
    static TileShape tile(Pass pass, DimClass dims) {
        return pass == Pass::forward ? tile_of<ForwardConfig>(dims) : tile_of<BackwardConfig>(dims);
    }
};

const KernelFamilyRegistration registered_hopper(std::make_unique<HopperFamily>());

}  // namespace

void enqueue(const ForwardLaunch& plain, const AttendShape& shape, cudaStream_t stream) {
    with_dropout(plain, shape, [&](const auto& launch) {
        for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                      [&]<DimClass dims>() { launch_forward<dims>(launch, shape.dtype, stream); });
    });
}

void enqueue(const BackwardLaunch& plain, const AttendShape& shape, cudaStream_t stream) {
    with_dropout(plain, shape, [&](const auto& launch) {
        for_dim_class(dim_class(shape.head_dim, shape.value_dim),
                      [&]<DimClass dims>() { launch_backward<dims>(launch, shape.dtype, stream); });
    });
}

}  // namespace ringlab::gpu::hopper
