/* Products with weight matrices: out[r, n] = sum over k of x[r, k] * w[n, k].
 *
 * A matrix is packed once into panels of PANEL output columns, [panel][k][PANEL], so that it is read
 * from front to back exactly once for up to MOST_ROWS rows of x (and from the cache for more). bf16
 * weights stay bf16 in memory, half the traffic, and are widened in registers: a word of 32 bits holds
 * column c in its low half and column c + LANES in its high half, so that a shift and a mask give two
 * vectors. Each result is one chain of fused multiply-adds over k, whatever the number of rows.
 */
#include "common.h"

#define INLINE static inline __attribute__((always_inline))

int64_t panel_columns(void) { return PANEL; }

int64_t packed_bytes(int64_t form, int64_t rows, int64_t columns)
{
    int64_t panels = (rows + PANEL - 1) / PANEL;
    return panels * columns * PANEL * (form == FORM_BF16 ? 2 : 4);
}

/* `source` is [rows, columns] in fp32 or bf16; rows beyond the last become zero. */
void pack(int64_t form, int64_t rows, int64_t columns, const void *source, void *target)
{
    int64_t panels = (rows + PANEL - 1) / PANEL;
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t k = 0; k < columns; k++)
            for (int64_t c = 0; c < PANEL; c++) {
                int64_t n = panel * PANEL + c, base = (panel * columns + k) * PANEL;
                if (form == FORM_BF16) {
                    int64_t pair = c / (2 * LANES), within = c % (2 * LANES);
                    int64_t at = base + (pair * LANES + within % LANES) * 2 + within / LANES;
                    ((uint16_t *)target)[at] = n < rows ? ((const uint16_t *)source)[n * columns + k] : 0;
                } else
                    ((float *)target)[base + c] = n < rows ? ((const float *)source)[n * columns + k] : 0;
            }
}

/* With each k as much is asked for of the panel after this one (`next`, or NULL), so that memory works
 * while rows are computed. */
INLINE void tile(int rows, int bf16, const char *next, const void *panel, const float *x, int64_t columns,
                 float *out, int64_t width, int64_t take)
{
    enum { BF16_BYTES = PANEL * 2, FP32_BYTES = PANEL * 4 };
    int64_t bytes = bf16 ? BF16_BYTES : FP32_BYTES;
    vec sum[MOST_ROWS][PANEL_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PANEL_VECTORS; v++)
            sum[r][v] = all(0.0f);
    for (int64_t k = 0; k < columns; k++) {
        vec w[PANEL_VECTORS];
        if (next)
            for (int64_t at = 0; at < bytes; at += LINE)
                __builtin_prefetch(next + k * bytes + at, 0, 2);
        if (bf16) {
            const uvec *words = (const uvec *)((const uint16_t *)panel + k * PANEL);
            for (int v = 0; v < PANEL_VECTORS; v += 2) {
                w[v] = (vec)(words[v / 2] << 16);
                w[v + 1] = (vec)(words[v / 2] & 0xffff0000u);
            }
        } else
            for (int v = 0; v < PANEL_VECTORS; v++)
                w[v] = load((const float *)panel + k * PANEL + v * LANES);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < PANEL_VECTORS; v++)
                sum[r][v] += x[r * columns + k] * w[v];
    }
    for (int r = 0; r < rows; r++) {
        if (take == PANEL)
            for (int v = 0; v < PANEL_VECTORS; v++)
                put(out + r * width + v * LANES, sum[r][v]);
        else
            memcpy(out + r * width, sum[r], take * sizeof(float));
    }
}

#define CASE(n) \
    case n: tile(n, bf16, next, panel, x, columns, out, width, take); break

INLINE void tiles(int rows, int bf16, const char *next, const void *panel, const float *x, int64_t columns,
                  float *out, int64_t width, int64_t take)
{
    switch (rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
#if MOST_ROWS >= 5
        CASE(5);
#endif
#if MOST_ROWS >= 12
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
#endif
    }
}

typedef struct {
    const Matrix *w;
    const float *x;
    int64_t rows;
    float *out;
    int64_t step; /* panels until this thread's next one, as far as can be told */
} Product;

/* One panel of the matrix, all rows of x. */
static void turn_panel(void *context, int64_t index)
{
    const Product *product = context;
    const Matrix *w = product->w;
    int64_t columns = w->columns, width = w->rows, rows = product->rows;
    int64_t parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    int bf16 = w->form == FORM_BF16;
    int64_t panel_bytes = columns * PANEL * (bf16 ? 2 : 4), panels = (width + PANEL - 1) / PANEL;
    const char *panel = (const char *)w->data + index * panel_bytes;
    const char *next = panel + product->step * panel_bytes;
    int has_next = index + product->step < panels;
    int64_t first = index * PANEL, take = width - first < PANEL ? width - first : PANEL;
    for (int64_t part = 0; part < parts; part++) {
        /* Parts of equal size: 8 rows are 4 and 4, not 6 and 2. */
        int64_t from = rows * part / parts, count = rows * (part + 1) / parts - from;
        const float *x = product->x + from * columns;
        float *out = product->out + from * width + first;
        const char *wanted = has_next && part == parts - 1 ? next : NULL;
        if (bf16)
            tiles(count, 1, wanted, panel, x, columns, out, width, take);
        else
            tiles(count, 0, wanted, panel, x, columns, out, width, take);
    }
}

/* `x` is [rows, columns], `out` [rows, w->rows], both without gaps. */
void matmul(const Matrix *w, const float *x, int64_t rows, float *out, int64_t threads)
{
    Product product = {w, x, rows, out, threads};
    share(threads, (w->rows + PANEL - 1) / PANEL, turn_panel, &product);
}
