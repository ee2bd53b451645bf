/* K and V of new tokens into KV memory, in its form. */
#include "common.h"

#define FP8_LARGEST 448.0f
#define FP8_HEADROOM 2.0f
#define INT8_LARGEST 127.0f

static inline uint32_t bits(float f)
{
    union { float f; uint32_t u; } made = {f};
    return made.u;
}

static inline uint16_t to_bfloat(float f)
{
    uint32_t u = bits(f);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* To nearest, ties to even, with `mantissa` bits and an exponent of bias `bias`. */
static inline uint32_t to_small(float f, int mantissa, int bias, float largest)
{
    float size = fabsf(f);
    if (size > largest)
        size = largest;
    uint32_t sign = bits(f) >> 31;
    int exponent;
    if (size < ldexpf(1.0f, 1 - bias)) /* subnormal: whole steps of 2^(1 - bias - mantissa) */
        return sign << 31 | (uint32_t)nearbyintf(ldexpf(size, bias - 1 + mantissa));
    float part = frexpf(size, &exponent); /* part in [0.5, 1) */
    uint32_t steps = (uint32_t)nearbyintf(ldexpf(part, mantissa + 1));
    return sign << 31 | (((uint32_t)(exponent - 1 + bias) << mantissa) + steps - (1u << mantissa));
}

static inline uint8_t to_fp8(float f)
{
    uint32_t small = to_small(f, 3, 7, FP8_LARGEST);
    return (uint8_t)(small >> 24 | (small & 0x7f));
}

static inline uint16_t to_half(float f)
{
    uint32_t small = to_small(f, 10, 15, 65504.0f);
    return (uint16_t)(small >> 16 | (small & 0x7fff));
}

static float largest_of(const float *v, int64_t count)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < count; i++)
        largest = fabsf(v[i]) > largest ? fabsf(v[i]) : largest;
    return largest;
}

static void put_vector(int64_t form, void *base, float *scales, float scale, double factor, int64_t vector,
                       int64_t dim, const float *v)
{
    int64_t at = vector * dim;
    if (form == FORM_FP32)
        memcpy((float *)base + at, v, dim * sizeof(float));
    else if (form == FORM_BF16)
        for (int64_t d = 0; d < dim; d++)
            ((uint16_t *)base)[at + d] = to_bfloat(v[d]);
    else if (form == FORM_FP16)
        for (int64_t d = 0; d < dim; d++)
            ((uint16_t *)base)[at + d] = to_half(v[d]);
    else if (form == FORM_FP8)
        for (int64_t d = 0; d < dim; d++)
            ((uint8_t *)base)[at + d] = to_fp8(v[d] / scale);
    else {
        float own = largest_of(v, dim) * (float)(factor / INT8_LARGEST), divisor = own > 0 ? own : 1.0f;
        for (int64_t d = 0; d < dim; d++) {
            float whole = nearbyintf(v[d] / divisor);
            whole = whole > INT8_LARGEST ? INT8_LARGEST : whole < -INT8_LARGEST ? -INT8_LARGEST : whole;
            ((int8_t *)base)[at + d] = (int8_t)whole;
        }
        scales[vector] = own;
    }
}

/* fp8's scale is fixed by the first tokens that are stored. */
static void calibrate(float *scale, const Step *step, int64_t offset, int64_t count, int64_t width)
{
    if (!isnan(*scale))
        return;
    float largest = 1e-6f;
    for (int64_t r = 0; r < step->rows; r++) {
        float of_row = largest_of(step->qkv + r * width + offset, count);
        largest = of_row > largest ? of_row : largest;
    }
    *scale = largest * FP8_HEADROOM / FP8_LARGEST * (float)step->scale_factor;
}

void store_kv(const Model *model, const Layer *layer, const Step *step)
{
    int64_t dim = model->head_dim, heads = model->heads, kv_heads = model->kv_heads, form = model->kv_form;
    int64_t width = (heads + 2 * kv_heads) * dim, size = model->block_size;
    if (form == FORM_FP8) {
        calibrate(layer->fp8_scale_key, step, heads * dim, kv_heads * dim, width);
        calibrate(layer->fp8_scale_value, step, (heads + kv_heads) * dim, kv_heads * dim, width);
    }
    const int32_t *blocks = step->slot[layer->group];
    for (int64_t r = 0; r < step->rows; r++)
        for (int64_t h = 0; h < kv_heads; h++) {
            int64_t block = blocks[r];
            const Memory *memory = memory_of(model, layer, &block);
            int64_t vector = (block * kv_heads + h) * size + step->position[r] % size;
            const float *key = step->qkv + r * width + (heads + h) * dim;
            put_vector(form, memory->keys, memory->key_scales, *layer->fp8_scale_key, step->scale_factor,
                       vector, dim, key);
            put_vector(form, memory->values, memory->value_scales, *layer->fp8_scale_value,
                       step->scale_factor, vector, dim, key + kv_heads * dim);
        }
}
