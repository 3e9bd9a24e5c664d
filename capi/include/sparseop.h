/* sparseop: auto-tuned sparse matrix-vector products (SpMV). Written by cbindgen; do not edit. */

#ifndef SPARSEOP_H
#define SPARSEOP_H

#include <stddef.h>
#include <stdint.h>

/*
 32-bit floating point numbers.
 */
#define SPARSEOP_F32 1

/*
 64-bit floating point numbers.
 */
#define SPARSEOP_F64 2

/*
 The first usable GPU, otherwise the CPU.
 */
#define SPARSEOP_DEVICE_AUTO 0

/*
 The CPU.
 */
#define SPARSEOP_DEVICE_CPU 1

/*
 The GPU of the given ordinal.
 */
#define SPARSEOP_DEVICE_CUDA 2

/*
 Restricts the choice to plans with bitwise reproducible products.
 */
#define SPARSEOP_DETERMINISTIC 1

/*
 Prepares for updates of the values, and excludes plans without them.
 */
#define SPARSEOP_UPDATABLE 2

/*
 Prepares for transposed products when the operator is created.
 */
#define SPARSEOP_TRANSPOSE 4

/*
 Chooses the plan by prediction alone: no product is timed, and the same matrix gets the same
 plan.
 */
#define SPARSEOP_PREDICT 8

/*
 Element j of vector v at v * length + j.
 */
#define SPARSEOP_COLUMN_MAJOR 0

/*
 Element j of vector v at j * count + v; the faster layout.
 */
#define SPARSEOP_ROW_MAJOR 1

/*
 Status of a call.
 */
typedef enum sparseop_status {
    /*
     Success.
     */
    SPARSEOP_STATUS_OK = 0,
    /*
     A pointer is null or misaligned, or is not in the memory of the device.
     */
    SPARSEOP_STATUS_INVALID_POINTER = 1,
    /*
     A number or a text is not one of the allowed values.
     */
    SPARSEOP_STATUS_INVALID_ARGUMENT = 2,
    /*
     The arrays are not a valid matrix.
     */
    SPARSEOP_STATUS_INVALID_MATRIX = 3,
    /*
     A vector or the array of values has the wrong length.
     */
    SPARSEOP_STATUS_WRONG_LENGTH = 4,
    /*
     The device does not exist or cannot be used.
     */
    SPARSEOP_STATUS_DEVICE_UNAVAILABLE = 5,
    /*
     A vector or matrix is on another device than the operator.
     */
    SPARSEOP_STATUS_WRONG_DEVICE = 6,
    /*
     Not enough memory, or the memory limit is too low.
     */
    SPARSEOP_STATUS_OUT_OF_MEMORY = 7,
    /*
     The GPU or its driver failed.
     */
    SPARSEOP_STATUS_GPU_FAILED = 8,
    /*
     The operation is not supported by the plan; the message names alternatives.
     */
    SPARSEOP_STATUS_NOT_POSSIBLE = 9,
    /*
     Another failure; the message describes it.
     */
    SPARSEOP_STATUS_FAILED = 10,
    /*
     A panic: a defect of this library.
     */
    SPARSEOP_STATUS_PANICKED = 11,
} sparseop_status;

/*
 A sparse matrix, packed for repeated products. Any number of threads may multiply at the same
 time; functions that modify the operator wait for them.

 A child of fork may use operators on the CPU that its parent has created, and create others,
 unless another thread of the parent was in a call at the time of the fork. The threads of the
 library do not exist in the child: each of its threads computes alone, with the same results.
 */
typedef struct sparseop_operator sparseop_operator;

/*
 A CUDA stream of the caller.
 */
typedef struct sparseop_stream sparseop_stream;

/*
 A matrix in compressed sparse rows (CSR), counted from 0: row i has the entries row_offsets[i]
 to row_offsets[i + 1] - 1.
 */
typedef struct sparseop_csr {
    /*
     Number of rows.
     */
    size_t nrows;
    /*
     Number of columns.
     */
    size_t ncols;
    /*
     Number of entries.
     */
    size_t nnz;
    /*
     Type of the values: SPARSEOP_F32 or SPARSEOP_F64.
     */
    uint32_t scalar;
    /*
     Bits of an offset, signed or unsigned: 32 or 64.
     */
    uint32_t offset_bits;
    /*
     nrows + 1 offsets.
     */
    const void *row_offsets;
    /*
     nnz column indices.
     */
    const int32_t *columns;
    /*
     nnz values.
     */
    const void *values;
} sparseop_csr;

/*
 Options of an operator. Zero selects the default of each field; NULL is all zero.
 */
