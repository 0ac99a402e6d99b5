#include "gpu/kernels/portable/backward.cuh"

template void ringlab::gpu::launch_backward<ringlab::gpu::DimClass::d128>(const BackwardParams&, DType, bool,
                                                                          cudaStream_t);
