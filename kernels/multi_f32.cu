// Several vectors at once with packed slices whose values of a matrix in f64 are stored in f32.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES_F64(multi_f32, SEVERAL_BLOCKS, 1, AsF32)
SEVERAL_INSTANCES_F64(multi_f32, SEVERAL_BLOCKS, 4, AsF32)
