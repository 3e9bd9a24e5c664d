// The value that all entries of a matrix have.

#include "common.cuh"

// Sets `differ` if the bits of some values are not those of the first.
#define INSTANCES(SUFFIX, B)                                                   \
    KERNEL(common_value_differ_##SUFFIX)(const B *values, u64 count, u32 *differ) { \
        u64 i = thread_id();                                                   \
        if (i < count && values[i] != values[0]) *differ = 1;                  \
    }

INSTANCES(f32, u32)
INSTANCES(f64, u64)
