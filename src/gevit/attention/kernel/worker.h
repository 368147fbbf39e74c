// Factored group attention on a CPU. For a pixel, a head, output h, query h~ and key (m, j) the score is
//     content[h~,m,j] + space[h,h~,j] + element[h,h~,m]
// so that exp(score) = C[h~,m,j] S[h,h~,j] R[h,h~,m], the normaliser is Z[h,h~] = sum_m R sum_j S C, and the values
// meet W[h,m,j] = sum_h~ A[h,h~,m] S[h,h~,j] C[h~,m,j] with A = R / Z.
// S takes one value per (h~, row of the table of offsets) and R one per (h~, group element): they are made once and
// read through the index tables. Nothing of size |H|^3 n^2 is ever stored.
//
// A vector holds consecutive pixels, so all arithmetic is lane by lane and a neighbour is a shifted load.
//
// Two kinds of blocks are computed from sums of scores instead (`Direct`). Where the three maxima lie so far apart that
// a product of factors underflows, Z has lost terms. And where scores are large, softmaxes are often saturated: the
// gradient of a score is then a small difference, of which the factors keep the rounding error alone, and keys as large
// as the scores multiply it.
#pragma once
#include "direct.h"

namespace gevit {

constexpr Real LARGE = 1024;                              // a score beyond it is not taken apart into factors
constexpr Real SMALLEST_TOTAL = DOUBLE ? 1e-200 : 1e-20;  // a normaliser below it has lost digits to underflow

// The steps of the algorithm on one block of pixels.
template <int Order>
class Worker : public Direct {
  public:
    Worker(const Problem& problem, const Inputs& inputs, bool backward)
        : Direct(problem, inputs, backward), s_{problem} {}

    template <bool Dropped>
    void forward(int64_t task, Real* out) {
        take(task);
        for (const Block& block : p_.blocks) {
            enter<Dropped>(task, block);
            zero(out_, ptrdiff_t(p_.channels) * s_.outputs());
            if (factorise()) {
                in_tiles<KEYS>(s_.keys(), [&](auto wide, int m) {
                    weigh<Dropped, wide>(m);
                    mix_values(m, wide);
                });
            } else {
                direct<Dropped, false>();
                mix_values(0, s_.keys());
            }
            write(out_, s_.outputs(), 1, part_of(out, p_, task, s_.outputs()));
        }
    }

    template <bool Dropped>
    void backward(int64_t task, const Gradients& gradients) {
        take(task);
        const View<const Real> out_gradient = take_gradient(gradients, task);
        const View<Real> query_gradient = query_gradient_of(gradients, task);
        clear(key_gradient_);
        clear(value_gradient_);
        for (const Block& block : p_.blocks) {
            enter<Dropped>(task, block);
            read(out_gradient, s_.outputs(), 1, out_);
            zero(query_gradient_, ptrdiff_t(p_.channels) * s_.queries());
            if (factorise()) {
                differentiate<Dropped>();
            } else {
                differentiate_values(0, s_.keys());
                direct<Dropped, true>();
                scatter_values(0, s_.keys());
                scatter_content(0, s_.keys());
            }
            const int space_channels = p_.space_channels, split = space_channels * s_.queries();
            mix(space_gradient_, s_.queries(), in_.space, p_.space_rows, space_channels, query_gradient_);
            mix(element_gradient_, s_.queries(), in_.element, p_.element_rows, p_.element_channels,
                query_gradient_ + split);
            scatter(space_gradient_, query_, s_.queries(), p_.space_rows, space_channels, space_table_gradient);
            scatter(element_gradient_, query_ + split, s_.queries(), p_.element_rows, p_.element_channels,
                    element_table_gradient);
            write(query_gradient_, s_.queries(), p_.scale, query_gradient);
        }
        give_gradients(gradients, task);
    }

  private:
    // ---- products with some keys or values; what is multiplied has just been made, and is in the cache ----

