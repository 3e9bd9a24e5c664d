// Sorting of keys in shared memory.

#pragma once

// Sorts `size` keys, a power of two, in ascending order by a bitonic network (Batcher, AFIPS 1968).
// All threads of the block take part. They wait for one another before and after.
__device__ __forceinline__ void sort_keys(u32 *keys, u32 size) {
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 offset = run / 2; offset > 0; offset /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < size / 2; pair += BLOCK) {
                u32 i = (pair & ~(offset - 1)) << 1 | (pair & (offset - 1)), j = i | offset;
                u32 one = keys[i], other = keys[j];
                if ((one > other) == ((i & run) == 0)) {
                    keys[i] = other;
                    keys[j] = one;
                }
            }
        }
    __syncthreads();
}
