// Factored group attention on a CPU. For a pixel, a head, output h, query h~ and key (m, j) the score is
//     content[h~,m,j] + space[h,h~,j] + element[h,h~,m]
// so that exp(score) = C[h~,m,j] S[h,h~,j] R[h,h~,m], the normaliser is Z[h,h~] = sum_m R sum_j S C, and the values meet
//     W[h,m,j] = sum_h~ A[h,h~,m] S[h,h~,j] C[h~,m,j],   A = R / Z.
// S takes one value per (h~, row of the table of offsets) and R one per (h~, group element): they are made once and read
// through the index tables. Nothing of size |H|^3 n^2 is ever stored. Scores are kept in units of log 2, for exp2.
//
// A vector holds consecutive pixels, so all arithmetic is lane by lane and a neighbour is a shifted load. Where the three
// maxima lie so far apart that a product of factors underflows, the block is redone from the sums of the scores ("direct").
#include <atomic>
#include <initializer_list>
#include <memory>
#include <new>

#include "problem.h"

namespace gevit {
namespace {

constexpr float LOG2_E = 1.44269504f, LN_2 = .693147181f;
constexpr float LOWEST = -1e30f;         // a score that is never the largest
constexpr float SMALLEST_TOTAL = 1e-20f; // a normaliser below it has lost digits to underflow

struct Inputs {
    const float *query, *key, *value, *space, *element;
    const int32_t *offset_index, *element_index;
};

struct Gradients {
    const float* out;
    float *query, *key, *value;
};

// One thread's scratch memory and the steps of the algorithm on one block of pixels. Layouts, innermost last:
//   content [m][j][h~]   space [u][h~]   element [e][h~]   share (A) [h][m][h~]   weight (W) [m][j][h]
class Worker {
  public:
    Worker(const Problem& problem, const Inputs& inputs, bool backward) : p_(problem), in_(inputs) {
        const size_t offsets = p_.most_offsets, pairs = p_.pairs() * p_.keys, planes = size_t(p_.keys) * p_.channels;
        const size_t content = size_t(p_.keys) * offsets * p_.queries, weight = size_t(p_.keys) * offsets * p_.outputs;
        const size_t padded = (planes * p_.pitch + LANES - 1) / LANES, b = backward ? 1 : 0;
        Vec *key, *value, *key_gradient, *value_gradient, *distances, *spaces;
        usable_ = allocate({{&key, padded}, {&value, padded}, {&key_gradient, b * padded}, {&value_gradient, b * padded},
                            {&distances, offsets}, {&spaces, offsets * p_.outputs},
                            {(Vec**)&inside_, offsets}, {(Vec**)&noise_, 2 * offsets},
                            {&query_, size_t(p_.channels) * p_.queries}, {&out_, size_t(p_.channels) * p_.outputs},
                            {&content_, content}, {&space_, size_t(p_.space_rows) * p_.queries},
                            {&element_, size_t(p_.element_rows) * p_.queries}, {&largest_, size_t(p_.queries)},
                            {&total_, pairs}, {&share_, pairs}, {&weight_, weight}, {&joint_, p_.keys * offsets},
                            {&query_gradient_, b * p_.channels * p_.queries},
                            {&weight_gradient_, b * weight}, {&content_gradient_, b * content},
                            {&space_gradient_, b * p_.space_rows * p_.queries},
                            {&element_gradient_, b * p_.element_rows * p_.queries}, {&share_gradient_, b * pairs},
                            {&space_table_gradient, b * p_.space_rows * p_.space_channels},
                            {&element_table_gradient, b * p_.element_rows * p_.element_channels}});
        if (!usable_) return;
        const auto planes_in = [&](Vec* from) { return Planes{(float*)from, p_.pitch, p_.keys, p_.channels}; };
        key_ = planes_in(key), value_ = planes_in(value);
        key_gradient_ = planes_in(key_gradient), value_gradient_ = planes_in(value_gradient);
        distance_ = (int*)distances, space_at_ = (int*)spaces;
    }

