/* Plain SGD on a chain of convolutions, pooling, ReLU and fully connected layers: all steps of one client in one call.

   Nothing here depends on the number of threads or on other clients, and no sum is reordered by the compiler: the same
   weights and samples give the same bits on all machines with instructions of the same width.

   Images lie as (row, channel, column, sample): the columns and samples of a row are one long line, along which a
   convolution is a sum of shifted lines. Flat activations lie as (sample, feature). */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* For AVX2 and AVX-512: how many numbers an instruction takes, and how many sums fit into the registers at once. */
#ifdef __AVX512F__
enum { LANES = 16, OUTS = 8, FEW = 6, LINES = 3, DOUTS = 4, VECS = 4, TAPS = 5, ROWS = 5, COLS = 4 };
#else
enum { LANES = 8, OUTS = 4, FEW = 2, LINES = 3, DOUTS = 2, VECS = 2, TAPS = 5, ROWS = 5, COLS = 2 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));
#define LOAD(p) ((vec)(*(const loose *)(p)))
#define STORE(p, v) (*(loose *)(p) = (v))
#define UP(n) (((n) + LANES - 1) / LANES * LANES)
#define UNROLL _Pragma("GCC unroll 16")

enum { CONV, POOL, RELU, FLAT, LINEAR };

/* One layer of the chain. Images have c channels of h x w before it and C of H x W after it; what is flat has c and C
   numbers, and no h and H. A convolution's weights lie as (C, k, k, c), a linear layer's as (C, c). */
typedef struct {
    int64_t kind, c, h, w, C, H, W, k, pad, learns;
    const float *weight, *bias;
    float *new_weight, *new_bias; /* where a step is written: over the weights, or beside them for a gradient */
    const float *weight_anchor, *bias_anchor; /* what is added in each step; or NULL */
} layer_t;

/* The first n < LANES numbers from p on, zeros behind them; and the way back. */
#ifdef __AVX512F__
static vec head_of(const float *p, int64_t n) { return (vec)_mm512_maskz_loadu_ps((1u << n) - 1, p); }
static void put_head(float *p, int64_t n, vec v) { _mm512_mask_storeu_ps(p, (1u << n) - 1, (__m512)v); }
#else
static __m256i first(int64_t n) { return (__m256i)((mask){0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)n); }
static vec head_of(const float *p, int64_t n) { return (vec)_mm256_maskload_ps(p, first(n)); }
static void put_head(float *p, int64_t n, vec v) { _mm256_maskstore_ps(p, first(n), (__m256)v); }
#endif

static float total(vec all) { /* halves onto each other */
    typedef float eight __attribute__((vector_size(32)));
#ifdef __AVX512F__
    eight v = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    eight v = all;
#endif
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
    return v[0];
}

/* ---- convolution: y[oy][o][.] = bias[o] + sum weight[o][ky][kx][c] * x[oy + ky][c][. + kx * batch] ---- */

static inline __attribute__((always_inline)) void conv_block(
    const float *x, int64_t xs, const float *w, int64_t c, int64_t k, int64_t from, int64_t to, int64_t batch, const float *bias,
    float *y, int64_t ys, const int outs, const int lines) {
    vec sum[OUTS][LINES];
    const int64_t size = k * k * c;
    UNROLL for (int o = 0; o < outs; o++) UNROLL for (int l = 0; l < lines; l++) sum[o][l] = (vec){0} + (bias ? bias[o] : 0);
    for (int64_t ky = from; ky < to; ky++)
        for (int64_t ci = 0; ci < c; ci++)
            for (int64_t kx = 0; kx < k; kx++) {
                const float *line = x + (ky * c + ci) * xs + kx * batch, *tap = w + (ky * k + kx) * c + ci;
                vec in[LINES];
                UNROLL for (int l = 0; l < lines; l++) in[l] = LOAD(line + l * LANES);
                UNROLL for (int o = 0; o < outs; o++)
                    UNROLL for (int l = 0; l < lines; l++) sum[o][l] += tap[o * size] * in[l];
            }
    UNROLL for (int o = 0; o < outs; o++) UNROLL for (int l = 0; l < lines; l++) STORE(y + o * ys + l * LANES, sum[o][l]);
}