    Vec* of_key(Vec* coefficients, int m, int rows) const { return coefficients + ptrdiff_t(m) * offsets_ * rows; }

    void mix_values(int m, int count) {
        mix(of_key(weight_, m, s_.outputs()), s_.outputs(), moved(value_).some(m, count), shifts(), out_);
    }

    void differentiate_values(int m, int count) {
        dot(out_, s_.outputs(), moved(value_).some(m, count), shifts(), of_key(weight_gradient_, m, s_.outputs()),
            as_is);
    }

    void scatter_values(int m, int count) {
        scatter(of_key(weight_, m, s_.outputs()), out_, s_.outputs(), moved(value_gradient_).some(m, count), shifts());
    }

    void scatter_content(int m, int count) {
        const Vec* const gradient = of_key(content_gradient_, m, s_.queries());
        scatter(gradient, query_, s_.queries(), moved(key_gradient_).some(m, count), shifts());
        mix(gradient, s_.queries(), moved(key_).some(m, count), shifts(), query_gradient_);
    }

    // ---- the factors ----

    // Where the pair of h and its q-th query is in total and share, and from there key m.
    ptrdiff_t pair_at(int q, int h) const { return (ptrdiff_t(q) * s_.outputs() + h) * KEYS; }
    ptrdiff_t key_at(int m) const { return m / KEYS * s_.pairs() * KEYS + m % KEYS; }

    // body(Tile, q, h) for tiles of the outputs that meet a query element.
    template <int Largest, class Body>
    GEVIT_INLINE void outputs_meeting(int query, Body&& body) const {
        if (s_.own()) body(Tile<1>{}, 0, query);
        else in_tiles<Largest>(s_.outputs(), [&](auto tall, int h) { body(tall, query, h); });
    }

    // C, S and R; total[h~,h,m] = sum_j S C; share A = R / Z. False if the factors cannot be trusted.
    bool factorise() {
        small_ = small_ && exponentiate_small_content();
        if (!small_) {  // of this task, the blocks that follow are likely to be so too
            if (scores_may_exceed(LARGE)) return false;
            exponentiate_content();
        }
        small_positions_ = small_positions_ && exponentiate_small_positions();
        if (!small_positions_) exponentiate_positions();
        for (int query = 0; query < s_.queries(); ++query)
            in_tiles<4>(s_.keys(), [&](auto wide, int m) {
                outputs_meeting<OUTPUTS>(query, [&](auto tall, int q, int h) { sum_tile<tall, wide>(query, q, h, m); });
            });
        const int keys = s_.keys(), met = s_.met();
        IntVec lost = {};
        for (int q = 0; q < met; ++q)
            for (int h = 0; h < s_.outputs(); ++h) {
                const Vec *const element = element_ + s_.first_query(h) + q, *const total = total_ + pair_at(q, h);
                Vec* const share = share_ + pair_at(q, h);
                Vec z = {};
                for (int m = 0; m < keys; ++m) z += element[element_at(h, q, m)] * total[key_at(m)];
                const IntVec trusted = z > splat(SMALLEST_TOTAL);
                lost |= ~trusted & present_;
                const Vec inverse = keep_where(trusted, p_.dropout.scale() / z);
                for (int m = 0; m < keys; ++m) share[key_at(m)] = element[element_at(h, q, m)] * inverse;
            }
        return !any(lost);
    }

