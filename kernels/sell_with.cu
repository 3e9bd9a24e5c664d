// The kernels of sell.cu for y = alpha A x + beta y.

#define SCALED
#include "sell.cu"
