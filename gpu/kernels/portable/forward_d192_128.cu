#include "gpu/kernels/portable/forward.cuh"

template void ringlab::gpu::launch_forward<ringlab::gpu::DimClass::d192_128>(const ForwardParams&, DType, cudaStream_t);
