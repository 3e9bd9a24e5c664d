// The kernels of jds.cu for y = alpha A x + beta y.

#define SCALED
#include "jds.cu"
