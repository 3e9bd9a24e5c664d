// SpMM for packed SELL with values stored in f16.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES(psell_spmm_f16, SEVERAL_BLOCKS, 1, AsF16)
SEVERAL_INSTANCES(psell_spmm_f16, SEVERAL_BLOCKS, 4, AsF16)