    bool usable() const { return usable_; }

    template <bool Dropped>
    void forward(int64_t task, float* out) {
        pack(in_.key, task, key_);
        pack(in_.value, task, value_);
        for (const Block& block : p_.blocks) {
            enter(task, block);
            if (factorise()) weigh<Dropped>();
            else direct<Dropped, false>();
            mix(weight_, p_.outputs, moved(value_), shifts(), out_);
            write(out_, p_.outputs, 1, out, task);
        }
    }

    template <bool Dropped>
    void backward(int64_t task, const Gradients& gradients) {
        pack(in_.key, task, key_);
        pack(in_.value, task, value_);
        clear(key_gradient_);
        clear(value_gradient_);
        for (const Block& block : p_.blocks) {
            enter(task, block);
            read(gradients.out, p_.outputs, 1, out_, task);
            dot(out_, p_.outputs, moved(value_), shifts(), weight_gradient_);
            if (factorise()) differentiate<Dropped>();
            else direct<Dropped, true>();
            Planes value_gradient = moved(value_gradient_), key_gradient = moved(key_gradient_);
            scatter(weight_, out_, p_.outputs, value_gradient, shifts());
            scatter(content_gradient_, query_, p_.queries, key_gradient, shifts());
            mix(content_gradient_, p_.queries, moved(key_), shifts(), query_gradient_);
            const int space_channels = p_.space_channels, split = space_channels * p_.queries;
            mix(space_gradient_, p_.queries, in_.space, p_.space_rows, space_channels, query_gradient_);
            mix(element_gradient_, p_.queries, in_.element, p_.element_rows, p_.element_channels, query_gradient_ + split);
            scatter(space_gradient_, query_, p_.queries, p_.space_rows, space_channels, space_table_gradient);
            scatter(element_gradient_, query_ + split, p_.queries, p_.element_rows, p_.element_channels,
                    element_table_gradient);
            write(query_gradient_, p_.queries, p_.scale, gradients.query, task);
        }
        unpack(value_gradient_, 1, gradients.value, task);
        unpack(key_gradient_, LN_2, gradients.key, task);  // they met the query times scale / log 2
    }

    // Sums over everything but lanes of the gradients of the two tables, [u][channel] and [e][channel], times log 2.
    Vec *space_table_gradient, *element_table_gradient;

  private:
    struct Request {
        Vec** where;
        size_t count;
    };

    bool allocate(std::initializer_list<Request> requests) {
        size_t total = 0;
        for (const Request& request : requests) total += request.count;
        memory_.reset(new (std::align_val_t(64), std::nothrow) float[total * LANES]);
        if (!memory_) return false;
        Vec* next = (Vec*)memory_.get();
        for (const Request& request : requests) *request.where = next, next += request.count;
        return true;
    }

    // ---- planes and blocks ----

    void clear(Planes& planes) { std::memset(planes.data, 0, planes.pitch * p_.keys * p_.channels * sizeof(float)); }

    void pack(const float* from, int64_t task, Planes& planes) {
        clear(planes);
        for (int key = 0; key < p_.keys; ++key)
            for (int channel = 0; channel < p_.channels; ++channel)
                std::memcpy(planes.at(key, channel) + p_.guard, from + p_.plane(task, channel, p_.keys, key),
                            p_.pixels * sizeof(float));
    }

    void unpack(const Planes& planes, float factor, float* to, int64_t task) const {
        for (int key = 0; key < p_.keys; ++key)
            for (int channel = 0; channel < p_.channels; ++channel) {
                const float* from = planes.at(key, channel) + p_.guard;
                float* plane = to + p_.plane(task, channel, p_.keys, key);
                for (int pixel = 0; pixel < p_.pixels; ++pixel) plane[pixel] = factor * from[pixel];
            }
    }

    Planes moved(Planes planes) const {
        planes.data += p_.guard + block_.first;
        return planes;
    }

