// SpMM for packed SELL with plain values.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES(psell_spmm_plain, SEVERAL_BLOCKS, 1, Plain)
SEVERAL_INSTANCES(psell_spmm_plain, MANY_BLOCKS, 4, Plain)
