/* Products on a GPU from C, with memory and a stream of the program's own. It needs only the CUDA
 * driver. Without a GPU it prints a message and does nothing.
 *
 *   cc -I capi/include examples/c/device.c -L target/release -lsparseop_c \
 *      -Wl,-rpath,target/release -ldl -o device && ./device
 */
#define _POSIX_C_SOURCE 200809L
#include "sparseop.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

/* Functions of the CUDA driver. */
static int (*cu_init)(unsigned);
static int (*cu_device_get)(int *, int);
static int (*cu_context_retain)(void **, int);
static int (*cu_context_set)(void *);
static int (*cu_alloc)(address *, size_t);
static int (*cu_free)(address);
static int (*cu_copy_in)(address, const void *, size_t);
static int (*cu_copy_out)(void *, address, size_t);
static int (*cu_stream_create)(void **, unsigned);
static int (*cu_stream_wait)(void *);
static int (*cu_stream_destroy)(void *);

static int load(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static int driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library && load(library, "cuInit", &cu_init) && load(library, "cuDeviceGet", &cu_device_get) &&
           load(library, "cuDevicePrimaryCtxRetain", &cu_context_retain) &&
           load(library, "cuCtxSetCurrent", &cu_context_set) && load(library, "cuMemAlloc_v2", &cu_alloc) &&
           load(library, "cuMemFree_v2", &cu_free) && load(library, "cuMemcpyHtoD_v2", &cu_copy_in) &&
           load(library, "cuMemcpyDtoH_v2", &cu_copy_out) && load(library, "cuStreamCreate", &cu_stream_create) &&
           load(library, "cuStreamSynchronize", &cu_stream_wait) &&
           load(library, "cuStreamDestroy_v2", &cu_stream_destroy) && cu_init(0) == 0;
}

static void cuda(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: CUDA error %d\n", what, code);
        exit(1);
    }
}

static void check(sparseop_status status, const char *what) {
    if (status != SPARSEOP_STATUS_OK) {
        fprintf(stderr, "%s: %s (status %d)\n", what, sparseop_last_error(), (int)status);
        exit(1);
    }
}

static address upload(const void *data, size_t bytes) {
    address at = 0;
    cuda(cu_alloc(&at, bytes), "cuMemAlloc");
    cuda(cu_copy_in(at, data, bytes), "cuMemcpyHtoD");
    return at;
}

/* Rows of five entries far apart, each of them 1 or 2. */
enum { ROWS = 40000, ENTRIES = 5 * ROWS };
static int32_t offsets[ROWS + 1], columns[ENTRIES];
static float values[ENTRIES], x[ROWS], y[ROWS];

static float expected(int row) {
    float sum = 0;
    for (int k = 5 * row; k < 5 * row + 5; k++) {
        sum += values[k] * x[columns[k]];
    }
    return sum;
}

static void compare(address at, void *stream, float factor, const char *what) {
    cuda(cu_stream_wait(stream), "cuStreamSynchronize");
    cuda(cu_copy_out(y, at, sizeof y), "cuMemcpyDtoH");
    for (int row = 0; row < ROWS; row++) {
        if (y[row] != factor * expected(row)) {
            fprintf(stderr, "%s: %g instead of %g in row %d\n", what, y[row], factor * expected(row), row);
            exit(1);
        }
    }
}

int main(void) {
    int device;
    void *context, *stream;
    if (!driver() || cu_device_get(&device, 0) != 0 || cu_context_retain(&context, device) != 0) {
        printf("no GPU: nothing was done\n");
        return 0;
    }
    cuda(cu_context_set(context), "cuCtxSetCurrent");
    for (int row = 0; row < ROWS; row++) {
        offsets[row] = 5 * row;
        x[row] = (float)(row % 7);
        for (int k = 0; k < 5; k++) {
            columns[5 * row + k] = (row + 7919 * k) % ROWS;
            values[5 * row + k] = (float)(1 + (row + k) % 2);
        }
    }
    offsets[ROWS] = ENTRIES;
    const address d_offsets = upload(offsets, sizeof offsets), d_columns = upload(columns, sizeof columns);
    const address d_values = upload(values, sizeof values), d_x = upload(x, sizeof x), d_y = upload(y, sizeof y);
    /* Copies from pageable memory return before they are complete, and a non-blocking stream does
     * not wait for them. */
    cuda(cu_stream_wait(NULL), "cuStreamSynchronize");
    cuda(cu_stream_create(&stream, 1), "cuStreamCreate");

    sparseop_stream *wrapped = NULL;
    check(sparseop_stream_wrap(0, stream, &wrapped), "stream_wrap");
    const sparseop_csr matrix = {ROWS, ROWS, ENTRIES, SPARSEOP_F32, 32, (const void *)(size_t)d_offsets,
                                 (const int32_t *)(size_t)d_columns, (const void *)(size_t)d_values};
    sparseop_options options = {0};
    options.flags = SPARSEOP_UPDATABLE;
    sparseop_operator *op = NULL;
    check(sparseop_create_from_device(&matrix, wrapped, &options, &op), "create_from_device");
    char plan[128];
    sparseop_plan(op, plan, sizeof plan);
    printf("plan %s\n", plan);

    const void *in = (const void *)(size_t)d_x;
    void *out = (void *)(size_t)d_y;
    check(sparseop_apply_device(op, wrapped, in, ROWS, out, ROWS), "apply_device");
    compare(d_y, stream, 1, "product");
    check(sparseop_apply_with_device(op, wrapped, 2.0, in, ROWS, 1.0, out, ROWS), "apply_with_device");
    compare(d_y, stream, 3, "scaled product");
    for (int k = 0; k < ENTRIES; k++) {
        values[k] = (float)(1 + k % 3);
    }
    cuda(cu_copy_in(d_values, values, sizeof values), "cuMemcpyHtoD");
    cuda(cu_stream_wait(NULL), "cuStreamSynchronize");
    check(sparseop_update_values_device(op, wrapped, (const void *)(size_t)d_values, ENTRIES), "update_values_device");
    check(sparseop_apply_device(op, wrapped, in, ROWS, out, ROWS), "apply_device");
    compare(d_y, stream, 1, "product with new values");
    if (sparseop_apply_device(op, wrapped, x, ROWS, out, ROWS) != SPARSEOP_STATUS_INVALID_POINTER) {
        fprintf(stderr, "memory of the host was taken for that of the GPU\n");
        return 1;
    }
    printf("refused: %s\n", sparseop_last_error());

    sparseop_destroy(op);
    sparseop_stream_destroy(wrapped);
    cuda(cu_stream_destroy(stream), "cuStreamDestroy");
    const address all[] = {d_offsets, d_columns, d_values, d_x, d_y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cuda(cu_free(all[i]), "cuMemFree");
    }
    printf("all answers are right\n");
    return 0;
}
