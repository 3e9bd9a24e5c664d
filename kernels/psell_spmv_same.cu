// Packed SELL with one value for all entries, stored once.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES(psell_spmv_same, 1, Same, 8, 6, 6, 5)
INSTANCES(psell_spmv_same, 4, Same, 8, 6, 6, 5)
