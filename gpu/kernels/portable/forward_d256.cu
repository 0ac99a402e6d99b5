#include "gpu/kernels/portable/forward.cuh"

template void ringlab::gpu::launch_forward<ringlab::gpu::DimClass::d256>(const ForwardParams&, DType, cudaStream_t);
