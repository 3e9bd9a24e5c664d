// Packed SELL with plain values.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES(psell_spmv_plain, 1, Plain, 5, 6, 5, 5)
INSTANCES(psell_spmv_plain, 4, Plain, 8, 5, 6, 5)
