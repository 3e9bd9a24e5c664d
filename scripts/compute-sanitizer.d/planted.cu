// Faults that compute-sanitizer has to find, one for each of its tools: planted TOOL.

#include <cstdio>
#include <cstring>

constexpr unsigned THREADS = 128;

// A write past the end of the allocation.
__global__ void memcheck(int *array, unsigned count) { array[count + threadIdx.x] = 1; }

// A read of memory that nothing has written.
__global__ void initcheck(const int *array, int *sum) { atomicAdd(sum, array[threadIdx.x]); }

// A write and a read of shared memory without a barrier between them.
__global__ void racecheck(int *array) {
    __shared__ int shared[THREADS];
    shared[threadIdx.x] = threadIdx.x;
    array[threadIdx.x] = shared[THREADS - 1 - threadIdx.x];
}

// A barrier that half of a warp does not reach.
__global__ void synccheck(int *array) {
    if (threadIdx.x % 2) __syncthreads();
    array[threadIdx.x] = 1;
}

int main(int count, char **arguments) {
    const char *tool = count > 1 ? arguments[1] : "";
    int *array, *sum;
    cudaMalloc(&array, THREADS * sizeof *array);
    cudaMalloc(&sum, sizeof *sum);
    cudaMemset(sum, 0, sizeof *sum);
    if (!strcmp(tool, "memcheck")) memcheck<<<1, THREADS>>>(array, 1 << 24);
    else if (!strcmp(tool, "initcheck")) initcheck<<<1, THREADS>>>(array, sum);
    else if (!strcmp(tool, "racecheck")) racecheck<<<1, THREADS>>>(array);
    else if (!strcmp(tool, "synccheck")) synccheck<<<1, THREADS>>>(array);
    else return fprintf(stderr, "usage: planted memcheck|initcheck|racecheck|synccheck\n"), 2;
    cudaDeviceSynchronize();
    cudaFree(array);
    cudaFree(sum);
    return 0;
}