    void read(const float* from, int rows, float factor, Vec* to, int64_t task) const {
        for (int channel = 0; channel < p_.channels; ++channel)
            for (int row = 0; row < rows; ++row)
                to[channel * rows + row] =
                    factor * load(from + p_.plane(task, channel, rows, row) + block_.first, block_.count);
    }

    void write(const Vec* from, int rows, float factor, float* to, int64_t task) const {
        for (int channel = 0; channel < p_.channels; ++channel)
            for (int row = 0; row < rows; ++row)
                store(to + p_.plane(task, channel, rows, row) + block_.first, factor * from[channel * rows + row],
                      block_.count);
    }

    Shifts shifts() const { return {distance_, offsets_}; }

    // Lists the offsets that meet the image, column by column: neighbours in the list are a row of pixels apart, so that
    // scatter does not load what it has just stored. The list is filled up with offsets at which no lane is inside.
    void enter(int64_t task, const Block& block) {
        block_ = block;
        offsets_ = padded_to(OFFSETS, block.offsets());
        const int radius = p_.neighborhood / 2;
        IntVec row, column;
        std::memcpy(&row, &p_.row_of[block.first], sizeof row);
        std::memcpy(&column, &p_.column_of[block.first], sizeof column);
        present_ = row >= 0;
        pixels_ = p_.dropout.pixels(uint32_t(task), uint32_t(block.first));
        int j = 0;
        const auto append = [&](int a, int b, IntVec inside) {
            const int offset = a * p_.neighborhood + b;
            distance_[j] = any(inside) ? (a - radius) * p_.width + b - radius : 0;
            inside_[j] = inside;
            noise_[j] = p_.dropout.offset(pixels_, offset);
            for (int h = 0; h < p_.outputs; ++h)
                space_at_[h * offsets_ + j] =
                    in_.offset_index[ptrdiff_t(h) * p_.neighborhood * p_.neighborhood + offset] * p_.queries;
            ++j;
        };
        for (int b = block.column_begin; b < block.column_end; ++b) {
            const IntVec x = column + (b - radius), column_inside = (x >= 0) & (x < p_.width);
            for (int a = block.row_begin; a < block.row_end; ++a) {
                const IntVec y = row + (a - radius);
                append(a, b, column_inside & (y >= 0) & (y < p_.height));
            }
        }
        while (j < offsets_) append(block.row_begin, block.column_begin, IntVec{});
        read(in_.query, p_.queries, p_.scale * LOG2_E, query_, task);
    }

    // ---- the three parts of a score and their factors ----

    void score() {
        dot(query_, p_.queries, moved(key_), shifts(), content_);
        dot(query_, p_.queries, in_.space, p_.space_rows, p_.space_channels, space_);
        dot(query_ + p_.space_channels * p_.queries, p_.queries, in_.element, p_.element_rows, p_.element_channels,
            element_);
    }

    // scores[i][h~] -> 2^(score - largest over i)
    void exponentiate(Vec* scores, int count) {
        const int queries = p_.queries;
        for (int q = 0; q < queries; ++q) largest_[q] = splat(LOWEST);
        for (int i = 0; i < count; ++i)
            for (int q = 0; q < queries; ++q) largest_[q] = larger(scores[i * queries + q], largest_[q]);
        for (int i = 0; i < count; ++i)
            for (int q = 0; q < queries; ++q) scores[i * queries + q] = exp2(scores[i * queries + q] - largest_[q]);
    }

