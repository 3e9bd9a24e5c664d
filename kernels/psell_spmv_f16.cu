// Packed SELL with values stored in f16.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES(psell_spmv_f16, 1, AsF16, 5, 6, 5, 5)
INSTANCES(psell_spmv_f16, 4, AsF16, 8, 5, 5, 5)
