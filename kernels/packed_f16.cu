// Packed SELL with values stored in f16.

#include "common.cuh"
#include "packed.cuh"

OVERLAPPING

INSTANCES(packed_f16, 1, AsF16, 5, 6, 5, 5)
INSTANCES(packed_f16, 4, AsF16, 8, 5, 5, 5)
