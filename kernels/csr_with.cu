// The kernels of csr.cu for y = alpha A x + beta y.

#define SCALED
#include "csr.cu"
