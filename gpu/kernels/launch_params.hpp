#pragma once

#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/common/params.hpp"
#include "gpu/kernels/work_list.hpp"

// From the arguments of attention.hpp to the parameters of kernels, for all families. All functions throw Error if an
// argument does not fit.

namespace ringlab::gpu {

void require_data(const void* data, const char* name);
void require_fp32(const Elements& tensor, const char* name);

Elements elements(const ConstView& view, const char* name);
/// The same, but the data may be null.
Elements optional_elements(const ConstView& view, const char* name);
RowValues row_values(const ConstRowView& view, const char* name);
Input input(const ConstView& view, DType dtype, std::int64_t dim, const char* name);
Sizes sizes(const Extent& extent);

/// The first `count` work tiles of a list.
Items launch_items(const TileList& list, std::int64_t count);

/// Checks that the shape has the pass and dims that the list was made for.
void require_fit(const AttendShape& shape, const WorkListOptions& options, layouts::Pass pass);
/// Geometry of a launch that require_fit() has accepted.
Geometry geometry_of(const AttendShape& shape, const RowBounds& rows, std::int64_t key_tokens,
                     const std::int32_t* key_positions);
/// Both for a launch over one block.
Geometry geometry(const AttendShape& shape, const WorkList& work, layouts::Pass pass);

/// Calls launch(params), with DropoutParams if the shape has dropout.
template <class Params, class Launch>
void with_dropout(const Params& params, const AttendShape& shape, Launch launch) {
    if (!shape.dropout.drops()) return launch(params);
    launch(Dropping<Params>{params,
                            {dropout_draw(shape.dropout), static_cast<float>(shape.dropout.factor()),
                             static_cast<int>(shape.first_query_head)}});
}

ForwardParams forward_params(const ForwardArgs& args, const Geometry& geometry, const Items& work);
/// `query_work`: work tiles of the kernel that computes dq alone, if there is one.
BackwardParams backward_params(const BackwardArgs& args, const Geometry& geometry, const Items& work,
                               const Items& query_work);

}  // namespace ringlab::gpu
