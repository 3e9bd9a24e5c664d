// Packed SELL with values stored as codes of a dictionary.
//
// Variants: scaled, streamed, shared.

#include "common.cuh"
#include "psell_spmv.cuh"

OVERLAPPING

INSTANCES(psell_spmv_coded, 1, Coded, 8, 6, 5, 5)
INSTANCES(psell_spmv_coded, 4, Coded, 8, 6, 6, 5)
