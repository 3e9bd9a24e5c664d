// Packed SELL with values of an f64 matrix stored in f32.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES_OF(psell_spmv_f32, 1, AsF32, double, f64, 6, 5)
INSTANCES_OF(psell_spmv_f32, 4, AsF32, double, f64, 5, 5)
