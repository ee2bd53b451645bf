/* Attention that reads K and V where they lie: no gather.
 *
 * Keys come in tiles of TILE positions, counted from position 0, so that the order of every sum
 * depends on positions alone. A tile of K is turned (head_dim by TILE) and V widened once, for all
 * queries that see it: the heads that share a KV head, and the rows of a prompt's chunk. Softmax is
 * taken on the way (running maximum and sum: Milakov and Gimelshein, arXiv 1805.02867).
 */
#include "tile.h"

#define MOST_QUERIES 96 /* of one KV head at a time: rows times heads that share it */

typedef struct {
    float largest, sum;
    float out[MOST_DIM];
} Running;

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

#define ASK_AT_ONCE 8

/* Rows from .. from + rows of a span, one KV head; `after` is what this thread will want next. */
static void attend_part(const Model *model, const Layer *layer, const Step *step, int64_t span_index,
                        int64_t head, int64_t from, int64_t rows, Upcoming after)
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
        int64_t next = first + TILE, last = next + TILE < end ? next + TILE : end;
        Upcoming soon = next < end ? (Upcoming){table, head, next, last} : after;
        ask(model, layer, &soon, ASK_AT_ONCE);
        fetch(model, layer, table, head, first, end, &tile);
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = first_query + r, high = query + 1 - first;
            int64_t low = window ? query - window + 1 - first : 0;
            high = high < TILE ? high : TILE;
            low = low > 0 ? low : 0;
            if (low >= high)
                continue;
            const float *q = step->qkv + (span->row + from + r) * width + head * shared * dim;
            for (int64_t h = 0; h < shared; h++) {
                fold(states + r * shared + h, q + h * dim, scale, &tile, dim, low, high);
                ask(model, layer, &soon, ASK_AT_ONCE);
            }
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

/* What turn `index` will read first; nothing, when there is no such turn. */
static Upcoming first_tile(const Attention *own, int64_t index)
{
    int64_t number = index / own->model->kv_heads, window = own->layer->window;
    if (number >= own->step->spans)
        return (Upcoming){0};
    const Span *span = own->step->span + number;
    int64_t end = span->start + span->count, oldest = window ? span->start - window + 1 : 0;
    int64_t first = oldest > 0 ? oldest / TILE * TILE : 0;
    const int32_t *table = own->step->table[own->layer->group * own->step->spans + number];
    return (Upcoming){table, index % own->model->kv_heads, first, first + TILE < end ? first + TILE : end};
}

/* One KV head of one sequence. */
static void turn_head(void *context, int64_t index)
{
    const Attention *own = context;
    int64_t shared = own->model->heads / own->model->kv_heads, rows_a_part = MOST_QUERIES / shared;
    int64_t span = index / own->model->kv_heads, head = index % own->model->kv_heads;
    Upcoming after = first_tile(own, index + own->step->threads);
    for (int64_t from = 0; from < own->step->span[span].count; from += rows_a_part) {
        int64_t left = own->step->span[span].count - from, rows = left < rows_a_part ? left : rows_a_part;
        attend_part(own->model, own->layer, own->step, span, head, from, rows, after);
    }
}

/* `step->qkv` holds turned queries; the result goes to `step->found` [rows, heads * head_dim]. */
void attend(const Model *model, const Layer *layer, const Step *step)
{
    Attention own = {model, layer, step};
    share(step->threads, step->spans * model->kv_heads, turn_head, &own);
}