/* x has h rows, and pad rows of zeros above and below, which are not there and are left out of the sums. */
static void conv(const float *x, int64_t xs, int64_t h, int64_t pad, const float *w, const float *bias, int64_t c, int64_t k,
                 int64_t C, int64_t H, int64_t width, int64_t batch, float *y, int64_t ys) {
    for (int64_t oy = 0; oy < H; oy++) {
        const int64_t from = pad > oy ? pad - oy : 0, to = h + pad - oy < k ? h + pad - oy : k;
        for (int64_t j = 0, lines; j < width; j += lines * LANES) {
            const float *at = x + (oy - pad) * c * xs + j;
            lines = width - j > (LINES - 1) * LANES ? LINES : 1;
            for (int64_t o = 0, outs; o < C; o += outs) {
                const float *b = bias ? bias + o : NULL, *wo = w + o * k * k * c;
                float *out = y + (oy * C + o) * ys + j;
                outs = C - o >= OUTS ? OUTS : C - o >= FEW ? FEW : 1;
#define BLOCK(outs, lines) conv_block(at, xs, wo, c, k, from, to, batch, b, out, ys, outs, lines)
                if (lines > 1 && outs == OUTS) BLOCK(OUTS, LINES);
                else if (lines > 1 && outs == FEW) BLOCK(FEW, LINES);
                else if (lines > 1) BLOCK(1, LINES);
                else if (outs == OUTS) BLOCK(OUTS, 1);
                else if (outs == FEW) BLOCK(FEW, 1);
                else BLOCK(1, 1);
            }
        }
    }
    for (int64_t r = 0; r < H * C; r++) /* behind a line are zeros, so that sums along lines may run over its end */
        for (int64_t j = width; j < UP(width); j++) y[r * ys + j] = 0;
}

/* gradient[o][ky][kx][c] = sum over rows and the line of d[oy][o][.] * x[oy + ky][c][. + kx * batch] */
static inline __attribute__((always_inline)) void taps_block(
    const float *x, int64_t xs, const float *d, int64_t ds, int64_t c, int64_t C, int64_t from, int64_t to, int64_t width,
    int64_t batch, float *g, int64_t size, const int outs, const int taps) {
    vec sum[DOUTS][TAPS];
    UNROLL for (int o = 0; o < outs; o++) UNROLL for (int t = 0; t < taps; t++) sum[o][t] = (vec){0};
    for (int64_t oy = from; oy < to; oy++) {
        const float *line = x + oy * c * xs, *dl = d + oy * C * ds;
        for (int64_t j = 0; j < width; j += LANES) {
            vec in[TAPS];
            UNROLL for (int t = 0; t < taps; t++) in[t] = LOAD(line + t * batch + j);
            UNROLL for (int o = 0; o < outs; o++) {
                const vec v = LOAD(dl + o * ds + j);
                UNROLL for (int t = 0; t < taps; t++) sum[o][t] += v * in[t];
            }
        }
    }
    UNROLL for (int o = 0; o < outs; o++) UNROLL for (int t = 0; t < taps; t++) g[o * size + t * c] = total(sum[o][t]);
}

/* The same for whole vectors of outputs, where derivatives lie as (row, column and sample, output). */
static inline __attribute__((always_inline)) void outs_block(
    const float *x, int64_t xs, const float *d, int64_t c, int64_t C, int64_t from, int64_t to, int64_t width, int64_t batch,
    float *g, int64_t size, const int vecs, const int taps) {
    vec sum[VECS][TAPS];
    UNROLL for (int v = 0; v < vecs; v++) UNROLL for (int t = 0; t < taps; t++) sum[v][t] = (vec){0};
    for (int64_t oy = from; oy < to; oy++) {
        const float *line = x + oy * c * xs, *dl = d + oy * width * C;
        for (int64_t j = 0; j < width; j++) {
            vec in[VECS];
            UNROLL for (int v = 0; v < vecs; v++) in[v] = LOAD(dl + j * C + v * LANES);
            UNROLL for (int t = 0; t < taps; t++)
                UNROLL for (int v = 0; v < vecs; v++) sum[v][t] += line[t * batch + j] * in[v];
        }
    }
    for (int v = 0; v < vecs; v++) for (int t = 0; t < taps; t++)
        for (int i = 0; i < LANES; i++) g[(v * LANES + i) * size + t * c] = sum[v][t][i];
}

