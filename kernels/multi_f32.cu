// SpMM for packed SELL with values of an f64 matrix stored in f32.

#include "common.cuh"
#include "packed.cuh"
#include "multi.cuh"

SEVERAL_INSTANCES_F64(multi_f32, SEVERAL_BLOCKS, 1, AsF32)
SEVERAL_INSTANCES_F64(multi_f32, SEVERAL_BLOCKS, 4, AsF32)
