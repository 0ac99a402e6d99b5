#pragma once

#include "gpu/kernels/portable/backward.cuh"
#include "gpu/kernels/portable/forward.cuh"
#include "gpu/kernels/portable/query_gradient.cuh"

// The portable kernels with dropout (layouts/problem/dropout.hpp), in translation units of their own.
