// SpMM for packed SELL with values stored as codes of a dictionary.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_coded, SEVERAL_BLOCKS, 1, Coded)
SEVERAL_INSTANCES(multi_coded, SEVERAL_BLOCKS, 4, Coded)
