// The kernels of packed_same.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_same.cu"