    template <int Tall, int Wide>
    void sum_tile(int query, int q, int h, int m) {
        const ptrdiff_t queries = s_.queries(), next_key = offsets_ * queries;
        const int offsets = offsets_, *const space_at = space_at_ + h * offsets_;
        const Vec *const space = space_ + query, *content = content_ + m * next_key + query;
        for (int begin = 0; begin < offsets; begin += SUMMANDS) {
            Vec total[Tall][Wide] = {};
            for (int j = begin; j < std::min(begin + SUMMANDS, offsets); ++j, content += queries) {
                Vec s[Tall];
                GEVIT_UNROLL for (int a = 0; a < Tall; ++a) s[a] = space[space_at[a * offsets + j]];
                GEVIT_UNROLL for (int b = 0; b < Wide; ++b)
                    GEVIT_UNROLL for (int a = 0; a < Tall; ++a) total[a][b] += s[a] * content[b * next_key];
            }
            GEVIT_UNROLL for (int a = 0; a < Tall; ++a)
                GEVIT_UNROLL for (int b = 0; b < Wide; ++b) {
                    Vec& to = total_[pair_at(q, h + a) + key_at(m + b)];
                    to = begin ? to + total[a][b] : total[a][b];
                }
        }
    }

    // ---- forward ----

    // x where dropout keeps the coefficient of h, its q-th query and key m + b of a tile: two keys share a `pair`.
    template <bool Dropped>
    GEVIT_INLINE Vec kept(Vec x, Dropout::Pair& pair, const Dropout::Offset& noise, int q, int h, int m, int b) const {
        if constexpr (!Dropped) return x;
        if (b % 2 == 0) pair = p_.dropout.keep(place_[s_.dropout_place(q, h, m + b)], noise);
        return keep_where(b % 2 ? pair.odd : pair.even, x);
    }

    // W[m,j,h] = sum over h~ of the kept A S C, for some keys
    template <bool Dropped, int Wide>
    void weigh(int m) {
        for (int j = 0; j < offsets_; ++j)
            if (s_.own()) weigh_own<Dropped, Wide>(m, j);
            else in_tiles<OUTPUTS>(s_.outputs(), [&](auto tall, int h) { weigh_tile<Dropped, tall, Wide>(h, m, j); });
    }

    // The same for outputs that have one query each.
    template <bool Dropped, int Wide>
    void weigh_own(int m, int j) {
        const ptrdiff_t outputs = s_.outputs(), next_key = offsets_ * outputs;
        for (int h = 0; h < outputs; ++h) {
            const ptrdiff_t at = (ptrdiff_t(m) * offsets_ + j) * outputs + h, first = pair_at(0, h) + key_at(m);
            const Vec s = space_[space_at_[h * offsets_ + j] + h];
            Dropout::Pair pair{};
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b)
                weight_[at + b * next_key] =
                    kept<Dropped>(share_[first + b] * s, pair, noise_[j], 0, h, m, b) * content_[at + b * next_key];
        }
    }