/* turned has room for all derivatives. */
static void conv_gradient(const float *x, int64_t xs, const float *d, int64_t ds, const layer_t *l, int64_t batch, float *turned, float *g) {
    const int64_t c = l->c, C = l->C, k = l->k, pad = l->pad, size = k * k * c, width = l->W * batch;
    const int across = C % LANES == 0 && k % TAPS == 0;
    for (int64_t y = 0; across && y < l->H; y++)
        for (int64_t o = 0; o < C; o += LANES)
            for (int64_t j = 0; j < width; j++)
                for (int64_t i = 0; i < LANES; i++) turned[(y * width + j) * C + o + i] = d[(y * C + o + i) * ds + j];
    for (int64_t o = 0, outs; o < C; o += outs) {
        const int64_t left = C - o;
        outs = !across ? (left >= DOUTS ? DOUTS : 1) : LANES * (left >= VECS * LANES ? VECS : left >= VECS / 2 * LANES ? VECS / 2 : 1);
        for (int64_t ky = 0; ky < k; ky++) {
            const int64_t first = pad > ky ? pad - ky : 0, last = l->h + pad - ky < l->H ? l->h + pad - ky : l->H;
            for (int64_t ci = 0; ci < c; ci++)
                for (int64_t kx = 0, taps; kx < k; kx += taps) {
                    const float *at = x + ((ky - pad) * c + ci) * xs + kx * batch, *from = d + o * ds;
                    float *to = g + o * size + (ky * k + kx) * c + ci;
                    taps = k - kx >= TAPS ? TAPS : 1;
#define OUTS_BLOCK(vecs) outs_block(at, xs, turned + o, c, C, first, last, width, batch, to, size, vecs, TAPS)
#define TAPS_BLOCK(outs, taps) taps_block(at, xs, from, ds, c, C, first, last, width, batch, to, size, outs, taps)
                    if (across && outs == VECS * LANES) OUTS_BLOCK(VECS);
                    else if (across && outs == VECS / 2 * LANES) OUTS_BLOCK(VECS / 2);
                    else if (across) OUTS_BLOCK(1);
                    else if (outs > 1 && taps > 1) TAPS_BLOCK(DOUTS, TAPS);
                    else if (outs > 1) TAPS_BLOCK(DOUTS, 1);
                    else if (taps > 1) TAPS_BLOCK(1, TAPS);
                    else TAPS_BLOCK(1, 1);
                }
        }
    }
}

/* ---- fully connected: y[b][o] = bias[o] + x[b] . weight[o] ---- */

/* bias plus the total of each sum of one sample: the additions of total, for four sums at a time. */
static inline __attribute__((always_inline)) void totals(const vec *sum, const float *bias, float *y, const int cols) {
#ifdef __AVX512F__
    if (cols == 4) {
        const vec a = sum[0], b = sum[1], c = sum[2], d = sum[3];
        const vec ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
                     + __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        const vec cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
                     + __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        vec v = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
              + __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
        v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
        for (int i = 0; i < 4; i++) y[i] = bias[i] + v[4 * i];
        return;
    }
#endif
    for (int c = 0; c < cols; c++) y[c] = bias[c] + total(sum[c]);
}

