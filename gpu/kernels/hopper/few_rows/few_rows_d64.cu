#include "gpu/kernels/hopper/few_rows/few_rows.cuh"

template void ringlab::gpu::hopper::launch_few_rows<ringlab::gpu::DimClass::d64>(const ForwardParams&, int, DType,
                                                                                 cudaStream_t);