    // The same for content, over the pixels inside the image; 0 outside.
    void exponentiate_content() {
        in_tiles<ROWS>(p_.queries, [&](auto tile_, int q) {
            constexpr int tile = tile_;
            Vec largest[tile];
            GEVIT_UNROLL for (int t = 0; t < tile; ++t) largest[t] = splat(LOWEST);
            Vec* at = content_ + q;
            for (int m = 0; m < p_.keys; ++m)
                for (int j = 0; j < offsets_; ++j, at += p_.queries)
                    GEVIT_UNROLL for (int t = 0; t < tile; ++t)
                        largest[t] = larger(inside_[j] ? at[t] : splat(LOWEST), largest[t]);
            at = content_ + q;
            for (int m = 0; m < p_.keys; ++m)
                for (int j = 0; j < offsets_; ++j, at += p_.queries)
                    GEVIT_UNROLL for (int t = 0; t < tile; ++t)
                        at[t] = keep_where(inside_[j], exp2(at[t] - largest[t]));
        });
    }

    int element_at(int h, int query, int m) const {  // query counts from first_query(h)
        return p_.element_channels
                   ? in_.element_index[(ptrdiff_t(h) * p_.pair_queries + query) * p_.keys + m] * p_.queries
                   : 0;
    }

    // Outputs that meet the same queries may share a tile; with `own` no two do.
    template <int Largest, class Body>
    void outputs_in_tiles(Body&& body) const {
        if (p_.own) in_tiles<1>(p_.outputs, body);
        else in_tiles<Largest>(p_.outputs, body);
    }

    // C, S and R; total[h,m,h~] = sum_j S C; share A = R / Z. False if some Z is too small to be trusted.
    bool factorise() {
        score();
        exponentiate_content();
        exponentiate(space_, p_.space_rows);
        exponentiate(element_, p_.element_rows);
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        outputs_in_tiles<ROWS>([&](auto tall_, int h) {
            constexpr int tall = tall_;
            in_tiles<4>(keys, [&](auto wide_, int m) {
                constexpr int wide = wide_;
                for (int q = 0; q < met; ++q) {
                    const Vec* space = space_ + p_.first_query(h) + q;
                    const Vec* content = content_ + ptrdiff_t(m) * offsets_ * queries + p_.first_query(h) + q;
                    Vec total[tall][wide] = {};
                    for (int j = 0; j < offsets_; ++j) {
                        Vec s[tall];
                        GEVIT_UNROLL for (int a = 0; a < tall; ++a) s[a] = space[space_at_[(h + a) * offsets_ + j]];
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b) {
                            const Vec c = content[(ptrdiff_t(b) * offsets_ + j) * queries];
                            GEVIT_UNROLL for (int a = 0; a < tall; ++a) total[a][b] += s[a] * c;
                        }
                    }
                    GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            total_[((h + a) * keys + m + b) * met + q] = total[a][b];
                }
            });
        });
        IntVec lost = {};
        for (int h = 0; h < p_.outputs; ++h)
            for (int q = 0; q < met; ++q) {
                const Vec* element = element_ + p_.first_query(h) + q;
                Vec z = {};
                for (int m = 0; m < keys; ++m) z += element[element_at(h, q, m)] * total_[(h * keys + m) * met + q];
                const IntVec trusted = z > splat(SMALLEST_TOTAL);
                lost |= ~trusted & present_;
                const Vec inverse = keep_where(trusted, p_.dropout.scale() / z);
                for (int m = 0; m < keys; ++m)
                    share_[(h * keys + m) * met + q] = element[element_at(h, q, m)] * inverse;
            }
        return !any(lost);
    }

    // ---- forward ----

