// SpMM for packed SELL with plain values.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_plain, SEVERAL_BLOCKS, 1, Plain)
SEVERAL_INSTANCES(multi_plain, MANY_BLOCKS, 4, Plain)