typedef struct sparseop_options {
    /*
     SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU or SPARSEOP_DEVICE_CUDA.
     */
    uint32_t device;
    /*
     Ordinal of the GPU, from 0, with SPARSEOP_DEVICE_CUDA.
     */
    uint32_t ordinal;
    /*
     Expected number of products; 0: unknown.
     */
    uint64_t expected_calls;
    /*
     Memory limit of the packed matrix in bytes; 0: the default.
     */
    uint64_t memory_limit;
    /*
     Sum of SPARSEOP_DETERMINISTIC, SPARSEOP_UPDATABLE, SPARSEOP_TRANSPOSE and SPARSEOP_PREDICT.
     */
    uint32_t flags;
    /*
     Plan, such as "csr" or "sell(c:32,sigma:512)"; NULL: the plan with the least predicted time,
     checked with at most 30 products and 2 % of the expected ones (see SPARSEOP_PREDICT).
     */
    const char *plan;
} sparseop_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Message of the last failed call of this thread, one line of UTF-8; empty if no call has
 failed. Valid until the next failed call of this thread.
 */
const char *sparseop_last_error(void);

/*
 The version of the library, such as "0.1.0".
 */
const char *sparseop_version(void);

/*
 Wraps a CUstream (cudaStream_t) of the primary context of a GPU, for products on it. NULL is
 the legacy default stream; the per-thread default stream is refused. The wrapper owns the
 scratch memory of products: create one wrapper per stream, not per product.

 # Safety

 The CUstream outlives the wrapper. `stream` has room for a pointer.
 */
enum sparseop_status sparseop_stream_wrap(uint32_t ordinal, void *cuda_stream, struct sparseop_stream **stream);

/*
 Destroys a wrapper, not the stream. NULL is ignored.

 # Safety

 The wrapper was created by sparseop_stream_wrap and is not used any more.
 */
void sparseop_stream_destroy(struct sparseop_stream *stream);

/*
 Creates an operator from a matrix in host memory, which is copied. `options` may be NULL.

 # Safety

 The arrays have the lengths given in `matrix`. `operator` has room for a pointer.
 */
enum sparseop_status sparseop_create(const struct sparseop_csr *matrix,
                                     const struct sparseop_options *options,
                                     struct sparseop_operator **operator_);

/*
 Creates an operator from a matrix in the memory of the GPU of the stream, after the work
 enqueued there. The arrays are checked, analysed and, where possible, packed on the GPU; they
 are not kept. `options` may be NULL; their device, if set, must be that GPU.

 # Safety

 The arrays have the lengths given in `matrix` and are not modified during the call. `operator`
 has room for a pointer.
 */
enum sparseop_status sparseop_create_from_device(const struct sparseop_csr *matrix,
                                                 const struct sparseop_stream *stream,
                                                 const struct sparseop_options *options,
                                                 struct sparseop_operator **operator_);

/*
 Destroys an operator. NULL is ignored.

 # Safety

 The operator was created by sparseop_create or sparseop_create_from_device and is not used any
 more.
 */
void sparseop_destroy(struct sparseop_operator *operator_);

/*
 Numbers of rows, columns and entries; each pointer may be NULL.

 # Safety

 The operator is alive; each pointer is NULL or has room for a number.
 */
enum sparseop_status sparseop_shape(const struct sparseop_operator *operator_,
                                    size_t *nrows,
                                    size_t *ncols,
                                    size_t *nnz);

/*
 Bytes of all packings and of the data for updates, in the memory of their device; 0 for NULL.

 # Safety

 The operator is NULL or alive.
 */
uint64_t sparseop_memory_bytes(const struct sparseop_operator *operator_);

/*
 Writes the plan of the operator, such as "sell(c:32,sigma:512)", to a buffer of `capacity`
 bytes, truncated and NUL-terminated. Returns the length of the whole text without the NUL, as
 snprintf does; a buffer of NULL and 0 asks for the length alone. 0 for an operator of NULL.

 # Safety

 The operator is NULL or alive, and the buffer has `capacity` bytes.
 */
size_t sparseop_plan(const struct sparseop_operator *operator_, char *buffer, size_t capacity);

/*
 Writes the explanation of the choice, in lines of text; otherwise as sparseop_plan.

 # Safety

 As of sparseop_plan.
 */
size_t sparseop_explain(const struct sparseop_operator *operator_, char *buffer, size_t capacity);

/*
 y = A x with vectors in host memory, of the operator's scalar type: ncols elements of `x` and
 nrows of `y`. `y` is overwritten without being read.

 # Safety

 The operator is alive, and the vectors have as many elements as stated.
 */