    // W[m,j,h] = sum over h~ of the kept A S C
    template <bool Dropped>
    void weigh() {
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        outputs_in_tiles<2>([&](auto tall_, int h) {
            constexpr int tall = tall_;
            in_tiles<2>(keys, [&](auto wide_, int m) {
                constexpr int wide = wide_;
                for (int j = 0; j < offsets_; ++j) {
                    Vec total[tall][wide] = {};
                    const Vec* content = content_ + (ptrdiff_t(m) * offsets_ + j) * queries + p_.first_query(h);
                    for (int q = 0; q < met; ++q)
                        GEVIT_UNROLL for (int a = 0; a < tall; ++a) {
                            const Vec s = space_[space_at_[(h + a) * offsets_ + j] + p_.first_query(h) + q];
                            Dropout::Pair kept{};
                            if constexpr (Dropped) kept = p_.dropout.keep(pixels_, noise_[j], (h + a) * met + q, m);
                            GEVIT_UNROLL for (int b = 0; b < wide; ++b) {
                                Vec c = content[ptrdiff_t(b) * offsets_ * queries + q];
                                if constexpr (Dropped) c = keep_where(b ? kept.odd : kept.even, c);
                                total[a][b] += share_[((h + a) * keys + m + b) * met + q] * s * c;
                            }
                        }
                    GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            weight_[((m + b) * ptrdiff_t(offsets_) + j) * p_.outputs + h + a] = total[a][b];
                }
            });
        });
    }

    // ---- backward ----

    // With x = p dW where kept and D[h,h~] = sum of x, the gradient of a score is x - p D. Each of its three sums falls
    // into two parts: that of x takes one pass over all (h,h~,m,j), which makes W as well and leaves factors common to
    // a sum for later; that of p D is made of small matrix products.
    template <bool Dropped>
    void differentiate() {
        const int keys = p_.keys, met = p_.pair_queries;
        zero(content_gradient_, ptrdiff_t(keys) * offsets_ * p_.queries);
        zero(space_gradient_, ptrdiff_t(p_.space_rows) * p_.queries);
        zero(element_gradient_, ptrdiff_t(p_.element_rows) * p_.queries);
        zero(share_gradient_, p_.pairs() * keys);
        sum_kept<Dropped>();
        const float unscale = 1 / p_.dropout.scale();
        for (int h = 0; h < p_.outputs; ++h)
            for (int q = 0; q < met; ++q) {
                Vec d = {};
                for (int m = 0; m < keys; ++m) {
                    const ptrdiff_t i = (h * keys + m) * met + q;
                    share_gradient_[i] *= share_[i];
                    d += share_gradient_[i];
                }
                Vec* element = element_gradient_ + p_.first_query(h) + q;
                for (int m = 0; m < keys; ++m) {
                    const ptrdiff_t i = (h * keys + m) * met + q;
                    share_[i] *= unscale * d;
                    element[element_at(h, q, m)] += share_gradient_[i] - share_[i] * total_[i];
                }
            }
        subtract_from_content();
        subtract_from_space();
    }

    static void zero(Vec* data, ptrdiff_t count) { std::memset(data, 0, count * sizeof(Vec)); }

    template <bool Dropped>
    void sum_kept() {
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        outputs_in_tiles<2>([&](auto tall_, int h) {
            constexpr int tall = tall_;
            const int first = p_.first_query(h);
            for (int j = 0; j < offsets_; ++j)
                in_tiles<2>(keys, [&](auto wide_, int m) {
                    constexpr int wide = wide_;
                    Vec total[tall][wide] = {}, g[tall][wide];
                    GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            g[a][b] = weight_gradient_[((m + b) * ptrdiff_t(offsets_) + j) * p_.outputs + h + a];
                    const ptrdiff_t at = (ptrdiff_t(m) * offsets_ + j) * queries + first;
                    const ptrdiff_t next_key = ptrdiff_t(offsets_) * queries;
                    for (int q = 0; q < met; ++q) {
                        Vec content_sum[wide];
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            content_sum[b] = content_gradient_[at + b * next_key + q];
                        GEVIT_UNROLL for (int a = 0; a < tall; ++a) {
                            const ptrdiff_t u = space_at_[(h + a) * offsets_ + j] + first + q;
                            const Vec s = space_[u];
                            Vec space_sum = space_gradient_[u];
                            Dropout::Pair kept{};
                            if constexpr (Dropped) kept = p_.dropout.keep(pixels_, noise_[j], (h + a) * met + q, m);
                            GEVIT_UNROLL for (int b = 0; b < wide; ++b) {
                                const ptrdiff_t i = ((h + a) * keys + m + b) * met + q;
                                Vec c = content_[at + b * next_key + q];
                                if constexpr (Dropped) c = keep_where(b ? kept.odd : kept.even, c);
                                const Vec cg = c * g[a][b], as = share_[i] * s;
                                total[a][b] += as * c;
                                content_sum[b] += as * cg;
                                space_sum += share_[i] * cg;
                                share_gradient_[i] += s * cg;
                            }
                            space_gradient_[u] = space_sum;
                        }
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            content_gradient_[at + b * next_key + q] = content_sum[b];
                    }
                    GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                        GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                            weight_[((m + b) * ptrdiff_t(offsets_) + j) * p_.outputs + h + a] = total[a][b];
                });
        });
    }

