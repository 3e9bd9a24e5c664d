/* sparseop: y = A x with a sparse A, stored as suits it. Written by cbindgen; do not edit. */

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
 The first GPU that can be used, else the CPU.
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
 Only plans whose products repeat their bits.
 */
#define SPARSEOP_DETERMINISTIC 1

/*
 Values are to be updated: prepares for it, and chooses no plan that cannot.
 */
#define SPARSEOP_UPDATABLE 2

/*
 Transposed products are to come: prepares for them at once.
 */
#define SPARSEOP_TRANSPOSE 4

/*
 Element j of vector v at v * length + j: one vector after the other.
 */
#define SPARSEOP_COLUMN_MAJOR 0

/*
 Element j of vector v at j * count + v: vectors side by side, which is the faster way.
 */
#define SPARSEOP_ROW_MAJOR 1

/*
 How a call ended.
 */
typedef enum sparseop_status {
    /*
     All went well.
     */
    SPARSEOP_STATUS_OK = 0,
    /*
     A pointer is null that must not be, is not aligned, or does not lead to memory of the device.
     */
    SPARSEOP_STATUS_INVALID_POINTER = 1,
    /*
     A number is none of those that are allowed, or a text is not what it should be.
     */
    SPARSEOP_STATUS_INVALID_ARGUMENT = 2,
    /*
     The arrays are not those of a matrix.
     */
    SPARSEOP_STATUS_INVALID_MATRIX = 3,
    /*
     A vector has the wrong length, or values are too few or too many.
     */
    SPARSEOP_STATUS_WRONG_LENGTH = 4,
    /*
     There is no such device, or it cannot be used.
     */
    SPARSEOP_STATUS_DEVICE_UNAVAILABLE = 5,
    /*
     Something is on another device than the matrix.
     */
    SPARSEOP_STATUS_WRONG_DEVICE = 6,
    /*
     There is not enough memory, or the limit that was set is too low.
     */
    SPARSEOP_STATUS_OUT_OF_MEMORY = 7,
    /*
     The GPU or its driver failed.
     */
    SPARSEOP_STATUS_GPU_FAILED = 8,
    /*
     The operator cannot do this; the message says what can be done.
     */
    SPARSEOP_STATUS_NOT_POSSIBLE = 9,
    /*
     Something else; the message says what.
     */
    SPARSEOP_STATUS_FAILED = 10,
    /*
     A defect of this library, which is not to happen.
     */
    SPARSEOP_STATUS_PANICKED = 11,
} sparseop_status;

/*
 A sparse matrix, stored as suits it, to be multiplied with again and again. Products may be made by several threads at once; what
 changes the operator waits for them.
 */
typedef struct sparseop_operator sparseop_operator;

/*
 A CUDA stream that is not owned.
 */
typedef struct sparseop_stream sparseop_stream;

/*
 A matrix in compressed sparse rows, counted from 0: row i has the entries row_offsets[i] to row_offsets[i + 1] - 1.
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
     SPARSEOP_F32 or SPARSEOP_F64: what the values are.
     */
    uint32_t scalar;
    /*
     32 or 64: what the offsets are, signed or not.
     */
    uint32_t offset_bits;
    /*
     nrows + 1 offsets.
     */
    const void *row_offsets;
    /*
     nnz columns.
     */
    const int32_t *columns;
    /*
     nnz values.
     */
    const void *values;
} sparseop_csr;

/*
 How an operator is made. All zero means that nothing is said, and is what NULL stands for.
 */
typedef struct sparseop_options {
    /*
     SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU or SPARSEOP_DEVICE_CUDA.
     */
    uint32_t device;
    /*
     Which GPU, counted from 0, with SPARSEOP_DEVICE_CUDA.
     */
    uint32_t ordinal;
    /*
     How many products are to come; 0: not known.
     */
    uint64_t expected_calls;
    /*
     Bytes that the packed matrix may take; 0: what is sensible.
     */
    uint64_t memory_limit;
    /*
     SPARSEOP_DETERMINISTIC, SPARSEOP_UPDATABLE, SPARSEOP_TRANSPOSE, added up.
     */
    uint32_t flags;
    /*
     A plan, such as "csr" or "sell(c:32,sigma:512)"; NULL: the one that is predicted to be the fastest.
     */
    const char *plan;
} sparseop_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What the last call of this thread that failed has to say, in one line of UTF-8; empty when none has failed. Valid until the next call
 of this thread that fails.
 */
const char *sparseop_last_error(void);

/*
 The version of the library, such as "0.1.0".
 */
const char *sparseop_version(void);

/*
 Wraps a CUstream, or cudaStream_t, of the primary context of a GPU, for products on it. NULL is the legacy default stream; the
 per-thread default stream is refused. What products need for themselves is kept as long as the wrapper: make one for a stream,
 not one for a product.

 # Safety

 The CUstream outlives the wrapper. `stream` has room for a pointer.
 */
