// Packed SELL with values stored in bf16.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES(psell_spmv_bf16, 1, AsBf16, 5, 6, 5, 5)
INSTANCES(psell_spmv_bf16, 4, AsBf16, 8, 5, 5, 5)
