#include "gpu/kernels/hopper/backward/backward.cuh"

template void ringlab::gpu::hopper::launch_backward<ringlab::gpu::DimClass::d192_128>(const BackwardLaunch&, DType,
                                                                                      cudaStream_t);
