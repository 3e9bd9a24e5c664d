// Several vectors at once with packed slices whose values are codes of a dictionary.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES(multi_coded, 1, Coded)
SEVERAL_INSTANCES(multi_coded, 4, Coded)
