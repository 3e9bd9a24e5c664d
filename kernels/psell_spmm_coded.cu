// SpMM for packed SELL with values stored as codes of a dictionary.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES(psell_spmm_coded, SEVERAL_BLOCKS, 1, Coded)
SEVERAL_INSTANCES(psell_spmm_coded, SEVERAL_BLOCKS, 4, Coded)
