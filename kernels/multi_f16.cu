// SpMM for packed SELL with values stored in f16.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_f16, SEVERAL_BLOCKS, 1, AsF16)
SEVERAL_INSTANCES(multi_f16, SEVERAL_BLOCKS, 4, AsF16)
