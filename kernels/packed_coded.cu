// Packed SELL with values stored as codes of a dictionary.

#include "common.cuh"
#include "packed.cuh"

OVERLAPPING

INSTANCES(packed_coded, 1, Coded, 8, 6, 5, 5)
INSTANCES(packed_coded, 4, Coded, 8, 6, 6, 5)