static inline __attribute__((always_inline)) void dot_block(const float *x, int64_t xs, const float *w, int64_t n,
                                                            float *y, int64_t ys, const float *bias, const int rows, const int cols) {
    vec sum[ROWS][COLS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < cols; c++) sum[r][c] = (vec){0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec in[ROWS];
        UNROLL for (int r = 0; r < rows; r++) in[r] = LOAD(x + r * xs + i);
        UNROLL for (int c = 0; c < cols; c++) {
            const vec v = LOAD(w + c * n + i);
            UNROLL for (int r = 0; r < rows; r++) sum[r][c] += in[r] * v;
        }
    }
    if (i < n)
        UNROLL for (int c = 0; c < cols; c++) {
            const vec v = head_of(w + c * n + i, n - i);
            UNROLL for (int r = 0; r < rows; r++) sum[r][c] += LOAD(x + r * xs + i) * v;
        }
    UNROLL for (int r = 0; r < rows; r++) totals(sum[r], bias, y + r * ys, cols);
}

static void linear(const float *x, int64_t xs, const layer_t *l, int64_t batch, float *y, int64_t ys) {
    for (int64_t o = 0; o < l->C;) {
        const int full = l->C - o >= COLS;
        for (int64_t b = 0; b < batch;) {
            const int more = batch - b >= ROWS;
            const float *at = x + b * xs, *w = l->weight + o * l->c;
            float *to = y + b * ys + o;
            if (full && more) dot_block(at, xs, w, l->c, to, ys, l->bias + o, ROWS, COLS);
            else if (full) dot_block(at, xs, w, l->c, to, ys, l->bias + o, 1, COLS);
            else if (more) dot_block(at, xs, w, l->c, to, ys, l->bias + o, ROWS, 1);
            else dot_block(at, xs, w, l->c, to, ys, l->bias + o, 1, 1);
            b += more ? ROWS : 1;
        }
        o += full ? COLS : 1;
    }
}

/* below[b][i] = sum over o of d[b][o] * weight[o][i] */
static inline __attribute__((always_inline)) void below_block(const float *d, int64_t ds, const float *w, int64_t n, int64_t C,
                                                              int64_t tail, float *below, int64_t bs, const int rows) {
    vec sum[ROWS];
    UNROLL for (int r = 0; r < rows; r++) sum[r] = (vec){0};
    for (int64_t o = 0; o < C; o++) {
        const vec v = tail ? head_of(w + o * n, tail) : LOAD(w + o * n);
        UNROLL for (int r = 0; r < rows; r++) sum[r] += d[r * ds + o] * v;
    }
    UNROLL for (int r = 0; r < rows; r++) STORE(below + r * bs, sum[r]);
}

static void linear_below(const float *d, int64_t ds, const layer_t *l, int64_t batch, float *below, int64_t bs) {
    for (int64_t i = 0; i < l->c; i += LANES) {
        const int64_t tail = l->c - i < LANES ? l->c - i : 0;
        for (int64_t b = 0; b < batch;) {
            const int more = batch - b >= ROWS;
            if (more) below_block(d + b * ds, ds, l->weight + i, l->c, l->C, tail, below + b * bs + i, bs, ROWS);
            else below_block(d + b * ds, ds, l->weight + i, l->c, l->C, tail, below + b * bs + i, bs, 1);
            b += more ? ROWS : 1;
        }
    }
}

/* new[o][i] = rest * weight[o][i] - lr * sum over b of d[b][o] * x[b][i] (+ anchor) */
static inline __attribute__((always_inline)) void update_block(const float *x, int64_t xs, const float *s, const float *w, float *new, int64_t n,
                                                               int64_t tail, int64_t batch, float rest, const float *anchor, const int cols) {
    vec sum[COLS];
    UNROLL for (int c = 0; c < cols; c++) {
        const vec old = tail ? head_of(w + c * n, tail) : LOAD(w + c * n);
        sum[c] = anchor ? rest * old + (tail ? head_of(anchor + c * n, tail) : LOAD(anchor + c * n)) : rest * old;
    }
    for (int64_t b = 0; b < batch; b++) {
        const vec in = LOAD(x + b * xs);
        UNROLL for (int c = 0; c < cols; c++) sum[c] += s[c * batch + b] * in;
    }
    UNROLL for (int c = 0; c < cols; c++)
        if (tail) put_head(new + c * n, tail, sum[c]);
        else STORE(new + c * n, sum[c]);
}

