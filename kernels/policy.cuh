// Policy of each generation of GPUs: launch bounds, and instructions that older ones lack. Measured
// numbers are those of compute capability 9.0; the others avoid spills.

#pragma once

#if defined(__CUDA_ARCH__)
#define ARCHITECTURE __CUDA_ARCH__
#else
// The host compiles no kernels.
#define ARCHITECTURE 0
#endif

// Turing, whose multiprocessors hold 1024 threads.
#define IS_TURING (ARCHITECTURE == 750)

// Asynchronous copies to shared memory, and reductions over a warp.
#define HAS_AMPERE (ARCHITECTURE >= 800)

// Programmatic dependent launch, and barriers in shared memory.
#define HAS_HOPPER (ARCHITECTURE >= 900)

// For Blackwell the compiler needs a few more registers.
#define HAS_BLACKWELL (ARCHITECTURE >= 1000)

// sm_120, whose multiprocessors hold 1536 threads.
#define HAS_SM_120 (ARCHITECTURE >= 1200)

// Minimum numbers of blocks per multiprocessor, which leave every thread enough registers.

// All kernels without a number of their own: 48 registers per thread, or 64 on Turing and sm_120.
#if IS_TURING || HAS_SM_120
#define KERNEL_BLOCKS 4
#else
#define KERNEL_BLOCKS 5
#endif

// CSR by chunks: a thread has registers for a batch. f64 needs more of them, and so do 64-bit row
// offsets.
#if IS_TURING
#define CHUNK_BLOCKS(T, O) 4
#elif HAS_SM_120
#define CHUNK_BLOCKS(T, O) 3
#elif defined(SCALED) || HAS_BLACKWELL
#define CHUNK_BLOCKS(T, O) (sizeof(T) == 8 ? 4 : 5)
#else
#define CHUNK_BLOCKS(T, O) (sizeof(T) == 4 ? 6 : sizeof(O) == 4 ? 5 : 4)
#endif

// SpMM by chunks: a thread has registers for a batch of units.
#define UNIT_BLOCKS 3

// ELL with the length of each row. For sm_100 the compiler needs a few more than 48 registers.
#if HAS_BLACKWELL
#define LENGTH_BLOCKS 4
#else
#define LENGTH_BLOCKS KERNEL_BLOCKS
#endif

// COO loads three arrays together; SELL of few slices whole rows.
#define SEGMENT_BLOCKS 4
#define DEEP_BLOCKS 2

// Packing: registers for a batch of entries, or for all numbers of a lane of cache blocks.
#define COPY_BLOCKS 4
#define FILL_BLOCKS 3

// Packed SELL. Short rows are bound by latency, so that the diagonal kernels, which need few
// registers, get the highest occupancy without spills. GPUs older than Hopper, the axpby epilogue
// and shared slices need a few registers more.
#if IS_TURING
#define SLICE_BLOCKS(HOPPER) 4
#elif defined(SHARING) && HAS_SM_120
#define SLICE_BLOCKS(HOPPER) ((HOPPER) == 8 ? 5 : (HOPPER) - 2)
#elif defined(SCALED) || defined(SHARING) || HAS_SM_120
#define SLICE_BLOCKS(HOPPER) (HOPPER - 2)
#elif ARCHITECTURE > 0 && !HAS_HOPPER
#define SLICE_BLOCKS(HOPPER) ((HOPPER) == 8 ? 6 : (HOPPER) - 1)
// Two kinds of loads need a few more than 40 registers.
#elif defined(STREAMED) && !defined(EVICT_FIRST)
#define SLICE_BLOCKS(HOPPER) ((HOPPER) == 6 ? 5 : (HOPPER))
#else
#define SLICE_BLOCKS(HOPPER) HOPPER
#endif

// SpMM with packed SELL. Where registers suffice, more blocks hide more of the latency of gathers.
#if IS_TURING
#define SPMM_BLOCKS 3
#else
#define SPMM_BLOCKS 4
#endif
#if ARCHITECTURE == 900
#define SPMM_BLOCKS_GROUPED 5
#else
#define SPMM_BLOCKS_GROUPED SPMM_BLOCKS
#endif

// Fused passes whose sums several GPUs share; no block waits for another of its launch. With three,
// those for Ampere and Blackwell spill 8 to 72 bytes.
#if HAS_BLACKWELL || (HAS_AMPERE && !HAS_HOPPER)
#define PEER_BLOCKS 2
#else
#define PEER_BLOCKS fused::COMBINE_BLOCKS
#endif

// Cache blocks that gather from global memory: 40 or 48 registers per thread, 64 on Turing.
#if IS_TURING
#define GATHER_BLOCKS_f32 4
#define GATHER_BLOCKS_f64 4
#else
#define GATHER_BLOCKS_f32 6
#define GATHER_BLOCKS_f64 5
#endif

// Tiles, whose blocks are larger. For Blackwell the compiler needs more than 32 registers.
#if IS_TURING || HAS_BLACKWELL
#define MULTIPLY_BLOCKS 1
#define SUM_BLOCKS 2
#else
#define MULTIPLY_BLOCKS 2
#define SUM_BLOCKS 3
#endif
