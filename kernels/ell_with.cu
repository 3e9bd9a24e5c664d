// The kernels of ell.cu for y = alpha A x + beta y.

#define SCALED
#include "ell.cu"