static void linear_update(const float *x, int64_t xs, const float *d, int64_t ds, const layer_t *l, int64_t batch, float rest, float lr, float *s) {
    for (int64_t o = 0; o < l->C;) {
        const int full = l->C - o >= COLS;
        for (int c = 0; c < (full ? COLS : 1); c++) {
            float sum = 0;
            for (int64_t b = 0; b < batch; b++) sum += d[b * ds + o + c], s[c * batch + b] = -lr * d[b * ds + o + c];
            l->new_bias[o + c] = rest * l->bias[o + c] - lr * sum + (l->bias_anchor ? l->bias_anchor[o + c] : 0);
        }
        for (int64_t i = 0; i < l->c; i += LANES) {
            const int64_t tail = l->c - i < LANES ? l->c - i : 0;
            const float *w = l->weight + o * l->c + i, *anchor = l->weight_anchor ? l->weight_anchor + o * l->c + i : NULL;
            float *new = l->new_weight + o * l->c + i;
            if (full) update_block(x + i, xs, s, w, new, l->c, tail, batch, rest, anchor, COLS);
            else update_block(x + i, xs, s, w, new, l->c, tail, batch, rest, anchor, 1);
        }
        o += full ? COLS : 1;
    }
}

/* ---- pooling by 2, ReLU, flattening ---- */

/* Vectors run over the end of a pixel's samples; what they leave there the next pixel covers, and zeros behind the last. */

typedef struct { mask second, third, fourth; vec best; } choice_t; /* of four pixels: which is larger than all before it */

static vec either(mask m, vec a, vec b) { return (vec)(((mask)a & m) | ((mask)b & ~m)); }
static vec only(mask m, vec a) { return (vec)((mask)a & m); }

static choice_t choose(const float *up, const float *down, int64_t batch) {
    const vec a = LOAD(up), b = LOAD(up + batch), c = LOAD(down), d = LOAD(down + batch);
    const mask second = b > a;
    const vec ab = either(second, b, a);
    const mask third = c > ab;
    const vec abc = either(third, c, ab);
    const mask fourth = d > abc;
    return (choice_t){second, third, fourth, either(fourth, d, abc)};
}

static void pool(const layer_t *l, const float *x, int64_t xs, int64_t batch, float *y, int64_t ys) {
    for (int64_t r = 0; r < l->H * l->C; r++) {
        const float *up = x + (2 * (r / l->C) * l->C + r % l->C) * xs, *down = up + l->C * xs;
        float *to = y + r * ys;
        for (int64_t column = 0; column < l->W; column++, up += 2 * batch, down += 2 * batch, to += batch)
            for (int64_t b = 0; b < batch; b += LANES) STORE(to + b, choose(up + b, down + b, batch).best);
        memset(to, 0, 4 * (ys - l->W * batch));
    }
}

static void pool_below(const layer_t *l, const float *x, int64_t xs, const float *d, int64_t ds, int64_t batch, float *below, int64_t bs) {
    memset(below, 0, 4 * l->h * l->c * bs);
    for (int64_t r = 0; r < l->H * l->C; r++) {
        const int64_t first = (2 * (r / l->C) * l->C + r % l->C), rest = bs - 2 * l->W * batch;
        const float *up = x + first * xs, *down = up + l->C * xs, *from = d + r * ds;
        float *high = below + first * bs, *low = high + l->C * bs;
        for (int64_t column = 0; column < l->W; column++, up += 2 * batch, down += 2 * batch, from += batch)
            for (int half = 0; half < 2; half++, high += batch, low += batch)
                for (int64_t b = 0; b < batch; b += LANES) {
                    const choice_t at = choose(up + b, down + b, batch);
                    const vec v = LOAD(from + b);
                    STORE(high + b, only((half ? at.second : ~at.second) & ~at.third & ~at.fourth, v));
                    STORE(low + b, only(half ? at.fourth : at.third & ~at.fourth, v));
                }
        memset(high, 0, 4 * rest), memset(low, 0, 4 * rest);
    }
}

