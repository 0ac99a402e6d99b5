#include "gpu/kernels/portable/dropout.cuh"

namespace ringlab::gpu {

template void launch_dropping_forward<DimClass::d128>(const Dropping<ForwardParams>&, DType, cudaStream_t);
template void launch_dropping_backward<DimClass::d128>(const Dropping<BackwardParams>&, DType, bool, cudaStream_t);

}  // namespace ringlab::gpu
