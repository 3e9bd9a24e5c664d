// The kernels of packed_coded.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_coded.cu"