/* Between an image, (row, channel, column, sample), and (sample, channel, row, column). */
static void flatten(const layer_t *l, float *image, int64_t is, float *flat, int64_t fs, int64_t batch, int back) {
    for (int64_t b = 0; b < batch; b++)
        for (int64_t c = 0; c < l->c; c++)
            for (int64_t y = 0; y < l->h; y++)
                for (int64_t x = 0; x < l->w; x++) {
                    float *here = image + (y * l->c + c) * is + x * batch + b, *there = flat + b * fs + (c * l->h + y) * l->w + x;
                    if (back) *here = *there;
                    else *there = *here;
                }
}

/* A copy of an image with pad columns of zeros on either side. */
static void framed(const float *x, int64_t xs, int64_t c, int64_t h, int64_t w, int64_t pad, int64_t batch, float *y, int64_t ys) {
    memset(y, 0, 4 * h * c * ys);
    for (int64_t r = 0; r < h * c; r++) memcpy(y + r * ys + pad * batch, x + r * xs, 4 * w * batch);
}

/* ---- the chain ---- */

typedef struct { /* what lies before a layer, and behind the last one */
    float *x, *d; /* activations, and the derivative of the loss by them */
    float *frame; /* of a padded convolution: its framed input */
    int64_t stride; /* from line to line of an image, from sample to sample of what is flat */
} place_t;

typedef struct { /* for whichever layer is at work */
    float *gradient, *turned, *frame;
} spare_t;

static int64_t line(int64_t width, int64_t batch) { return UP(width * batch + LANES); }

static int64_t frame_size(const layer_t *l, int64_t batch) { return l->h * l->c * line(l->w + 2 * l->pad, batch); }

/* How many numbers all places take for batches of this size; where there is memory, each gets its own. */
static int64_t arrange(const layer_t *layers, int64_t count, int64_t batch, float *memory, place_t *places, spare_t *spare) {
    int64_t used = 0, widest = 0, frame = 0;
#define TAKE(n) (used += UP(n) + LANES, memory ? memory + used - (UP(n) + LANES) : NULL)
    for (int64_t i = 0; i <= count; i++) {
        const layer_t *l = layers + i - (i == count);
        const int64_t c = i == count ? l->C : l->c, h = i == count ? 0 : l->h;
        places[i].stride = h ? line(l->w, batch) : UP(c);
        const int64_t size = (h ? h * c : batch) * places[i].stride;
        places[i].x = TAKE(size), places[i].d = TAKE(size);
        if (i == count) break;
        if (l->kind == CONV && l->pad) places[i].frame = TAKE(frame_size(l, batch));
        const int64_t back = l->k - 1 - l->pad, wide = l->kind == LINEAR ? COLS * batch : l->C * l->k * l->k * l->c;
        const int64_t about = l->kind == CONV ? l->H * l->C * line(l->W + 2 * back, batch) : 0;
        widest = wide > widest ? wide : widest, frame = about > frame ? about : frame;
    }
    spare->gradient = TAKE(widest), spare->turned = TAKE(widest), spare->frame = TAKE(frame);
    return used;
}

static void forward(const layer_t *l, const place_t *in, const place_t *out, int64_t batch) {
    const int64_t numbers = l->h ? l->h * l->c : batch;
    if (l->kind == CONV && l->pad) {
        const int64_t fs = line(l->w + 2 * l->pad, batch);
        framed(in->x, in->stride, l->c, l->h, l->w, l->pad, batch, in->frame, fs);
        conv(in->frame, fs, l->h, l->pad, l->weight, l->bias, l->c, l->k, l->C, l->H, l->W * batch, batch, out->x, out->stride);
    } else if (l->kind == CONV)
        conv(in->x, in->stride, l->h, 0, l->weight, l->bias, l->c, l->k, l->C, l->H, l->W * batch, batch, out->x, out->stride);
    else if (l->kind == POOL) pool(l, in->x, in->stride, batch, out->x, out->stride);
    else if (l->kind == RELU) /* a number that is none stays none */
        for (int64_t j = 0; j < numbers * in->stride; j++) out->x[j] = in->x[j] <= 0 ? 0 : in->x[j];
    else if (l->kind == FLAT) flatten(l, in->x, in->stride, out->x, out->stride, batch, 0);
    else linear(in->x, in->stride, l, batch, out->x, out->stride);
}

