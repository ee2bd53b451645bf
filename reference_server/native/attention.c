/* Attention that reads K and V where they lie: no gather.
 *
 * Keys come in tiles of TILE positions, counted from position 0, so that the order of every sum
 * depends on positions alone. A tile of K is turned (head_dim by TILE) and V widened once, for all
 * queries that see it: the heads that share a KV head, and the rows of a prompt's chunk. Softmax is
 * taken on the way (running maximum and sum: Milakov and Gimelshein, arXiv 1805.02867).
 */
#include "common.h"

#define TILE 32
#define TILE_VECTORS (TILE / LANES)
#define MOST_DIM 256
#define MOST_QUERIES 96 /* of one KV head at a time: rows times heads that share it */

typedef struct {
    float largest, sum;
    float out[MOST_DIM];
} Running;

static float fp8_table[256];

/* e4m3: 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f is NaN and there is no infinity. */
__attribute__((constructor)) static void fill_fp8_table(void)
{
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, mantissa = code & 7;
        float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
        if ((code & 0x7f) == 0x7f)
            size = NAN;
        fp8_table[code] = code & 0x80 ? -size : size;
    }
}

/* One stored vector as fp32. */
static inline void widen(int64_t form, const void *base, const float *scales, float scale, int64_t vector,
                         int64_t dim, float *out)
{
    int64_t at = vector * dim;
    if (form == FORM_FP32)
        memcpy(out, (const float *)base + at, dim * sizeof(float));
    else if (form == FORM_BF16)
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

/* The tile's K, turned, and V; positions from `end` on are zero and will be masked. */
static void fetch(const Model *model, const Layer *layer, const int32_t *table, int64_t head, int64_t first,
                  int64_t end, float *turned, float *values)
{
    int64_t dim = model->head_dim, size = model->block_size, form = model->kv_form;
    float row[MOST_DIM];
    for (int64_t t = 0; t < TILE; t++) {
        int64_t position = first + t;
        if (position >= end) {
            for (int64_t d = 0; d < dim; d++)
                turned[d * TILE + t] = values[t * dim + d] = 0.0f;
            continue;
        }
        int64_t vector = (table[position / size] * model->kv_heads + head) * size + position % size;
        widen(form, layer->keys, layer->key_scales, *layer->fp8_scale_key, vector, dim, row);
        for (int64_t d = 0; d < dim; d++)
            turned[d * TILE + t] = row[d];
        widen(form, layer->values, layer->value_scales, *layer->fp8_scale_value, vector, dim, values + t * dim);
    }
}

/* Fold the keys low .. high of a tile (of those it holds) into one query's state. */
static void fold(Running *state, const float *query, float scale, const float *turned, const float *values,
                 int64_t dim, int64_t low, int64_t high)
{
    float score[TILE];
    vec found[TILE_VECTORS];
    for (int v = 0; v < TILE_VECTORS; v++)
        found[v] = all(0.0f);
    for (int64_t d = 0; d < dim; d++)
        for (int v = 0; v < TILE_VECTORS; v++)
            found[v] += query[d] * load(turned + d * TILE + v * LANES);
    for (int v = 0; v < TILE_VECTORS; v++)
        put(score + v * LANES, found[v] * scale);
    float largest = state->largest;
    for (int64_t t = 0; t < TILE; t++) {
        if (t < low || t >= high)
            score[t] = -INFINITY;
        largest = score[t] > largest ? score[t] : largest;
    }
    for (int v = 0; v < TILE_VECTORS; v++)
        put(score + v * LANES, exp_below_zero(load(score + v * LANES) - largest));
    float shrink = exp_below_zero(all(state->largest - largest))[0], sum = 0.0f;
    for (int64_t t = 0; t < TILE; t++)
        sum += score[t];
    state->sum = state->sum * shrink + sum;
    state->largest = largest;
    for (int64_t d = 0; d + LANES <= dim; d += LANES) {
        vec out = load(state->out + d) * shrink;
        for (int64_t t = low; t < high; t++)
            out += score[t] * load(values + t * dim + d);
        put(state->out + d, out);
    }
    for (int64_t d = dim / LANES * LANES; d < dim; d++) {
        float out = state->out[d] * shrink;
        for (int64_t t = low; t < high; t++)
            out += score[t] * values[t * dim + d];
        state->out[d] = out;
    }
}

/* Rows from .. from + rows of a span, one KV head. */
static void attend_part(const Model *model, const Layer *layer, const Step *step, int64_t span_index,
                        int64_t head, int64_t from, int64_t rows)
{
    const Span *span = step->span + span_index;
    const int32_t *table = step->table[layer->group * step->spans + span_index];
    int64_t dim = model->head_dim, shared = model->heads / model->kv_heads;
    int64_t width = (model->heads + 2 * model->kv_heads) * dim, window = layer->window;
    int64_t first_query = span->start + from, end = first_query + rows;
    float turned[MOST_DIM * TILE], values[MOST_DIM * TILE], scale = 1.0f / sqrtf((float)dim);
    Running states[MOST_QUERIES];
    for (int64_t i = 0; i < rows * shared; i++) {
        states[i].largest = -INFINITY;
        states[i].sum = 0.0f;
        memset(states[i].out, 0, dim * sizeof(float));
    }
    int64_t oldest = window && first_query - window + 1 > 0 ? first_query - window + 1 : 0;
    for (int64_t first = oldest / TILE * TILE; first < end; first += TILE) {
        /* Only what some query of this part sees is read: older blocks may have been given back. */
        fetch(model, layer, table, head, first, end, turned, values);
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = first_query + r, high = query + 1 - first;
            int64_t low = window ? query - window + 1 - first : 0;
            high = high < TILE ? high : TILE;
            low = low > 0 ? low : 0;
            if (low >= high)
                continue;
            const float *q = step->qkv + (span->row + from + r) * width + head * shared * dim;
            for (int64_t h = 0; h < shared; h++)
                fold(states + r * shared + h, q + h * dim, scale, turned, values, dim, low, high);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < shared; h++) {
            const Running *state = states + r * shared + h;
            float *out = step->found + ((span->row + from + r) * model->heads + head * shared + h) * dim;
            for (int64_t d = 0; d < dim; d++)
                out[d] = state->out[d] / state->sum;
        }
}

typedef struct {
    const Model *model;
    const Layer *layer;
    const Step *step;
} Attention;

/* One KV head of one sequence. */
static void turn_head(void *context, int64_t index)
{
    const Attention *own = context;
    int64_t shared = own->model->heads / own->model->kv_heads, rows_a_part = MOST_QUERIES / shared;
    int64_t span = index / own->model->kv_heads, head = index % own->model->kv_heads;
    for (int64_t from = 0; from < own->step->span[span].count; from += rows_a_part) {
        int64_t left = own->step->span[span].count - from, rows = left < rows_a_part ? left : rows_a_part;
        attend_part(own->model, own->layer, own->step, span, head, from, rows);
    }
}

/* `step->qkv` holds turned queries; the result goes to `step->found` [rows, heads * head_dim]. */
void attend(const Model *model, const Layer *layer, const Step *step)
{
    Attention own = {model, layer, step};
    share(step->threads, step->spans * model->kv_heads, turn_head, &own);
}