    // From here on share holds A D.  content gradient [m,j,h~] -= C sum_h A D S
    void subtract_from_content() {
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        for (int query = 0; query < queries; ++query) {
            const int begin = p_.own ? query : 0, end = p_.own ? query + 1 : p_.outputs, q = p_.own ? 0 : query;
            in_tiles<ROWS>(keys, [&](auto wide_, int m) {
                constexpr int wide = wide_;
                for (int j = 0; j < offsets_; j += OFFSETS) {
                    Vec total[OFFSETS][wide] = {};
                    for (int h = begin; h < end; ++h)
                        GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o) {
                            const Vec s = space_[space_at_[h * offsets_ + j + o] + query];
                            GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                                total[o][b] += share_[(h * keys + m + b) * met + q] * s;
                        }
                    GEVIT_UNROLL for (int b = 0; b < wide; ++b)
                        GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o) {
                            const ptrdiff_t i = ((m + b) * ptrdiff_t(offsets_) + j + o) * queries + query;
                            content_gradient_[i] -= content_[i] * total[o][b];
                        }
                }
            });
        }
    }

    // space gradient [u,h~] = S (what is there - sum over the (h,j) that meet u of sum_m A D C)
    void subtract_from_space() {
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        outputs_in_tiles<ROWS>([&](auto tall_, int h) {
            constexpr int tall = tall_;
            for (int q = 0; q < met; ++q) {
                const int query = p_.first_query(h) + q;
                for (int j = 0; j < offsets_; j += OFFSETS) {
                    Vec total[OFFSETS][tall] = {};
                    for (int m = 0; m < keys; ++m)
                        GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o) {
                            const Vec c = content_[(ptrdiff_t(m) * offsets_ + j + o) * queries + query];
                            GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                                total[o][a] += share_[((h + a) * keys + m) * met + q] * c;
                        }
                    GEVIT_UNROLL for (int a = 0; a < tall; ++a)
                        GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o)
                            space_gradient_[space_at_[(h + a) * offsets_ + j + o] + query] -= total[o][a];
                }
            }
        });
        for (ptrdiff_t i = 0; i < ptrdiff_t(p_.space_rows) * queries; ++i) space_gradient_[i] *= space_[i];
    }

    // ---- the slow way, from sums of scores: any finite scores ----

    template <bool Dropped, bool Backward>
    void direct() {
        score();
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        zero(weight_, ptrdiff_t(keys) * offsets_ * p_.outputs);
        if constexpr (Backward) {
            zero(content_gradient_, ptrdiff_t(keys) * offsets_ * queries);
            zero(space_gradient_, ptrdiff_t(p_.space_rows) * queries);
            zero(element_gradient_, ptrdiff_t(p_.element_rows) * queries);
        }
        for (int h = 0; h < p_.outputs; ++h)
            for (int q = 0; q < met; ++q) {
                const int query = p_.first_query(h) + q;
                const auto for_each = [&](auto&& body) {  // body(i of joint, m, j)
                    for (int m = 0, i = 0; m < keys; ++m)
                        for (int j = 0; j < offsets_; ++j, ++i) body(i, m, j);
                };
                const auto kept = [&](int i, int m, int j) {
                    if constexpr (!Dropped) return joint_[i];
                    const Dropout::Pair pair = p_.dropout.keep(pixels_, noise_[j], h * met + q, m & ~1);
                    return keep_where(m & 1 ? pair.odd : pair.even, p_.dropout.scale() * joint_[i]);
                };
                Vec largest = splat(LOWEST), total = {}, d = {};
                for_each([&](int i, int m, int j) {
                    const Vec score = content_[ptrdiff_t(i) * queries + query] +
                                      space_[space_at_[h * offsets_ + j] + query] + element_[element_at(h, q, m) + query];
                    joint_[i] = inside_[j] ? score : splat(LOWEST);
                    largest = larger(joint_[i], largest);
                });
                for_each([&](int i, int, int j) {
                    joint_[i] = keep_where(inside_[j], exp2(joint_[i] - largest));
                    total += joint_[i];
                });
                const Vec inverse = keep_where(present_, 1 / total);
                for_each([&](int i, int m, int j) {
                    joint_[i] *= inverse;
                    const Vec w = kept(i, m, j);
                    weight_[ptrdiff_t(i) * p_.outputs + h] += w;
                    if constexpr (Backward) d += w * weight_gradient_[ptrdiff_t(i) * p_.outputs + h];
                });
                if constexpr (Backward)
                    for_each([&](int i, int m, int j) {
                        const Vec gradient =
                            kept(i, m, j) * weight_gradient_[ptrdiff_t(i) * p_.outputs + h] - joint_[i] * d;
                        content_gradient_[ptrdiff_t(i) * queries + query] += gradient;
                        space_gradient_[space_at_[h * offsets_ + j] + query] += gradient;
                        element_gradient_[element_at(h, q, m) + query] += gradient;
                    });
            }
    }

    struct Release {
        void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
    };

    const Problem& p_;
    const Inputs in_;
    std::unique_ptr<float[], Release> memory_;
    bool usable_ = false;
    Planes key_, value_, key_gradient_, value_gradient_;
    Block block_;
    int offsets_;         // of the block, padded
    IntVec present_;      // lanes that hold a pixel
    Dropout::Pixels pixels_;
    int *distance_, *space_at_;  // of offset j: how far away its pixel is; where output h finds S, [h][j]
    IntVec* inside_;             // of offset j: lanes whose neighbour is in the image
    Dropout::Offset* noise_;
    Vec *query_, *out_, *content_, *space_, *element_, *largest_, *total_, *share_, *weight_, *joint_;
    Vec *query_gradient_, *weight_gradient_, *content_gradient_, *space_gradient_, *element_gradient_, *share_gradient_;
};

