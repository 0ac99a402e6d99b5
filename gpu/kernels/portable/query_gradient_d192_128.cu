#include "gpu/kernels/portable/backward.cuh"

template void ringlab::gpu::launch_query_gradient<ringlab::gpu::DimClass::d192_128>(const BackwardParams&, DType,
                                                                                    cudaStream_t);
