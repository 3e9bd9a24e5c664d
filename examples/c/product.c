/* Products with Poisson's equation on a grid, from C: y = A x, with the axpby epilogue, transposed,
 * for several vectors, and with new values.
 *
 *   cargo build --release -p sparseop-capi
 *   cc -I capi/include examples/c/product.c -L target/release -lsparseop_c \
 *      -Wl,-rpath,target/release -lm -o product && ./product
 */
#include "sparseop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 100, ROWS = SIDE * SIDE, VECTORS = 4 };

static void check(sparseop_status status, const char *what) {
    if (status != SPARSEOP_STATUS_OK) {
        fprintf(stderr, "%s: %s (status %d)\n", what, sparseop_last_error(), (int)status);
        exit(1);
    }
}

static void expect(double found, double expected, const char *what) {
    if (fabs(found - expected) > 1e-9) {
        fprintf(stderr, "%s: %g instead of %g\n", what, found, expected);
        exit(1);
    }
}

/* Five-point stencil with Dirichlet boundary: 4 on the diagonal, -1 beside it. */
static size_t poisson(int32_t *offsets, int32_t *columns, double *values) {
    size_t nnz = 0;
    for (int row = 0; row < ROWS; row++) {
        const int i = row / SIDE, j = row % SIDE;
        const int beside[5][2] = {{i - 1, j}, {i, j - 1}, {i, j}, {i, j + 1}, {i + 1, j}};
        offsets[row] = (int32_t)nnz;
        for (int k = 0; k < 5; k++) {
            if (beside[k][0] >= 0 && beside[k][0] < SIDE && beside[k][1] >= 0 && beside[k][1] < SIDE) {
                columns[nnz] = beside[k][0] * SIDE + beside[k][1];
                values[nnz++] = k == 2 ? 4.0 : -1.0;
            }
        }
    }
    offsets[ROWS] = (int32_t)nnz;
    return nnz;
}

/* Sum of a row, which is the product with ones: 4 minus the number of neighbours. */
static double row_sum(const int32_t *offsets, const double *values, int row) {
    double sum = 0;
    for (int32_t k = offsets[row]; k < offsets[row + 1]; k++) {
        sum += values[k];
    }
    return sum;
}

static void refusals(const sparseop_operator *op, sparseop_csr matrix, const double *x, double *y) {
    int32_t wrong[] = {0, 99, 1};
    sparseop_operator *none = NULL;
    if (sparseop_apply(op, x, ROWS - 1, y, ROWS) != SPARSEOP_STATUS_WRONG_LENGTH ||
        sparseop_apply(NULL, x, ROWS, y, ROWS) != SPARSEOP_STATUS_INVALID_POINTER ||
        sparseop_apply(op, y, ROWS, y, ROWS) != SPARSEOP_STATUS_INVALID_ARGUMENT) {
        exit(1);
    }
    matrix.nrows = 1;
    matrix.ncols = 3;
    matrix.nnz = 3;
    matrix.columns = wrong;
    const int32_t offsets[] = {0, 3};
    matrix.row_offsets = offsets;
    if (sparseop_create(&matrix, NULL, &none) != SPARSEOP_STATUS_INVALID_MATRIX || none != NULL) {
        exit(1);
    }
    printf("refused: %s\n", sparseop_last_error());
}

int main(void) {
    int32_t *offsets = malloc((ROWS + 1) * sizeof *offsets);
    int32_t *columns = malloc(5 * ROWS * sizeof *columns);
    double *values = malloc(5 * ROWS * sizeof *values);
    double *x = malloc(VECTORS * ROWS * sizeof *x), *y = malloc(VECTORS * ROWS * sizeof *y);
    if (!offsets || !columns || !values || !x || !y) {
        return 1;
    }
    const size_t nnz = poisson(offsets, columns, values);
    const sparseop_csr matrix = {ROWS, ROWS, nnz, SPARSEOP_F64, 32, offsets, columns, values};
    sparseop_options options = {0};
    options.device = SPARSEOP_DEVICE_CPU;
    options.expected_calls = 10000;
    options.flags = SPARSEOP_UPDATABLE;

    sparseop_operator *op = NULL;
    check(sparseop_create(&matrix, &options, &op), "create");
    char plan[128];
    sparseop_plan(op, plan, sizeof plan);
    size_t nrows = 0;
    check(sparseop_shape(op, &nrows, NULL, NULL), "shape");
    printf("sparseop %s: plan %s, rows %d, %llu bytes\n", sparseop_version(), plan, (int)nrows,
           (unsigned long long)sparseop_memory_bytes(op));

    for (int i = 0; i < VECTORS * ROWS; i++) {
        x[i] = 1.0;
    }
    check(sparseop_apply(op, x, ROWS, y, ROWS), "apply");
    for (int row = 0; row < ROWS; row++) {
        expect(y[row], row_sum(offsets, values, row), "product");
    }
    /* 3 A x - 3 y, which is 0. */
    check(sparseop_apply_with(op, 3.0, x, ROWS, -3.0, y, ROWS), "apply_with");
    expect(y[0] + y[ROWS / 2], 0.0, "scaled product");
    /* The matrix is symmetric. */
    check(sparseop_apply_transpose(op, x, ROWS, y, ROWS), "apply_transpose");
    expect(y[1], row_sum(offsets, values, 1), "transposed product");
    check(sparseop_apply_multi(op, VECTORS, SPARSEOP_ROW_MAJOR, x, VECTORS * ROWS, y, VECTORS * ROWS), "apply_multi");
    for (int v = 0; v < VECTORS; v++) {
        expect(y[SIDE * VECTORS + v], row_sum(offsets, values, SIDE), "SpMM");
    }
    for (size_t k = 0; k < nnz; k++) {
        values[k] += (double)(k % 3);
    }
    check(sparseop_update_values(op, values, nnz), "update_values");
    check(sparseop_apply(op, x, ROWS, y, ROWS), "apply");
    for (int row = 0; row < ROWS; row++) {
        expect(y[row], row_sum(offsets, values, row), "product with new values");
    }
    refusals(op, matrix, x, y);

    sparseop_destroy(op);
    free(offsets);
    free(columns);
    free(values);
    free(x);
    free(y);
    printf("all answers are right\n");
    return 0;
}