// Runs body(worker, i) for i in [0, count) on all threads, each with a worker of its own.
template <class Body>
int in_parallel(const Problem& problem, const Inputs& inputs, bool backward, int64_t count, Body&& body) {
    std::atomic<bool> failed{false};
#pragma omp parallel num_threads(int(std::min<int64_t>(problem.threads, count)))
    {
        const FlushDenormals flush;
        Worker worker(problem, inputs, backward);
        if (!worker.usable()) failed = true;
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; ++i)
            if (!failed) body(worker, i);
    }
    return failed ? GEVIT_OUT_OF_MEMORY : GEVIT_OK;
}

// Each group of tasks sums its gradients of the tables in a fixed order, and the groups are summed in a fixed order, so
// that the result does not depend on the number of threads. Groups depend on the shape only, and bound the memory.
int64_t groups_of(int64_t tasks, int64_t table) {
    constexpr int64_t MOST_NUMBERS = 1 << 23;
    return std::min(tasks, std::max<int64_t>(64, MOST_NUMBERS / std::max<int64_t>(1, table)));
}

void sum_groups(const std::vector<float>& partial, size_t begin, size_t count, size_t stride, float factor, float* to) {
    for (size_t i = 0; i < count; ++i) {
        double total = 0;
        for (size_t at = begin + i; at < partial.size(); at += stride) total += partial[at];
        to[i] = float(total * factor);
    }
}

