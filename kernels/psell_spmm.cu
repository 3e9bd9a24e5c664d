// SpMM for packed SELL, with a module for each storage of the values.
//
// Modules: plain, coded, same, bf16, f16, f32.
// Variants: streamed.
// Rare: bf16, f16, f32.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "psell_spmm.cuh"

#if defined(MODULE_plain)
// Plain values.
SPMM_INSTANCES(psell_spmm_plain, SPMM_BLOCKS, 1, Plain)
SPMM_INSTANCES(psell_spmm_plain, SPMM_BLOCKS_GROUPED, 4, Plain)
#elif defined(MODULE_coded)
// Codes of a dictionary.
SPMM_INSTANCES(psell_spmm_coded, SPMM_BLOCKS, 1, Coded)
SPMM_INSTANCES(psell_spmm_coded, SPMM_BLOCKS, 4, Coded)
#elif defined(MODULE_same)
// One value for all entries, stored once.
SPMM_INSTANCES(psell_spmm_same, SPMM_BLOCKS, 1, Same)
SPMM_INSTANCES(psell_spmm_same, SPMM_BLOCKS_GROUPED, 4, Same)
#elif defined(MODULE_bf16)
SPMM_INSTANCES(psell_spmm_bf16, SPMM_BLOCKS, 1, AsBf16)
SPMM_INSTANCES(psell_spmm_bf16, SPMM_BLOCKS, 4, AsBf16)
#elif defined(MODULE_f16)
SPMM_INSTANCES(psell_spmm_f16, SPMM_BLOCKS, 1, AsF16)
SPMM_INSTANCES(psell_spmm_f16, SPMM_BLOCKS, 4, AsF16)
#elif defined(MODULE_f32)
// Values of an f64 matrix.
SPMM_INSTANCES_F64(psell_spmm_f32, SPMM_BLOCKS, 1, AsF32)
SPMM_INSTANCES_F64(psell_spmm_f32, SPMM_BLOCKS, 4, AsF32)
#endif