    template <bool Dropped, int Tall, int Wide>
    void weigh_tile(int h, int m, int j) {
        const ptrdiff_t queries = s_.queries(), next_key = offsets_ * queries, next_query = pair_at(1, 0);
        const Vec *content = content_ + m * next_key + j * queries, *share = share_ + pair_at(0, h) + key_at(m);
        const Vec* space[Tall];
        GEVIT_UNROLL for (int a = 0; a < Tall; ++a) space[a] = space_ + space_at_[(h + a) * offsets_ + j];
        const Dropout::Offset noise = noise_[j];
        Vec total[Tall][Wide] = {};
        for (int q = 0; q < s_.met(); ++q, share += next_query) {
            Vec c[Wide];
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) c[b] = content[b * next_key + q];
            GEVIT_UNROLL for (int a = 0; a < Tall; ++a) {
                const Vec s = space[a][q];
                Dropout::Pair pair{};
                GEVIT_UNROLL for (int b = 0; b < Wide; ++b)
                    total[a][b] += kept<Dropped>(share[a * KEYS + b] * s, pair, noise, q, h + a, m, b) * c[b];
            }
        }
        Vec* const weight = weight_ + (ptrdiff_t(m) * offsets_ + j) * s_.outputs() + h;
        GEVIT_UNROLL for (int b = 0; b < Wide; ++b)
            GEVIT_UNROLL for (int a = 0; a < Tall; ++a) weight[b * ptrdiff_t(offsets_) * s_.outputs() + a] = total[a][b];
    }

    // ---- backward ----

    // With x = p dW where kept and D[h,h~] = sum of x, the gradient of a score is x - p D. Each of its three sums falls
    // into two parts: that of x takes one pass over all (h,h~,m,j), which makes W as well; that of p D is made of small
    // matrix products.
    template <bool Dropped>
    void differentiate() {
        const int keys = s_.keys(), met = s_.met();
        zero(space_gradient_, ptrdiff_t(p_.space_rows) * s_.queries());
        zero(element_gradient_, ptrdiff_t(p_.element_rows) * s_.queries());
        zero(share_gradient_, s_.pairs() * padded_to(KEYS, keys));
        in_tiles<KEYS>(keys, [&](auto wide, int m) {
            differentiate_values(m, wide);
            sum_kept<Dropped, wide>(m);
        });
        scatter_values(0, keys);
        const Real unscale = 1 / p_.dropout.scale();
        for (int q = 0; q < met; ++q)
            for (int h = 0; h < s_.outputs(); ++h) {
                const Vec *const gradient = share_gradient_ + pair_at(q, h), *const total = total_ + pair_at(q, h);
                Vec *const share = share_ + pair_at(q, h), d = {};
                for (int m = 0; m < keys; ++m) d += gradient[key_at(m)];
                Vec* const element = element_gradient_ + s_.first_query(h) + q;
                for (int m = 0; m < keys; ++m) {
                    const ptrdiff_t at = key_at(m);
                    share[at] *= unscale * d;
                    element[element_at(h, q, m)] += gradient[at] - share[at] * total[at];
                }
            }
        in_tiles<4>(keys, [&](auto wide, int m) {  // from here on share holds A D
            for (int query = 0; query < s_.queries(); ++query) subtract<wide>(query, m);
        });
        scatter_content(0, keys);
    }

    template <bool Dropped, int Wide>
    void sum_kept(int m) {
        if (!s_.own()) zero(of_key(content_gradient_, m, s_.queries()), ptrdiff_t(Wide) * offsets_ * s_.queries());
        // Tiles of half the size: a sum of W has its gradient beside it in a register.
        for (int j = 0; j < offsets_; ++j)
            if (s_.own()) sum_kept_own<Dropped, Wide>(m, j);
            else
                in_tiles<OUTPUTS / 2>(s_.outputs(),
                                      [&](auto tall, int h) { sum_kept_tile<Dropped, tall, Wide>(h, m, j); });
    }

    template <bool Dropped, int Wide>
    void sum_kept_own(int m, int j) {
        const ptrdiff_t outputs = s_.outputs(), next_key = offsets_ * outputs;
        for (int h = 0; h < outputs; ++h) {
            const ptrdiff_t at = (ptrdiff_t(m) * offsets_ + j) * outputs + h, first = pair_at(0, h) + key_at(m);
            const ptrdiff_t space_at = space_at_[h * offsets_ + j] + h;
            const Vec s = space_[space_at];
            Vec space_sum = space_gradient_[space_at];
            Dropout::Pair pair{};
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) {
                const ptrdiff_t here = at + b * next_key;
                const Vec p = kept<Dropped>(share_[first + b] * s, pair, noise_[j], 0, h, m, b) * content_[here];
                const Vec x = p * weight_gradient_[here];
                weight_[here] = p;
                content_gradient_[here] = x;
                space_sum += x;
                share_gradient_[first + b] += x;
            }
            space_gradient_[space_at] = space_sum;
        }
    }

    template <bool Dropped, int Tall, int Wide>
    void sum_kept_tile(int h, int m, int j) {
        const ptrdiff_t queries = s_.queries(), met = s_.met();
        const ptrdiff_t at = (ptrdiff_t(m) * offsets_ + j) * queries, next_key = offsets_ * queries;
        const ptrdiff_t next_query = pair_at(1, 0), pairs_at = pair_at(0, h) + key_at(m);
        ptrdiff_t space_at[Tall];
        Vec total[Tall][Wide] = {}, g[Tall][Wide];
        Vec* const weight = weight_ + (ptrdiff_t(m) * offsets_ + j) * s_.outputs() + h;
        const Vec* const weight_gradient = weight_gradient_ + (weight - weight_);
        const ptrdiff_t next_weight = ptrdiff_t(offsets_) * s_.outputs();
        GEVIT_UNROLL for (int a = 0; a < Tall; ++a) {
            space_at[a] = space_at_[(h + a) * offsets_ + j];
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) g[a][b] = weight_gradient[b * next_weight + a];
        }
        const Vec *const space = space_, *const content = content_ + at, *share = share_ + pairs_at;
        Vec *const space_gradient = space_gradient_, *const content_gradient = content_gradient_ + at;
        Vec* share_gradient = share_gradient_ + pairs_at;
        const Dropout::Offset noise = noise_[j];
        for (ptrdiff_t q = 0; q < met; ++q, share += next_query, share_gradient += next_query) {
            Vec content_sum[Wide];
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) content_sum[b] = content_gradient[b * next_key + q];
            GEVIT_UNROLL for (int a = 0; a < Tall; ++a) {
                const Vec s = space[space_at[a] + q];
                Vec space_sum = space_gradient[space_at[a] + q];
                Dropout::Pair pair{};
                GEVIT_UNROLL for (int b = 0; b < Wide; ++b) {
                    const Vec c = kept<Dropped>(content[b * next_key + q], pair, noise, int(q), h + a, m, b);
                    const Vec p = share[a * KEYS + b] * s * c, x = p * g[a][b];
                    total[a][b] += p;
                    content_sum[b] += x;
                    space_sum += x;
                    share_gradient[a * KEYS + b] += x;
                }
                space_gradient[space_at[a] + q] = space_sum;
            }
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) content_gradient[b * next_key + q] = content_sum[b];
        }
        GEVIT_UNROLL for (int a = 0; a < Tall; ++a)
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) weight[b * next_weight + a] = total[a][b];
    }

    // content gradient [m,j,h~] -= C sum_h A D S for some keys; what these keys give to space gradient [u,h~], of all
    // the (h,j) that meet u, is S sum_m A D C
    template <int Wide>
    void subtract(int query, int m) {
        const ptrdiff_t queries = s_.queries(), next_key = offsets_ * queries;
        const int outputs = s_.own() ? 1 : s_.outputs(), offsets = offsets_;
        const int* const space_at = space_at_ + (s_.own() ? query * offsets : 0);
        const Vec* const shares = share_ + (s_.own() ? pair_at(0, query) : pair_at(query, 0)) + key_at(m);
        const Vec *const space = space_ + query, *const content = content_ + m * next_key + query;
        Vec *const space_gradient = space_gradient_ + query, *const gradient = content_gradient_ + (content - content_);
        for (int j = 0; j < offsets; ++j) {
            Vec c[Wide], total[Wide] = {};
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) c[b] = held(content[b * next_key + j * queries]);
            for (int h = 0; h < outputs; ++h) {
                const ptrdiff_t at = space_at[h * offsets + j];
                const Vec s = space[at];
                Vec sum = {};
                GEVIT_UNROLL for (int b = 0; b < Wide; ++b) {
                    const Vec share = held(shares[h * KEYS + key_at(b)]);
                    total[b] += share * s;
                    sum += share * c[b];
                }
                space_gradient[at] -= s * sum;
            }
            GEVIT_UNROLL for (int b = 0; b < Wide; ++b) gradient[b * next_key + j * queries] -= c[b] * total[b];
        }
    }

    const Sizes<Order> s_;
};

}  // namespace gevit
