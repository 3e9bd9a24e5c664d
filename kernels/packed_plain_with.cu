// The kernels of packed_plain.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_plain.cu"
