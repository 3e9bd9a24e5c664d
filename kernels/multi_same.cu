// Several vectors at once with packed slices whose values are all the same.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_same, SEVERAL_BLOCKS, 1, Same)
SEVERAL_INSTANCES(multi_same, MANY_BLOCKS, 4, Same)
