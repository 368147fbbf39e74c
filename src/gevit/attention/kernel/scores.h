// The scores of a block of pixels, in three parts, and their exponentials.
#pragma once
#include "ends.h"

namespace gevit {

constexpr Real LOWEST = -std::numeric_limits<Real>::infinity();
constexpr Real SMALL = 14;  // parts of a score within it can be exponentiated as they are, and multiplied

class Scores : public Ends {
  public:
    using Ends::Ends;

  protected:
    static constexpr auto as_is = [](auto&, int) {};

    // The parts of all scores.
    void score_content() { dot(query_, p_.queries, moved(key_), shifts(), content_, as_is); }

    template <class Finish>
    void score_positions(Finish&& finish) {
        dot(query_, p_.queries, in_.space, p_.space_rows, p_.space_channels, space_, finish);
        dot(query_ + p_.space_channels * p_.queries, p_.queries, in_.element, p_.element_rows, p_.element_channels,
            element_, finish);
    }

    int element_at(int h, int query, int m) const {  // query counts from first_query(h)
        return p_.element_channels
                   ? in_.element_index[(ptrdiff_t(h) * p_.pair_queries + query) * p_.keys + m] * p_.queries
                   : 0;
    }

    // scores[i][h~] -> e^(score - largest over i)
    void exponentiate(Vec* scores, int count) {
        const int queries = p_.queries;
        in_tiles<ROWS>(queries, [&](auto tile_, int q) {
            constexpr int tile = tile_;
            Vec largest[tile];
            GEVIT_UNROLL for (int t = 0; t < tile; ++t) largest[t] = splat(LOWEST);
            Vec* at = scores + q;
            for (int i = 0; i < count; ++i, at += queries)
                GEVIT_UNROLL for (int t = 0; t < tile; ++t) largest[t] = larger(at[t], largest[t]);
            at = scores + q;
            for (int i = 0; i < count; ++i, at += queries) {
                Vec part[tile];
                GEVIT_UNROLL for (int t = 0; t < tile; ++t) part[t] = at[t] - largest[t];
                gevit::exponentiate(part);
                GEVIT_UNROLL for (int t = 0; t < tile; ++t) at[t] = part[t];
            }
        });
    }

    // C, as it is where no score is large; 0 outside the image. False where some are.
    bool exponentiate_small_content() {
        Peak peak;
        dot(query_, p_.queries, moved(key_), shifts(), content_, [&](auto& scores, int offset) GEVIT_INLINE {
            exponentiate_tile(scores, peak, [&](int i, Vec c) GEVIT_INLINE { return keep_where(inside_[offset + i], c); });
        });
        return peak.within(SMALL);
    }

    // S and R, in the same way.
    bool exponentiate_small_positions() {
        Peak peak;
        score_positions([&](auto& scores, int) GEVIT_INLINE {
            exponentiate_tile(scores, peak, [](int, Vec s) GEVIT_INLINE { return s; });
        });
        return peak.within(SMALL);
    }

    // S and R less the largest scores.
    void exponentiate_positions() {
        score_positions(as_is);
        exponentiate(space_, p_.space_rows);
        exponentiate(element_, p_.element_rows);
    }

    // C less the largest score.
    void exponentiate_content() {
        const auto outside = [&](Vec value) {
            Vec* at = content_;
            for (int m = 0; m < p_.keys; ++m)
                for (int j = 0; j < offsets_; ++j)
                    for (int q = 0; q < p_.queries; ++q, ++at) *at = inside_[j] ? *at : value;
        };
        score_content();
        outside(splat(LOWEST));
        exponentiate(content_, p_.keys * offsets_);
        outside(Vec{});
    }

  private:
    // tile[i][row] -> kept(i, e^score)
    template <int Tall, int Wide, class Kept>
    GEVIT_INLINE static void exponentiate_tile(Vec (&tile)[Tall][Wide], Peak& peak, Kept&& kept) {
        in_parts_of_four<Tall * Wide>([&](auto some_, auto first_) GEVIT_INLINE {
            constexpr int some = some_, first = first_;
            Vec part[some];
            GEVIT_UNROLL for (int i = 0; i < some; ++i) peak.see(part[i] = tile[(first + i) / Wide][(first + i) % Wide]);
            exponentiate_within_range(part);
            GEVIT_UNROLL for (int i = 0; i < some; ++i)
                tile[(first + i) / Wide][(first + i) % Wide] = kept((first + i) / Wide, part[i]);
        });
    }
};

}  // namespace gevit
