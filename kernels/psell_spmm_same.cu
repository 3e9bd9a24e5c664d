// SpMM for packed SELL with one value for all entries.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES(psell_spmm_same, SEVERAL_BLOCKS, 1, Same)
SEVERAL_INSTANCES(psell_spmm_same, MANY_BLOCKS, 4, Same)
