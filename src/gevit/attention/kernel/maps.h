// Linear maps of the channels, the same at every pixel, as register tiles: a few results times a few vectors of pixels.
// What is mapped are planes of pixels so far apart (`pitch`); only pixels that exist are written.
#pragma once
#include "tiles.h"

namespace gevit {

template <class Number>
struct Stack {
    Number* data;
    ptrdiff_t pitch;
    int planes;
    Number* at(int plane) const { return data + plane * pitch; }
    template <class Const, class = std::enable_if_t<std::is_same_v<Const, const Number>>>
    operator Stack<Const>() const {
        return {data, pitch, planes};
    }
};

// Vectors of pixels that are mapped before the next ones are: what all results read is then in the first cache.
constexpr int STRIP = 6;

// to[r] = start(r, pixel, count) + sum over planes c of weight[r][c] * from[c]; of the last vector, `count` lanes exist
template <class Start>
inline void map(const Real* weight, Stack<const Real> from, Stack<Real> to, int pixels, Start&& start) {
    const auto tile_of = [&](auto tile_, auto wide_, int row, int pixel, auto count) GEVIT_INLINE {
        constexpr int tile = tile_, wide = wide_;
        Vec total[tile][wide];
        GEVIT_UNROLL for (int r = 0; r < tile; ++r)
            GEVIT_UNROLL for (int o = 0; o < wide; ++o) total[r][o] = start(row + r, pixel + o * LANES, count);
        const Real *factor = weight + ptrdiff_t(row) * from.planes, *at = from.data + pixel;
        for (int c = 0; c < from.planes; ++c, ++factor, at += from.pitch) {
            Vec x[wide];
            GEVIT_UNROLL for (int o = 0; o < wide; ++o) x[o] = load(at + o * LANES, count);
            GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                const Vec w = splat(factor[ptrdiff_t(r) * from.planes]);
                GEVIT_UNROLL for (int o = 0; o < wide; ++o) total[r][o] += w * x[o];
            }
        }
        GEVIT_UNROLL for (int r = 0; r < tile; ++r)
            GEVIT_UNROLL for (int o = 0; o < wide; ++o) store(to.at(row + r) + pixel + o * LANES, total[r][o], count);
    };
    const int vectors = pixels / LANES, rest = pixels % LANES;
    for (int first = 0; first < vectors; first += STRIP)
        in_tiles<ROWS>(to.planes, [&](auto tile, int row) {
            in_even_tiles<columns(ACCUMULATORS, tile) < STRIP ? columns(ACCUMULATORS, tile) : STRIP>(
                vectors - first < STRIP ? vectors - first : STRIP, [&](auto wide, int vector) {
                    tile_of(tile, wide, row, (first + vector) * LANES, Tile<LANES>{});
                });
        });
    if (rest)
        in_tiles<ROWS>(to.planes,
                       [&](auto tile, int row) { tile_of(tile, Tile<1>{}, row, vectors * LANES, rest); });
}

// to[r][c] += sum over elements and pixels of left[r] * right[c], the planes of elements so far apart
inline void correlate(Stack<const Real> left, ptrdiff_t next_left, Stack<const Real> right, ptrdiff_t next_right,
                      int elements, int pixels, Real* to) {
    in_tiles<ROWS>(left.planes, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(ACCUMULATORS, tile)>(right.planes, [&](auto wide_, int column) {
            constexpr int wide = wide_;
            Vec total[tile][wide] = {};
            for (int element = 0; element < elements; ++element) {
                const Real* const a = left.at(row) + element * next_left;
                const Real* const b = right.at(column) + element * next_right;
                for (int begin = 0; begin < pixels; begin += SUMMANDS * LANES) {
                    const int end = begin + SUMMANDS * LANES < pixels ? begin + SUMMANDS * LANES : pixels;
                    Vec part[tile][wide] = {};
                    const auto add = [&](int pixel, int count) GEVIT_INLINE {
                        Vec x[wide];
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c) x[c] = load(b + c * right.pitch + pixel, count);
                        GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                            const Vec y = load(a + r * left.pitch + pixel, count);
                            GEVIT_UNROLL for (int c = 0; c < wide; ++c) part[r][c] += y * x[c];
                        }
                    };
                    int pixel = begin;
                    for (; pixel + LANES <= end; pixel += LANES) add(pixel, LANES);
                    if (pixel < end) add(pixel, end - pixel);
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r)
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c) total[r][c] += part[r][c];
                }
            }
            GEVIT_UNROLL for (int r = 0; r < tile; ++r)
                GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                    to[ptrdiff_t(row + r) * right.planes + column + c] += sum(total[r][c]);
        });
    });
}

}  // namespace gevit
