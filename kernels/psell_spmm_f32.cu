// SpMM for packed SELL with values of an f64 matrix stored in f32.
//
// Variants: streamed.

#include "common.cuh"
#include "psell_spmv.cuh"
#include "psell_spmm.cuh"

SEVERAL_INSTANCES_F64(psell_spmm_f32, SEVERAL_BLOCKS, 1, AsF32)
SEVERAL_INSTANCES_F64(psell_spmm_f32, SEVERAL_BLOCKS, 4, AsF32)
