// SpMM for packed SELL with one value for all entries.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_same, SEVERAL_BLOCKS, 1, Same)
SEVERAL_INSTANCES(multi_same, MANY_BLOCKS, 4, Same)
