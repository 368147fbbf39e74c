// Linear maps of the channels, the same at every pixel, as register tiles: a few results times a few vectors of pixels.
// What is mapped are planes of pixels so far apart (`pitch`); only pixels that exist are written.
#pragma once
#include <algorithm>

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

// Vectors of pixels that are dealt with before the next ones are: what all results read is then in the first cache.
constexpr int STRIP = 768 / VECTOR_BYTES;

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
                const Vec w = held(splat(factor[ptrdiff_t(r) * from.planes]));
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
// `sums` is scratch memory for as many vectors.
inline void correlate(Stack<const Real> left, ptrdiff_t next_left, Stack<const Real> right, ptrdiff_t next_right,
                      int elements, int pixels, Vec* sums, Real* to) {
    std::fill_n(sums, ptrdiff_t(left.planes) * right.planes, Vec{});
    for (int element = 0; element < elements; ++element, left.data += next_left, right.data += next_right)
        for (int begin = 0; begin < pixels; begin += STRIP * LANES) {
            const int end = begin + STRIP * LANES < pixels ? begin + STRIP * LANES : pixels;
            in_tiles<ROWS>(left.planes, [&](auto tile_, int row) {
                constexpr int tile = tile_;
                in_even_tiles<columns(ACCUMULATORS, tile)>(right.planes, [&](auto wide_, int column) {
                    constexpr int wide = wide_;
                    const Real *const a = left.at(row), *const b = right.at(column);
                    Vec total[tile][wide] = {};
                    const auto add = [&](int pixel, auto count) GEVIT_INLINE {
                        Vec x[wide];
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                            x[c] = held(load(b + c * right.pitch + pixel, count));
                        GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                            const Vec y = held<(wide > 1)>(load(a + r * left.pitch + pixel, count));
                            GEVIT_UNROLL for (int c = 0; c < wide; ++c) total[r][c] += y * x[c];
                        }
                    };
                    int pixel = begin;
                    for (; pixel + LANES <= end; pixel += LANES) add(pixel, Tile<LANES>{});
                    if (pixel < end) add(pixel, end - pixel);
                    Vec* const sum = sums + ptrdiff_t(row) * right.planes + column;
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r)
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                            sum[r * ptrdiff_t(right.planes) + c] += total[r][c];
                });
            });
        }
    for (ptrdiff_t i = 0; i < ptrdiff_t(left.planes) * right.planes; ++i) to[i] += sum(sums[i]);
}

}  // namespace gevit
