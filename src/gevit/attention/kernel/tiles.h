// The products with shifted planes that attention is made of, as register tiles. Everything is a Vec of pixels:
//   left   [channel][row]         of the block's own pixels
//   planes [key][channel][pixel]  padded, moved to the block's pixels
//   weight [key][offset][row]     one number per row, key and offset
// Offsets come as distances within a plane.
#pragma once
#include <type_traits>

#include "simd.h"

namespace gevit {

// Registers that hold the sums of a tile; the others hold what is multiplied.
constexpr int ACCUMULATORS = REGISTERS == 32 ? 24 : 12;
// The same where each sum is in memory and one of its factors stays: that leaves room for the other.
constexpr int FACTORS = REGISTERS == 32 ? 24 : 10;
constexpr int ROWS = 4;  // the most rows in a tile
// Tiles of pairs (h, m), with several sums for each.
constexpr int OUTPUTS = REGISTERS == 32 ? 4 : 2, KEYS = REGISTERS == 32 ? 4 : 2;

// Sums are taken in pieces: adding many terms one by one to one total loses digits in proportion to their number.
constexpr int SUMMANDS = 128;

template <int Size>
using Tile = std::integral_constant<int, Size>;

// How many columns a tile of so many rows can have.
constexpr int columns(int registers, int rows) { return registers / rows < 10 ? registers / rows : 10; }

// Covers [0, count) by tiles: body(Tile<4, 2 or 1>, begin).
template <int Largest, class Body>
GEVIT_INLINE inline void in_tiles(int count, Body&& body) {
    int begin = 0;
    if constexpr (Largest >= 4)
        for (; begin + 4 <= count; begin += 4) body(Tile<4>{}, begin);
    if constexpr (Largest >= 2)
        for (; begin + 2 <= count; begin += 2) body(Tile<2>{}, begin);
    for (; begin < count; ++begin) body(Tile<1>{}, begin);
}

template <int Size, class Body>
GEVIT_INLINE inline void with_size(int size, int begin, Body&& body) {
    if (size == Size) body(Tile<Size>{}, begin);
    else if constexpr (Size > 1) with_size<Size - 1>(size, begin, body);
}

// Covers [0, count) by tiles of nearly equal size, at most Largest: a small remainder would leave registers idle.
template <int Largest, class Body>
GEVIT_INLINE inline void in_even_tiles(int count, Body&& body) {
    if (count <= 0) return;
    const int tiles = (count + Largest - 1) / Largest, size = count / tiles, larger = count % tiles;
    for (int tile = 0, begin = 0; tile < tiles; ++tile) {
        const int here = size + (tile < larger);
        with_size<Largest>(here, begin, body);
        begin += here;
    }
}

// Covers [0, Count) by parts: body(Tile<4 or the rest>, Tile<begin>).
template <int Count, int Begin = 0, class Body>
GEVIT_INLINE inline void in_parts_of_four(Body&& body) {
    if constexpr (Begin < Count) {
        body(Tile<(Count - Begin < 4 ? Count - Begin : 4)>{}, Tile<Begin>{});
        in_parts_of_four<Count, Begin + 4>(body);
    }
}

struct Planes {
    Real* data;
    ptrdiff_t pitch, next_key;  // from one channel to the next, from one key to the next
    int keys, channels;
    Real* at(int key, int channel) const { return data + key * next_key + channel * pitch; }
    Planes some(int first, int count) const { return {at(first, 0), pitch, next_key, count, channels}; }
};

struct Shifts {
    const int* distance;
    int count;
};

// result[key][offset][row] = sum over channels of left[channel][row] * plane[key][channel][pixel + offset]
// finish(tile, offset) may change a tile [offset][row] of results while it is in registers.
template <class Finish>
inline void dot(const Vec* left, int rows, const Planes& planes, Shifts shifts, Vec* result, Finish&& finish) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        for (int key = 0; key < planes.keys; ++key)
            in_even_tiles<columns(ACCUMULATORS, tile)>(shifts.count, [&](auto wide_, int offset) {
                constexpr int wide = wide_;
                Vec total[wide][tile] = {};
                const Real* at[wide];
                GEVIT_UNROLL for (int o = 0; o < wide; ++o) at[o] = planes.at(key, 0) + shifts.distance[offset + o];
                ptrdiff_t step = 0;
                for (int channel = 0; channel < planes.channels; ++channel, step += planes.pitch) {
                    Vec neighbor[wide];
                    GEVIT_UNROLL for (int o = 0; o < wide; ++o) neighbor[o] = held<(tile > 1)>(load(at[o] + step));
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                        const Vec factor = held<(wide > 1)>(left[channel * rows + row + r]);
                        GEVIT_UNROLL for (int o = 0; o < wide; ++o) total[o][r] += factor * neighbor[o];
                    }
                }
                finish(total, offset);
                Vec* to = result + (ptrdiff_t(key) * shifts.count + offset) * rows + row;
                GEVIT_UNROLL for (int o = 0; o < wide; ++o)
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) to[o * rows + r] = total[o][r];
            });
    });
}

