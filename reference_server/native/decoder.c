/* All layers of a decoder for one step, in place on `step->x` [rows, hidden]. */
#include "common.h"

static void norm(const float *x, const float *weight, int64_t width, double eps, float *out)
{
    double part[8] = {0}, sum = 0.0; /* eight sums side by side, so that they go through vectors */
    int64_t i = 0;
    for (; i + 8 <= width; i += 8)
        for (int64_t lane = 0; lane < 8; lane++)
            part[lane] += (double)x[i + lane] * x[i + lane];
    for (; i < width; i++)
        sum += (double)x[i] * x[i];
    for (int64_t lane = 0; lane < 8; lane++)
        sum += part[lane];
    float scale = (float)(1.0 / sqrt(sum / width + eps));
    for (i = 0; i < width; i++)
        out[i] = x[i] * scale * weight[i];
}

static void norm_rows(const float *x, const float *weight, int64_t rows, int64_t width, double eps, float *out)
{
    for (int64_t r = 0; r < rows; r++)
        norm(x + r * width, weight, width, eps, out + r * width);
}

static void add_bias(float *x, const float *bias, int64_t rows, int64_t width)
{
    if (!bias)
        return;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            x[r * width + i] += bias[i];
}

/* Halves paired as in Llama's published code. */
static void rotate(float *v, const float *cos_row, const float *sin_row, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float first = v[i], second = v[half + i];
        v[i] = first * cos_row[i] - second * sin_row[i];
        v[half + i] = second * cos_row[i] + first * sin_row[i];
    }
}

static void prepare_heads(const Model *model, const Layer *layer, const Step *step)
{
    int64_t dim = model->head_dim, turned = model->heads + model->kv_heads;
    int64_t width = (turned + model->kv_heads) * dim;
    for (int64_t r = 0; r < step->rows; r++) {
        float *row = step->qkv + r * width;
        const float *cos_row = layer->cos + step->position[r] * (dim / 2);
        const float *sin_row = layer->sin + step->position[r] * (dim / 2);
        for (int64_t h = 0; h < turned; h++) {
            const float *weight = h < model->heads ? layer->q_norm : layer->k_norm;
            if (weight)
                norm(row + h * dim, weight, dim, model->norm_eps, row + h * dim);
            rotate(row + h * dim, cos_row, sin_row, dim / 2);
        }
    }
}

static inline vec silu(vec x)
{
    /* e^-|x| never overflows: x * 1 / (1 + e^-x), with e^-x = 1 / e^-|x| for negative x. */
    uvec negative = (uvec)(x < 0.0f);
    vec size = (vec)((uvec)x & 0x7fffffffu), small = exp_below_zero(-size);
    vec above = x / (1.0f + small), below = x * small / (1.0f + small);
    return (vec)(((uvec)above & ~negative) | ((uvec)below & negative));
}

static float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static void activate(const Model *model, const Step *step)
{
    int64_t inner = model->intermediate;
    for (int64_t r = 0; r < step->rows; r++) {
        const float *gate = step->gate_up + r * 2 * inner, *up = gate + inner;
        float *out = step->inner + r * inner;
        int64_t i = 0;
        if (!model->gelu)
            for (; i + LANES <= inner; i += LANES)
                put(out + i, silu(load(gate + i)) * load(up + i));
        for (; i < inner; i++)
            out[i] = (model->gelu ? gelu_tanh(gate[i]) : silu(all(gate[i]))[0]) * up[i];
    }
}

/* x += out, after the norm that some families have there. `out` is changed. */
static void add_back(const Model *model, const Step *step, float *out, const float *weight)
{
    int64_t width = model->hidden;
    if (weight)
        norm_rows(out, weight, step->rows, width, model->norm_eps, out);
    for (int64_t i = 0; i < step->rows * width; i++)
        step->x[i] += out[i];
}

void decode_layers(const Model *model, const Step *step)
{
    int64_t rows = step->rows, width = model->hidden;
    for (int64_t i = 0; i < model->layers; i++) {
        const Layer *layer = model->layer + i;
        norm_rows(step->x, layer->attention_norm, rows, width, model->norm_eps, step->normed);
        matmul(&layer->qkv, step->normed, rows, step->qkv, step->threads);
        add_bias(step->qkv, layer->qkv_bias, rows, layer->qkv.rows);
        prepare_heads(model, layer, step);
        store_kv(model, layer, step);
        attend(model, layer, step);
        matmul(&layer->out, step->found, rows, step->normed, step->threads);
        add_bias(step->normed, layer->out_bias, rows, width);
        add_back(model, step, step->normed, layer->after_attention);
        norm_rows(step->x, layer->mlp_norm, rows, width, model->norm_eps, step->normed);
        matmul(&layer->gate_up, step->normed, rows, step->gate_up, step->threads);
        add_bias(step->gate_up, layer->gate_up_bias, rows, layer->gate_up.rows);
        activate(model, step);
        matmul(&layer->down, step->inner, rows, step->normed, step->threads);
        add_bias(step->normed, layer->down_bias, rows, width);
        add_back(model, step, step->normed, layer->after_mlp);
    }
}