static void conv_update(const layer_t *l, const place_t *in, const place_t *out, int64_t batch, float lr, float rest, const spare_t *spare) {
    float *g = spare->gradient;
    if (l->pad) conv_gradient(in->frame, line(l->w + 2 * l->pad, batch), out->d, out->stride, l, batch, spare->frame, g);
    else conv_gradient(in->x, in->stride, out->d, out->stride, l, batch, spare->frame, g);
    for (int64_t j = 0; j < l->C * l->k * l->k * l->c; j++)
        l->new_weight[j] = rest * l->weight[j] - lr * g[j] + (l->weight_anchor ? l->weight_anchor[j] : 0);
    for (int64_t o = 0; o < l->C; o++) {
        vec sum = {0};
        for (int64_t y = 0; y < l->H; y++)
            for (int64_t j = 0; j < l->W * batch; j += LANES) sum += LOAD(out->d + (y * l->C + o) * out->stride + j);
        l->new_bias[o] = rest * l->bias[o] - lr * total(sum) + (l->bias_anchor ? l->bias_anchor[o] : 0);
    }
}

/* What the derivative behind a convolution is before it: the framed derivative, convolved with the turned kernels. */
static void conv_below(const layer_t *l, const place_t *in, const place_t *out, int64_t batch, const spare_t *spare) {
    const int64_t k = l->k, c = l->c, C = l->C, back = k - 1 - l->pad, fs = line(l->W + 2 * back, batch);
    framed(out->d, out->stride, C, l->H, l->W, back, batch, spare->frame, fs);
    for (int64_t o = 0; o < C; o++)
        for (int64_t q = 0; q < k * k; q++)
            for (int64_t ci = 0; ci < c; ci++) spare->turned[(ci * k * k + k * k - 1 - q) * C + o] = l->weight[(o * k * k + q) * c + ci];
    conv(spare->frame, fs, l->H, back, spare->turned, NULL, C, k, c, l->h, l->w * batch, batch, in->d, in->stride);
}

/* The derivative before a layer, if anything further down learns; then the layer's own step. */
static void backward(const layer_t *l, const place_t *in, const place_t *out, int64_t batch, int further, float lr, float rest,
                     const spare_t *spare) {
    const int64_t numbers = l->h ? l->h * l->c : batch;
    if (l->kind == CONV) {
        if (further) conv_below(l, in, out, batch, spare);
        if (l->learns) conv_update(l, in, out, batch, lr, rest, spare);
    } else if (l->kind == LINEAR) {
        if (further) linear_below(out->d, out->stride, l, batch, in->d, in->stride);
        if (l->learns) linear_update(in->x, in->stride, out->d, out->stride, l, batch, rest, lr, spare->gradient);
    } else if (l->kind == POOL) pool_below(l, in->x, in->stride, out->d, out->stride, batch, in->d, in->stride);
    else if (l->kind == RELU) {
        const float *restrict x = out->x, *restrict d = out->d;
        float *restrict below = in->d;
        for (int64_t j = 0; j < numbers * in->stride; j++) {
            const float v = d[j];
            below[j] = x[j] <= 0 ? 0 : v;
        }
    } else {
        memset(in->d, 0, 4 * l->h * l->c * in->stride);
        flatten(l, in->d, in->stride, out->d, out->stride, batch, 1);
    }
}

/* The mean cross-entropy of a batch, and its derivative by the outputs. */
static double cross_entropy(const place_t *top, int64_t classes, const int64_t *labels, const int64_t *order, int64_t batch) {
    double mean = 0;
    for (int64_t b = 0; b < batch; b++) {
        const float *x = top->x + b * top->stride;
        float *d = top->d + b * top->stride, most = x[0], all = 0;
        for (int64_t o = 1; o < classes; o++) most = x[o] > most ? x[o] : most;
        for (int64_t o = 0; o < classes; o++) all += d[o] = expf(x[o] - most);
        const int64_t label = labels[order[b]];
        mean += logf(all) - (x[label] - most);
        for (int64_t o = 0; o < classes; o++) d[o] = (d[o] / all - (o == label)) / batch;
    }
    return mean / batch;
}