enum sparseop_status sparseop_apply(const struct sparseop_operator *operator_,
                                    const void *x,
                                    size_t x_len,
                                    void *y,
                                    size_t y_len);

/*
 y = alpha A x + beta y, as in BLAS: `y` is not read if beta = 0. Otherwise as sparseop_apply.

 # Safety

 As of sparseop_apply.
 */
enum sparseop_status sparseop_apply_with(const struct sparseop_operator *operator_,
                                         double alpha,
                                         const void *x,
                                         size_t x_len,
                                         double beta,
                                         void *y,
                                         size_t y_len);

/*
 y = A^T x: `x` has nrows elements and `y` has ncols. The transposed matrix is packed at the
 first such product, or at creation with SPARSEOP_TRANSPOSE. Otherwise as sparseop_apply.

 # Safety

 As of sparseop_apply.
 */
enum sparseop_status sparseop_apply_transpose(const struct sparseop_operator *operator_,
                                              const void *x,
                                              size_t x_len,
                                              void *y,
                                              size_t y_len);

/*
 Y = A X for `count` vectors (SpMM), in SPARSEOP_ROW_MAJOR or SPARSEOP_COLUMN_MAJOR; the
 lengths are those of all vectors together. Many plans pack the matrix a second time at the
 first such product, on the CPU not for 2 vectors in SPARSEOP_COLUMN_MAJOR and a matrix with
 short rows of near columns, and csr and psell on a GPU, depending on the matrix and the
 layout, at the first with more than 4, 8 or 32 vectors in f32, or 2, 4 or 16 in f64. This
 packing counts towards the memory limit: if it does not fit, csr and psell do without it, and
 with other plans the status is SPARSEOP_STATUS_OUT_OF_MEMORY. Otherwise as sparseop_apply.

 # Safety

 As of sparseop_apply.
 */
enum sparseop_status sparseop_apply_multi(const struct sparseop_operator *operator_,
                                          size_t count,
                                          uint32_t layout,
                                          const void *x,
                                          size_t x_len,
                                          void *y,
                                          size_t y_len);

/*
 y = A x with vectors in the memory of the operator's GPU, enqueued on the stream: neither
 copied nor waited for. For an operator on the CPU the stream is NULL and the vectors are in
 host memory.

 # Safety

 The operator and the stream are alive; the vectors have as many elements as stated and live
 until the product is complete.
 */
enum sparseop_status sparseop_apply_device(const struct sparseop_operator *operator_,
                                           const struct sparseop_stream *stream,
                                           const void *x,
                                           size_t x_len,
                                           void *y,
                                           size_t y_len);

/*
 y = alpha A x + beta y; otherwise as sparseop_apply_device.

 # Safety

 As of sparseop_apply_device.
 */
enum sparseop_status sparseop_apply_with_device(const struct sparseop_operator *operator_,
                                                const struct sparseop_stream *stream,
                                                double alpha,
                                                const void *x,
                                                size_t x_len,
                                                double beta,
                                                void *y,
                                                size_t y_len);

/*
 y = A^T x; otherwise as sparseop_apply_device and sparseop_apply_transpose.

 # Safety

 As of sparseop_apply_device.
 */
enum sparseop_status sparseop_apply_transpose_device(const struct sparseop_operator *operator_,
                                                     const struct sparseop_stream *stream,
                                                     const void *x,
                                                     size_t x_len,
                                                     void *y,
                                                     size_t y_len);

/*
 Y = A X for `count` vectors; otherwise as sparseop_apply_device and sparseop_apply_multi. A
 second packing is waited for, and is no part of a graph: make the first such product before
 the stream is captured.

 # Safety

 As of sparseop_apply_device.
 */
enum sparseop_status sparseop_apply_multi_device(const struct sparseop_operator *operator_,
                                                 const struct sparseop_stream *stream,
                                                 size_t count,
                                                 uint32_t layout,
                                                 const void *x,
                                                 size_t x_len,
                                                 void *y,
                                                 size_t y_len);

/*
 Replaces the values of all entries, in the order of the arrays of the matrix; the pattern
 stays. See SPARSEOP_UPDATABLE.

 # Safety

 The operator is alive, and there are as many values as stated.
 */
enum sparseop_status sparseop_update_values(struct sparseop_operator *operator_, const void *values, size_t len);

/*
 Replaces the values by an array in the memory of the operator's GPU, enqueued on the stream.
 Otherwise as sparseop_update_values and sparseop_apply_device.

 # Safety

 As of sparseop_apply_device.
 */
enum sparseop_status sparseop_update_values_device(struct sparseop_operator *operator_,
                                                   const struct sparseop_stream *stream,
                                                   const void *values,
                                                   size_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPARSEOP_H */
