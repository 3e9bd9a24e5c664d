// Several vectors at once with packed slices whose values are all the same.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_same, 1, Same)
SEVERAL_INSTANCES(multi_same, 4, Same)
