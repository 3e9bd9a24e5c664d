// SpMM for packed SELL with values stored in bf16.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES(psell_spmm_bf16, SEVERAL_BLOCKS, 1, AsBf16)
SEVERAL_INSTANCES(psell_spmm_bf16, SEVERAL_BLOCKS, 4, AsBf16)
