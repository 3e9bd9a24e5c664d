// The kernels of packed_f16.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_f16.cu"
