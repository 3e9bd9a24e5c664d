// SpMM for packed SELL with values stored in bf16.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_bf16, SEVERAL_BLOCKS, 1, AsBf16)
SEVERAL_INSTANCES(multi_bf16, SEVERAL_BLOCKS, 4, AsBf16)
