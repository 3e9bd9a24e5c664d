// Packed SELL, with a module for each storage of the values.
//
// Modules: plain, coded, same, bf16, f16, f32.
// Variants: scaled, streamed, evict_first, shared.
// Rare: bf16, f16, f32, scaled.
// Selectable: one kernel at a time.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

#if defined(MODULE_plain)
// Plain values.
INSTANCES(psell_spmv_plain, 1, Plain, 5, 6, 5, 5)
INSTANCES(psell_spmv_plain, 4, Plain, 8, 5, 6, 5)
#elif defined(MODULE_coded)
// Codes of a dictionary.
INSTANCES(psell_spmv_coded, 1, Coded, 8, 6, 5, 5)
INSTANCES(psell_spmv_coded, 4, Coded, 8, 6, 6, 5)
#elif defined(MODULE_same)
// One value for all entries, stored once.
INSTANCES(psell_spmv_same, 1, Same, 8, 6, 6, 5)
INSTANCES(psell_spmv_same, 4, Same, 8, 6, 6, 5)
#elif defined(MODULE_bf16)
INSTANCES(psell_spmv_bf16, 1, AsBf16, 5, 6, 5, 5)
INSTANCES(psell_spmv_bf16, 4, AsBf16, 8, 5, 5, 5)
#elif defined(MODULE_f16)
INSTANCES(psell_spmv_f16, 1, AsF16, 5, 6, 5, 5)
INSTANCES(psell_spmv_f16, 4, AsF16, 8, 5, 5, 5)
#elif defined(MODULE_f32)
// Values of an f64 matrix.
INSTANCES_OF(psell_spmv_f32, 1, AsF32, double, f64, 5, 5)
INSTANCES_OF(psell_spmv_f32, 4, AsF32, double, f64, 5, 5)
#endif
