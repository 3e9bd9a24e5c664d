// Packed SELL with one value for all entries, stored once.

#include "common.cuh"
#include "packed.cuh"

OVERLAPPING

INSTANCES(packed_same, 1, Same, 8, 6, 6, 5)
INSTANCES(packed_same, 4, Same, 8, 6, 6, 5)
