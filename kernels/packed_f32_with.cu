// The kernels of packed_f32.cu for y = alpha A x + beta y.

#define SCALED
#include "packed_f32.cu"
