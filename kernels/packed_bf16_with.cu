// The kernels of packed_bf16.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_bf16.cu"
