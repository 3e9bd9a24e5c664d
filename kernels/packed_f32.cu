// Packed SELL with values of an f64 matrix stored in f32.

#include "common.cuh"
#include "packed.cuh"

OVERLAPPING

INSTANCES_OF(packed_f32, 1, AsF32, double, f64, 6, 5)
INSTANCES_OF(packed_f32, 4, AsF32, double, f64, 5, 5)
