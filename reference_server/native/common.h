/* What the kernels share: vectors as wide as the machine's, and the structures that Python fills.
 *
 * Everything is fp32 inside. A sum is always taken in one order, by position and by column, whatever
 * the batch: a row's numbers are bit for bit the same alone, in company, or as part of a prompt.
 */
#ifndef KVPROBE_COMMON_H
#define KVPROBE_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define PANEL_VECTORS 2
#define MOST_ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define PANEL_VECTORS 2
#define MOST_ROWS 5
#else
#define LANES 4
#define PANEL_VECTORS 4
#define MOST_ROWS 4
#endif

#define LINE 64 /* bytes of the cache's */

/* Columns of a matrix that lie side by side. */
#define PANEL (LANES * PANEL_VECTORS)

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));

enum { FORM_FP32 = 0, FORM_BF16 = 1, FORM_FP16 = 2, FORM_FP8 = 3, FORM_INT8 = 4 };

/* A weight matrix [rows, columns], cut into panels of PANEL rows; see matrix.c. */
typedef struct {
    void *data;
    int64_t form, rows, columns;
} Matrix;

/* KV memory of one layer: [blocks, kv_heads, block_size, head_dim]; scales of int8 without head_dim. */
typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales;
} Memory;

typedef struct {
    Matrix qkv, out, gate_up, down;
    float *attention_norm, *mlp_norm, *q_norm, *k_norm, *after_attention, *after_mlp;
    float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
    float *cos, *sin;
    Memory *memory; /* one, or one a segment of the line of blocks */
    float *fp8_scale_key, *fp8_scale_value;
    int64_t group, window; /* window 0: none */
} Layer;

typedef struct {
    int64_t layers, hidden, heads, kv_heads, head_dim, intermediate;
    int64_t kv_form, block_size, gelu, segment_blocks; /* segment_blocks 0: memory is in one piece */
    double norm_eps;
    Layer *layer;
} Model;

/* One sequence's new tokens: rows `row ..` of the batch, positions `start ..`. */
typedef struct {
    int64_t row, start, count;
} Span;

typedef struct {
    int64_t rows, spans, groups, threads;
    double scale_factor;
    Span *span;
    int64_t *position;     /* of each row */
    int32_t **table;       /* [groups * spans]: block ids */
    int32_t **slot;        /* [groups]: block of each row; offsets follow from the position */
    float *x, *normed, *qkv, *found, *gate_up, *inner;
} Step;

/* Where block `block` of a layer lies; `block` becomes its number there. */
static inline const Memory *memory_of(const Model *model, const Layer *layer, int64_t *block)
{
    if (!model->segment_blocks)
        return layer->memory;
    const Memory *memory = layer->memory + *block / model->segment_blocks;
    *block %= model->segment_blocks;
    return memory;
}

typedef void (*Turn)(void *context, int64_t index);

void share(int64_t threads, int64_t turns, Turn turn, void *context);
void matmul(const Matrix *w, const float *x, int64_t rows, float *out, int64_t threads);
void attend(const Model *model, const Layer *layer, const Step *step);
void store_kv(const Model *model, const Layer *layer, const Step *step);

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void put(float *p, vec v) { *(vec *)p = v; }
static inline vec all(float value) { return (vec){0} + value; }

/* e^x for x <= 0, relative error below 2e-7: 2^n times a polynomial on [-ln2/2, ln2/2]. */
static inline vec exp_below_zero(vec x)
{
    uvec small = (uvec)(x < -87.0f);
    x = (vec)(((uvec)x & ~small) | ((uvec)all(-87.0f) & small));
    vec shifted = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
    vec p = all(1.0f / 720.0f);
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    ivec power = ((ivec)shifted << 23) + (ivec)all(1.0f);
    return (vec)((uvec)(p * (vec)power) & ~small);
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    union { uint32_t u; float f; } made;
    if (rest >= 0x7c00)
        made.u = 0x7f800000u | (rest & 0x3ff) << 13;
    else {
        made.u = rest << 13; /* exponent is 112 too small: put right by a product, subnormals too */
        made.f *= 0x1p112f;
    }
    made.u |= sign;
    return made.f;
}

static inline float bfloat_to_float(uint16_t b)
{
    union { uint32_t u; float f; } made = {(uint32_t)b << 16};
    return made.f;
}

#endif
