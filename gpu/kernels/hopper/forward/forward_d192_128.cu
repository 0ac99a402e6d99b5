#include "gpu/kernels/hopper/forward/forward.cuh"

template void ringlab::gpu::hopper::launch_forward<ringlab::gpu::DimClass::d192_128>(const ForwardLaunch&, DType,
                                                                                     cudaStream_t);