enum sparseop_status sparseop_stream_wrap(uint32_t ordinal,
                                          void *cuda_stream,
                                          struct sparseop_stream **stream);

/*
 Gives a wrapper up, not the stream; nothing with NULL.

 # Safety

 It was made by sparseop_stream_wrap and is not used any more.
 */
void sparseop_stream_destroy(struct sparseop_stream *stream);

/*
 Makes an operator for a matrix in host memory, which is copied. `options` may be NULL.

 # Safety

 The arrays have the lengths that `matrix` tells. `operator` has room for a pointer.
 */
enum sparseop_status sparseop_create(const struct sparseop_csr *matrix,
                                     const struct sparseop_options *options,
                                     struct sparseop_operator **operator_);

/*
 Makes an operator for a matrix whose arrays are in the memory of a GPU, that of the stream, once everything that is enqueued there is
 done. They are copied to the host once, to be analysed and checked, and packed on the GPU where that can be done; afterwards nothing of
 them is kept. `options` may be NULL; their device, if any, has to be that GPU.

 # Safety

 The arrays have the lengths that `matrix` tells, and nobody changes them meanwhile. `operator` has room for a pointer.
 */
enum sparseop_status sparseop_create_from_device(const struct sparseop_csr *matrix,
                                                 const struct sparseop_stream *stream,
                                                 const struct sparseop_options *options,
                                                 struct sparseop_operator **operator_);

/*
 Gives an operator up; nothing with NULL.

 # Safety

 It was made by sparseop_create or sparseop_create_from_device and is not used any more.
 */
void sparseop_destroy(struct sparseop_operator *operator_);

/*
 The number of rows, columns and entries; each pointer may be NULL.

 # Safety

 The operator is alive; the pointers lead to room for a number, if anywhere.
 */
enum sparseop_status sparseop_shape(const struct sparseop_operator *operator_,
                                    size_t *nrows,
                                    size_t *ncols,
                                    size_t *nnz);

/*
 Bytes that the packed matrix takes in the memory of its device; 0 without an operator.

 # Safety

 The operator is alive, if there is one.
 */
uint64_t sparseop_memory_bytes(const struct sparseop_operator *operator_);

/*
 Writes the plan of the operator, such as "sell(c:32,sigma:512)", to a buffer of so many bytes, with a NUL behind it, cut where it has no
 room; gives the length of all of it without the NUL, as snprintf does. A buffer of NULL and 0 asks for the length alone. 0 without an
 operator.

 # Safety

 The operator is alive, if there is one, and the buffer has so many bytes.
 */
size_t sparseop_plan(const struct sparseop_operator *operator_,
                     char *buffer,
                     size_t capacity);

/*
 Writes why the plan was chosen, in lines of text; otherwise as sparseop_plan.

 # Safety

 As of sparseop_plan.
 */
size_t sparseop_explain(const struct sparseop_operator *operator_, char *buffer, size_t capacity);

/*
 y = A x with vectors in host memory, of the operator's kind: ncols elements and nrows. `y` is overwritten without being read.

 # Safety

 The operator is alive, and the vectors have so many elements.
 */
enum sparseop_status sparseop_apply(const struct sparseop_operator *operator_,
                                    const void *x,
                                    size_t x_len,
                                    void *y,
                                    size_t y_len);

/*
 y = alpha A x + beta y, as in BLAS: with beta = 0 nothing of `y` is read. Otherwise as sparseop_apply.

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
 y = A^T x: `x` has nrows elements and `y` has ncols. The transposed matrix is packed at the first such product, unless that was announced
 with SPARSEOP_TRANSPOSE. Otherwise as sparseop_apply.

 # Safety

 As of sparseop_apply.
 */
enum sparseop_status sparseop_apply_transpose(const struct sparseop_operator *operator_,
                                              const void *x,
                                              size_t x_len,
                                              void *y,
                                              size_t y_len);

/*
 Y = A X for `count` vectors at once, in SPARSEOP_ROW_MAJOR or SPARSEOP_COLUMN_MAJOR; the lengths are those of all vectors together.
 Otherwise as sparseop_apply.

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
 y = A x with vectors in the memory of the operator's GPU, enqueued on the stream: neither copied nor waited for. For an operator on the
 CPU the stream is NULL and the vectors are in host memory.

 # Safety

 The operator and the stream are alive; the vectors have so many elements and live until the product is done.
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
 Y = A X for `count` vectors at once; otherwise as sparseop_apply_device and sparseop_apply_multi.

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
 Replaces the values of all entries, in the order in which they were given; the pattern stays. See SPARSEOP_UPDATABLE.

 # Safety

 The operator is alive, and there are so many values.
 */
enum sparseop_status sparseop_update_values(struct sparseop_operator *operator_, const void *values, size_t len);

/*
 Replaces the values by some in the memory of the operator's GPU; only enqueued on the stream, as products are. Otherwise as
 sparseop_update_values and sparseop_apply_device.

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