// result[channel][row] += sum over keys and offsets of weight[key][offset][row] * plane[key][channel][pixel + offset]
inline void mix(const Vec* weight, int rows, const Planes& planes, Shifts shifts, Vec* result) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(ACCUMULATORS, tile)>(planes.channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            Vec total[wide][tile] = {};
            const auto add_to_result = [&] {
                GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                        result[(channel + c) * rows + row + r] += total[c][r];
                        total[c][r] = Vec{};
                    }
            };
            const Vec* factor = weight + row;
            int summands = 0;
            for (int key = 0; key < planes.keys; ++key) {
                const Real* plane = planes.at(key, channel);
                for (int begin = 0; begin < shifts.count; begin += SUMMANDS) {
                    const int end = begin + SUMMANDS < shifts.count ? begin + SUMMANDS : shifts.count;
                    if (summands + end - begin > SUMMANDS) {
                        add_to_result();
                        summands = 0;
                    }
                    summands += end - begin;
                    for (int offset = begin; offset < end; ++offset, factor += rows) {
                        const Real* at = plane + shifts.distance[offset];
                        Vec neighbor[wide];
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                            neighbor[c] = held<(tile > 1)>(load(at + c * planes.pitch));
                        GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                            const Vec w = held<(wide > 1)>(factor[r]);
                            GEVIT_UNROLL for (int c = 0; c < wide; ++c) total[c][r] += w * neighbor[c];
                        }
                    }
                }
            }
            add_to_result();
        });
    });
}

// plane[key][channel][pixel + offset] += sum over rows of weight[key][offset][row] * left[channel][row]
// The tile of left stays in registers; keys run innermost, so that a plane rests before its overlapping next visit.
inline void scatter(const Vec* weight, const Vec* left, int rows, const Planes& planes, Shifts shifts) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(FACTORS, tile)>(planes.channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            const ptrdiff_t pitch = planes.pitch, next_key = planes.next_key;
            const int keys = planes.keys;
            Vec source[wide][tile];
            GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                GEVIT_UNROLL for (int r = 0; r < tile; ++r) source[c][r] = left[(channel + c) * rows + row + r];
            for (int offset = 0; offset < shifts.count; ++offset) {
                Real* at = planes.at(0, channel) + shifts.distance[offset];
                const Vec* factor = weight + ptrdiff_t(offset) * rows + row;
                for (int key = 0; key < keys; ++key) {
                    Vec w[tile];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) w[r] = factor[r];
                    GEVIT_UNROLL for (int c = 0; c < wide; ++c) {
                        Vec total = w[0] * source[c][0];  // memory comes last: its next visit waits for this one
                        GEVIT_UNROLL for (int r = 1; r < tile; ++r) total += w[r] * source[c][r];
                        store(at + c * pitch, held<(tile > 1)>(total) + load(at + c * pitch));
                    }
                    at += next_key;
                    factor += ptrdiff_t(shifts.count) * rows;
                }
            }
        });
    });
}

// The same three for the learned vectors, tables [index][channel] of plain numbers, and weight [index][row].
// result[index][row] = sum over channels of left[channel][row] * table[index][channel]; finish(tile, index) as above
template <class Finish>
inline void dot(const Vec* left, int rows, const Real* table, int indices, int channels, Vec* result, Finish&& finish) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(ACCUMULATORS, tile)>(indices, [&](auto tall_, int index) {
            constexpr int tall = tall_;
            Vec total[tall][tile] = {};
            for (int channel = 0; channel < channels; ++channel)
                GEVIT_UNROLL for (int i = 0; i < tall; ++i) {
                    const Real factor = table[ptrdiff_t(index + i) * channels + channel];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) total[i][r] += factor * left[channel * rows + row + r];
                }
            finish(total, index);
            GEVIT_UNROLL for (int i = 0; i < tall; ++i)
                GEVIT_UNROLL for (int r = 0; r < tile; ++r) result[ptrdiff_t(index + i) * rows + row + r] = total[i][r];
        });
    });
}

// result[channel][row] += sum over indices of weight[index][row] * table[index][channel]
inline void mix(const Vec* weight, int rows, const Real* table, int indices, int channels, Vec* result) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(ACCUMULATORS, tile)>(channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            Vec total[wide][tile] = {};
            for (int index = 0; index < indices; ++index)
                GEVIT_UNROLL for (int c = 0; c < wide; ++c) {
                    const Real factor = table[ptrdiff_t(index) * channels + channel + c];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r)
                        total[c][r] += factor * weight[ptrdiff_t(index) * rows + row + r];
                }
            GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                GEVIT_UNROLL for (int r = 0; r < tile; ++r) result[(channel + c) * rows + row + r] += total[c][r];
        });
    });
}

// total[index][channel] += sum over rows of weight[index][row] * left[channel][row]
inline void scatter(const Vec* weight, const Vec* left, int rows, int indices, int channels, Vec* total) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_even_tiles<columns(FACTORS, tile)>(channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            Vec source[wide][tile];
            GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                GEVIT_UNROLL for (int r = 0; r < tile; ++r) source[c][r] = left[(channel + c) * rows + row + r];
            Vec* to = total + channel;
            const Vec* factor = weight + row;
            for (int index = 0; index < indices; ++index, to += channels, factor += rows)
                GEVIT_UNROLL for (int c = 0; c < wide; ++c) {
                    Vec sum = to[c];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) sum += factor[r] * source[c][r];
                    to[c] = sum;
                }
        });
    });
}

}  // namespace gevit
