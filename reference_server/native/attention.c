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

/* Largest, and sum, of all lanes; pairs first, so in one order always. */
static inline float largest_lane(vec v)
{
    for (int stage = 0, half = 1; half < LANES; stage++, half *= 2) {
        vec other = __builtin_shuffle(v, across_lanes[stage]);
        uvec more = (uvec)(v > other);
        v = (vec)(((uvec)v & more) | ((uvec)other & ~more));
    }
    return v[0];
}

static inline float sum_lanes(vec v)
{
    for (int stage = 0, half = 1; half < LANES; stage++, half *= 2)
        v += __builtin_shuffle(v, across_lanes[stage]);
    return v[0];
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

#define CHAINS 4 /* sums side by side, so that none waits for the one before */

/* Query times keys, TILE products. */
static inline void score_keys(const float *query, const float *turned, int64_t dim, float scale, float *score)
{
    vec part[CHAINS][TILE_VECTORS];
    for (int c = 0; c < CHAINS; c++)
        for (int v = 0; v < TILE_VECTORS; v++)
            part[c][v] = all(0.0f);
    int64_t d = 0;
    for (; d + CHAINS <= dim; d += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            for (int v = 0; v < TILE_VECTORS; v++)
                part[c][v] += query[d + c] * load(turned + (d + c) * TILE + v * LANES);
    for (; d < dim; d++)
        for (int v = 0; v < TILE_VECTORS; v++)
            part[0][v] += query[d] * load(turned + d * TILE + v * LANES);
    for (int v = 0; v < TILE_VECTORS; v++)
        put(score + v * LANES, ((part[0][v] + part[1][v]) + (part[2][v] + part[3][v])) * scale);
}

/* out = out * shrink + sum over t of weight[t] * value[t]; CHAINS vectors of dimensions at a time. */
static inline void add_values(float *out, float shrink, const float *weight, const Tile *tile, int64_t dim,
                              int64_t low, int64_t high)
{
    int64_t d = 0;
    for (; d + CHAINS * LANES <= dim; d += CHAINS * LANES) {
        vec sum[CHAINS];
        for (int c = 0; c < CHAINS; c++)
            sum[c] = load(out + d + c * LANES) * shrink;
        for (int64_t t = low; t < high; t++)
            for (int c = 0; c < CHAINS; c++)
                sum[c] += weight[t] * load(tile->value[t] + d + c * LANES);
        for (int c = 0; c < CHAINS; c++)
            put(out + d + c * LANES, sum[c]);
    }
    for (; d < dim; d++) {
        float sum = out[d] * shrink;
        for (int64_t t = low; t < high; t++)
            sum += weight[t] * tile->value[t][d];
        out[d] = sum;
    }
}

/* Fold the keys low .. high of a tile (of those it holds) into one query's state. */
static void fold(Running *state, const float *query, float scale, const Tile *tile, int64_t dim, int64_t low,
                 int64_t high)
{
    float score[TILE];
    score_keys(query, tile->turned, dim, scale, score);
    for (int64_t t = 0; t < low; t++)
        score[t] = -INFINITY;
    for (int64_t t = high; t < TILE; t++)
        score[t] = -INFINITY;
    float largest = state->largest;
    for (int v = 0; v < TILE_VECTORS; v++) {
        float here = largest_lane(load(score + v * LANES));
        largest = here > largest ? here : largest;
    }
    vec sum = all(0.0f);
    for (int v = 0; v < TILE_VECTORS; v++) {
        vec weight = exp_below_zero(load(score + v * LANES) - largest);
        put(score + v * LANES, weight);
        sum += weight;
    }
    float shrink = exp_below_zero(all(state->largest - largest))[0];
    state->sum = state->sum * shrink + sum_lanes(sum);
    state->largest = largest;
    add_values(state->out, shrink, score, tile, dim, low, high);
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
    Tile tile;
    float scale = 1.0f / sqrtf((float)dim);
    Running states[MOST_QUERIES];
    for (int64_t i = 0; i < rows * shared; i++) {
        states[i].largest = -INFINITY;
        states[i].sum = 0.0f;
        memset(states[i].out, 0, dim * sizeof(float));
    }
    int64_t oldest = window && first_query - window + 1 > 0 ? first_query - window + 1 : 0;
    for (int64_t first = oldest / TILE * TILE; first < end; first += TILE) {
        /* Only what some query of this part sees is read: older blocks may have been given back. */
        fetch(model, layer, table, head, first, end, &tile);
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = first_query + r, high = query + 1 - first;
            int64_t low = window ? query - window + 1 - first : 0;
            high = high < TILE ? high : TILE;
            low = low > 0 ? low : 0;
            if (low >= high)
                continue;
            const float *q = step->qkv + (span->row + from + r) * width + head * shared * dim;
            for (int64_t h = 0; h < shared; h++)
                fold(states + r * shared + h, q + h * dim, scale, &tile, dim, low, high);
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
