// Group attention on a block of pixels from sums of scores, one softmax after the other: slow, and right for any finite
// scores. It leaves what the factored way leaves: the weights W and the gradients of the three parts.
#pragma once
#include "scores.h"

namespace gevit {

class Direct : public Scores {
  public:
    using Scores::Scores;

  protected:
    template <bool Dropped, bool Backward>
    void direct() {
        score_content();
        score_positions(as_is);
        const int keys = p_.keys, queries = p_.queries, met = p_.pair_queries;
        const auto place = [sizes = Sizes<0>{p_}](int q, int h, int m) { return sizes.dropout_place(q, h, m); };
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
                const auto kept = [&](Vec x, int m, int j) {
                    if constexpr (!Dropped) return x;
                    const Dropout::Pair pair = p_.dropout.keep(place_[place(q, h, m)], noise_[j]);
                    return keep_where(m & 1 ? pair.odd : pair.even, p_.dropout.scale() * x);
                };
                // A sum and what rounding took from it: the digits that count are those of its distance to the largest.
                const auto score_of = [&](int i, int m, int j, Vec& lost) {
                    const Vec content = content_[ptrdiff_t(i) * queries + query];
                    const Vec space = space_[space_at_[h * offsets_ + j] + query];
                    const Vec element = element_[element_at(h, q, m) + query];
                    const Vec both = content + space, all = both + element;
                    lost = rounded_off(content, space, both) + rounded_off(both, element, all);
                    return all;
                };
                // Of large scores, what was rounded off may be large too: it has a say in which is the largest.
                Vec roughly_largest = splat(LOWEST), largest = splat(LOWEST), lost;
                for_each([&](int i, int m, int j) {
                    const Vec score = score_of(i, m, j, lost);
                    roughly_largest = larger(inside_[j] ? score : splat(LOWEST), roughly_largest);
                });
                for_each([&](int i, int m, int j) {
                    const Vec score = score_of(i, m, j, lost);
                    joint_[i] = inside_[j] ? score - roughly_largest + lost : splat(LOWEST);
                    largest = larger(joint_[i], largest);
                });
                Vec total = {}, left_over = {};
                for_each([&](int i, int, int) {
                    const Vec exponent = joint_[i] - largest;
                    joint_[i] = exponent < SMALLEST_EXPONENT ? Vec{} : exp(exponent);
                    const Vec next = total + joint_[i];
                    left_over += rounded_off(total, joint_[i], next);
                    total = next;
                });
                const Vec inverse = keep_where(present_, 1 / (total + left_over));
                Vec heaviest = {}, base = {};
                for_each([&](int i, int m, int j) {
                    const Vec p = joint_[i] = keep_where(present_, joint_[i] * inverse);
                    weight_[ptrdiff_t(i) * p_.outputs + h] += kept(p, m, j);
                    if constexpr (Backward) {
                        base = p > heaviest ? kept(weight_gradient_[ptrdiff_t(i) * p_.outputs + h], m, j) : base;
                        heaviest = larger(p, heaviest);
                    }
                });
                if constexpr (!Backward) continue;
                // A softmax does not feel what is added to all scores, so gradients may be counted from that of the
                // heaviest coefficient: where it has all the weight, nothing is left to cancel.
                const auto above_base = [&](int i, int m, int j) {
                    return kept(weight_gradient_[ptrdiff_t(i) * p_.outputs + h], m, j) - base;
                };
                Vec d = {};
                for_each([&](int i, int m, int j) { d += joint_[i] * above_base(i, m, j); });
                for_each([&](int i, int m, int j) {
                    const Vec gradient = joint_[i] * (above_base(i, m, j) - d);
                    content_gradient_[ptrdiff_t(i) * queries + query] += gradient;
                    space_gradient_[space_at_[h * offsets_ + j] + query] += gradient;
                    element_gradient_[element_at(h, q, m) + query] += gradient;
                });
            }
    }
};

}  // namespace gevit
