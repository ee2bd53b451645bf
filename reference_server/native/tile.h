/* A tile of keys and values of one KV head: fetched from where blocks lie, widened, and K turned. */
#include "common.h"

#define TILE 32
#define TILE_VECTORS (TILE / LANES)
#define MOST_DIM 256

static float fp8_table[256];
static const int64_t form_bytes[] = {4, 2, 2, 1, 1};

/* Lanes for shuffles, by stage: two halves of a butterfly, and a turn by half of what is left. */
#define STAGES 4
static ivec upper_lanes[STAGES], lower_lanes[STAGES], across_lanes[STAGES];

/* e4m3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f is NaN and there is no infinity. */
__attribute__((constructor)) static void fill_tables(void)
{
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, mantissa = code & 7;
        float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
        if ((code & 0x7f) == 0x7f)
            size = NAN;
        fp8_table[code] = code & 0x80 ? -size : size;
    }
    for (int stage = 0, half = 1; half < LANES; stage++, half *= 2)
        for (int l = 0; l < LANES; l++) {
            upper_lanes[stage][l] = l & half ? LANES + l - half : l;
            lower_lanes[stage][l] = l & half ? LANES + l : l + half;
            across_lanes[stage][l] = l ^ half;
        }
}

/* One stored vector of another form as fp32. */
static inline void widen(int64_t form, const void *base, const float *scales, float scale, int64_t vector,
                         int64_t dim, float *out)
{
    int64_t at = vector * dim;
    if (form == FORM_BF16)
        for (int64_t d = 0; d < dim; d++)
            out[d] = bfloat_to_float(((const uint16_t *)base)[at + d]);
    else if (form == FORM_FP16)
        for (int64_t d = 0; d < dim; d++)
            out[d] = half_to_float(((const uint16_t *)base)[at + d]);
    else if (form == FORM_FP8)
        for (int64_t d = 0; d < dim; d++)
            out[d] = fp8_table[((const uint8_t *)base)[at + d]] * scale;
    else
        for (int64_t d = 0; d < dim; d++)
            out[d] = ((const int8_t *)base)[at + d] * scales[vector];
}

/* A tile of keys and values: K turned, V by pointers, fp32 where it lies and the rest widened. */
typedef struct {
    float turned[MOST_DIM * TILE], wide[MOST_DIM * TILE];
    const float *value[TILE];
} Tile;

/* Turn a square of LANES keys and as many dimensions: Eklundh's butterflies. */
static inline void turn_square(const float *const *key, int64_t d, float *out)
{
    vec row[LANES];
    for (int i = 0; i < LANES; i++)
        row[i] = load(key[i] + d);
#pragma GCC unroll 4
    for (int stage = 0; stage < STAGES; stage++) {
        int half = 1 << stage;
        if (half >= LANES)
            break;
        ivec upper = upper_lanes[stage], lower = lower_lanes[stage];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & half)) {
                vec a = row[i], b = row[i + half];
                row[i] = __builtin_shuffle(a, b, upper);
                row[i + half] = __builtin_shuffle(a, b, lower);
            }
    }
    for (int i = 0; i < LANES; i++)
        put(out + i * TILE, row[i]);
}

static void turn_keys(const float *const *key, int64_t dim, float *turned)
{
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES)
        for (int64_t t = 0; t < TILE; t += LANES)
            turn_square(key + t, d, turned + d * TILE + t);
    for (; d < dim; d++)
        for (int64_t t = 0; t < TILE; t++)
            turned[d * TILE + t] = key[t][d];
}

/* Positions that will be wanted soon, of one KV head of a sequence. */
typedef struct {
    const int32_t *table;
    int64_t head, position, last;
} Upcoming;

/* Ask for the next few of them: little by little, so that memory works while the present tile is computed. */
static inline void ask(const Model *model, const Layer *layer, Upcoming *soon, int64_t count)
{
    int64_t size = model->block_size, bytes = model->head_dim * form_bytes[model->kv_form];
    for (; count > 0 && soon->position < soon->last; count--, soon->position++) {
        int64_t block = soon->table[soon->position / size];
        const Memory *memory = memory_of(model, layer, &block);
        int64_t at = ((block * model->kv_heads + soon->head) * size + soon->position % size) * bytes;
        for (int64_t line = 0; line < bytes; line += LINE) {
            __builtin_prefetch((const char *)memory->keys + at + line, 0, 2);
            __builtin_prefetch((const char *)memory->values + at + line, 0, 2);
        }
    }
}

/* Positions from `end` on are zero and will be masked. */
static void fetch(const Model *model, const Layer *layer, const int32_t *table, int64_t head, int64_t first,
                  int64_t end, Tile *tile)
{
    static const float nothing[MOST_DIM];
    int64_t dim = model->head_dim, size = model->block_size, form = model->kv_form;
    float wide[TILE * MOST_DIM];
    const float *key[TILE];
    for (int64_t t = 0; t < TILE; t++) {
        int64_t position = first + t;
        if (position >= end) {
            key[t] = tile->value[t] = nothing;
            continue;
        }
        int64_t block = table[position / size];
        const Memory *memory = memory_of(model, layer, &block);
        int64_t vector = (block * model->kv_heads + head) * size + position % size;
        if (form == FORM_FP32) {
            key[t] = (const float *)memory->keys + vector * dim;
            tile->value[t] = (const float *)memory->values + vector * dim;
        } else {
            key[t] = wide + t * dim;
            widen(form, memory->keys, memory->key_scales, *layer->fp8_scale_key, vector, dim, wide + t * dim);
            tile->value[t] = tile->wide + t * dim;
            widen(form, memory->values, memory->value_scales, *layer->fp8_scale_value, vector, dim,
                  tile->wide + t * dim);
        }
    }
    turn_keys(key, dim, tile->turned);
}