template <class Body>
int without_exceptions(const gevit_shape* shape, Body&& body) {
    try {
        if (!Problem::sensible(*shape)) return GEVIT_BAD_SHAPE;
        return body(Problem(*shape));
    } catch (const std::bad_alloc&) {
        return GEVIT_OUT_OF_MEMORY;
    } catch (...) {
        return GEVIT_BAD_SHAPE;
    }
}

}  // namespace
}  // namespace gevit

using namespace gevit;

extern "C" int gevit_attend_forward(const float* query, const float* key, const float* value, const float* space,
                                    const float* element, const int32_t* offset_index, const int32_t* element_index,
                                    float* out, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Inputs inputs{query, key, value, space, element, offset_index, element_index};
        if (problem.tasks == 0) return int(GEVIT_OK);
        return in_parallel(problem, inputs, false, problem.tasks, [&](Worker& worker, int64_t task) {
            if (shape->dropout > 0) worker.forward<true>(task, out);
            else worker.forward<false>(task, out);
        });
    });
}

extern "C" int gevit_attend_backward(const float* query, const float* key, const float* value, const float* space,
                                     const float* element, const int32_t* offset_index, const int32_t* element_index,
                                     const float* grad_out, float* grad_query, float* grad_key, float* grad_value,
                                     float* grad_space, float* grad_element, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Inputs inputs{query, key, value, space, element, offset_index, element_index};
        const Gradients gradients{grad_out, grad_query, grad_key, grad_value};
        const size_t spaces = size_t(problem.space_rows) * problem.space_channels;
        const size_t elements = size_t(problem.element_rows) * problem.element_channels, stride = spaces + elements;
        const int64_t groups = groups_of(problem.tasks, stride);
        std::vector<float> partial(groups * stride);
        const int code = groups == 0 ? int(GEVIT_OK) : in_parallel(problem, inputs, true, groups,
                                                                   [&](Worker& worker, int64_t group) {
            std::fill_n(worker.space_table_gradient, spaces, Vec{});
            std::fill_n(worker.element_table_gradient, elements, Vec{});
            const int64_t end = problem.tasks * (group + 1) / groups;
            for (int64_t task = problem.tasks * group / groups; task < end; ++task)
                if (shape->dropout > 0) worker.backward<true>(task, gradients);
                else worker.backward<false>(task, gradients);
            float* to = partial.data() + group * stride;
            for (size_t i = 0; i < spaces; ++i) to[i] = sum(worker.space_table_gradient[i]);
            for (size_t i = 0; i < elements; ++i) to[spaces + i] = sum(worker.element_table_gradient[i]);
        });
        if (code == GEVIT_OK) {
            sum_groups(partial, 0, spaces, stride, LN_2, grad_space);
            sum_groups(partial, spaces, elements, stride, LN_2, grad_element);
        }
        return code;
    });
}

extern "C" int gevit_dropout_keep(float* keep, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Dropout& dropout = problem.dropout;
        const int offsets = problem.neighborhood * problem.neighborhood, pairs = int(problem.pairs());
        for (int64_t task = 0; task < problem.tasks; ++task)
            for (const Block& block : problem.blocks) {
                const Dropout::Pixels pixels = dropout.pixels(uint32_t(task), uint32_t(block.first));
                for (int pair = 0; pair < pairs; ++pair)
                    for (int m = 0; m < problem.keys; ++m)
                        for (int j = 0; j < offsets; ++j) {
                            const Dropout::Pair kept = dropout.keep(pixels, dropout.offset(pixels, j), pair, m & ~1);
                            const int64_t plane = ((task * pairs + pair) * problem.keys + m) * offsets + j;
                            store(keep + plane * problem.pixels + block.first,
                                  keep_where(m & 1 ? kept.odd : kept.even, splat(dropout.scale())), block.count);
                        }
            }
        return int(GEVIT_OK);
    });
}
