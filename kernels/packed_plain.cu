// Packed SELL with plain values.

#include "common.cuh"
#include "packed.cuh"

OVERLAPPING

INSTANCES(packed_plain, 1, Plain, 5, 6, 5, 5)
INSTANCES(packed_plain, 4, Plain, 8, 5, 6, 5)