static void take(const float *samples, const int64_t *order, const layer_t *l, const place_t *to, int64_t batch) {
    for (int64_t b = 0; b < batch; b++) {
        if (!l->h) memcpy(to->x + b * to->stride, samples + order[b] * l->c, 4 * l->c);
        else {
            const float *from = samples + order[b] * l->h * l->w * l->c;
            for (int64_t y = 0; y < l->h; y++)
                for (int64_t x = 0; x < l->w; x++)
                    for (int64_t c = 0; c < l->c; c++) to->x[(y * l->c + c) * to->stride + x * batch + b] = *from++;
        }
    }
}

/* How many numbers an instruction takes. */
int64_t comity_lanes(void) { return LANES; }

enum { GROUP = 16 }; /* samples that are answered at once, so that all that lies between two layers stays in the cache */

/* How much room the functions below need for batches of up to this size: bytes, from a multiple of 64 on, with a head. */
int64_t comity_room(const layer_t *layers, int64_t count, int64_t most) {
    place_t places[count + 1];
    spare_t spare;
    return 64 + 4 * arrange(layers, count, most > GROUP ? most : GROUP, NULL, places, &spare);
}

/* Lay out the room for batches of this size; its head says for which it was before, and what is between lines is zero. */
static void lay_out(const layer_t *layers, int64_t count, int64_t batch, int64_t *room, place_t *places, spare_t *spare) {
    float *memory = (float *)room + LANES;
    const int64_t size = arrange(layers, count, batch, memory, places, spare);
    if (*room != batch) memset(memory, 0, 4 * size), *room = batch;
}

/* All steps of a client. samples lie as (sample, row, column, channel) or (sample, number); order names the samples of
   each batch, sizes how many there are in it. Returns the sum of the batches' mean losses. */
double comity_descend(const layer_t *layers, int64_t count, int64_t *room, const float *samples, const int64_t *labels,
                      const int64_t *order, const int64_t *sizes, int64_t steps, float lr, float rest) {
    int64_t lowest = count;
    for (int64_t i = count; i-- > 0;) lowest = layers[i].learns ? i : lowest;
    place_t places[count + 1];
    spare_t spare;
    double loss = 0;
    for (int64_t t = 0; t < steps; order += sizes[t++]) {
        const int64_t batch = sizes[t];
        if (t == 0 || batch != sizes[t - 1]) lay_out(layers, count, batch, room, places, &spare);
        take(samples, order, layers, places, batch);
        for (int64_t i = 0; i < count; i++) forward(layers + i, places + i, places + i + 1, batch);
        loss += cross_entropy(places + count, layers[count - 1].C, labels, order, batch);
        for (int64_t i = count; i-- > lowest;) backward(layers + i, places + i, places + i + 1, batch, i > lowest, lr, rest, &spare);
    }
    return loss;
}

/* What the chain makes of samples, which lie as above. */
void comity_outputs(const layer_t *layers, int64_t count, int64_t *room, const float *samples, int64_t many, float *outputs) {
    const int64_t numbers = layers->c * (layers->h ? layers->h * layers->w : 1), classes = layers[count - 1].C;
    int64_t order[GROUP], batch = 0;
    for (int64_t b = 0; b < GROUP; b++) order[b] = b;
    place_t places[count + 1];
    spare_t spare;
    for (int64_t at = 0; at < many; at += batch) {
        const int64_t now = many - at < GROUP ? many - at : GROUP;
        if (now != batch) lay_out(layers, count, batch = now, room, places, &spare);
        take(samples + at * numbers, order, layers, places, batch);
        for (int64_t i = 0; i < count; i++) forward(layers + i, places + i, places + i + 1, batch);
        for (int64_t b = 0; b < batch; b++) memcpy(outputs + (at + b) * classes, places[count].x + b * places[count].stride, 4 * classes);
    }
}
