// The products with shifted planes that attention is made of, as register tiles. Everything is a Vec of pixels:
//   left   [channel][row]         of the block's own pixels
//   planes [key][channel][pixel]  padded, moved to the block's pixels
//   weight [key][offset][row]     one number per row, key and offset
// Offsets come as distances within a plane; their count is a multiple of OFFSETS.
#pragma once
#include <type_traits>

#include "simd.h"

namespace gevit {

constexpr int OFFSETS = 5;                       // offsets in a tile
constexpr int ROWS = REGISTERS == 32 ? 4 : 2;    // rows in a tile
constexpr int CHANNELS = REGISTERS == 32 ? 6 : 5;

// Sums are taken in pieces: adding many terms one by one to one total loses digits in proportion to their number.
constexpr int SUMMANDS = 128;

template <int Size>
using Tile = std::integral_constant<int, Size>;

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

// Covers the channels by tiles of nearly equal size, at most CHANNELS.
template <class Body>
inline void in_channel_tiles(int count, Body&& body) {
    const int tiles = (count + CHANNELS - 1) / CHANNELS;
    for (int tile = 0; tile < tiles; ++tile) {
        const int begin = count * tile / tiles;
        switch (count * (tile + 1) / tiles - begin) {
            case 1: body(Tile<1>{}, begin); break;
            case 2: body(Tile<2>{}, begin); break;
            case 3: body(Tile<3>{}, begin); break;
            case 4: body(Tile<4>{}, begin); break;
            case 5: body(Tile<5>{}, begin); break;
            case 6: body(Tile<6>{}, begin); break;
        }
    }
}

struct Planes {
    Real* data;
    ptrdiff_t pitch;  // from one plane to the next
    int keys, channels;
    Real* at(int key, int channel) const { return data + (ptrdiff_t(key) * channels + channel) * pitch; }
};

struct Shifts {
    const int* distance;
    int count;
};

// result[key][offset][row] = sum over channels of left[channel][row] * plane[key][channel][pixel + offset]
inline void dot(const Vec* left, int rows, const Planes& planes, Shifts shifts, Vec* result) {
    for (int key = 0; key < planes.keys; ++key)
        for (int offset = 0; offset < shifts.count; offset += OFFSETS)
            in_tiles<ROWS>(rows, [&](auto tile_, int row) {
                constexpr int tile = tile_;
                Vec total[OFFSETS][tile] = {};
                const Real* at[OFFSETS];
                GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o) at[o] = planes.at(key, 0) + shifts.distance[offset + o];
                ptrdiff_t step = 0;
                for (int channel = 0; channel < planes.channels; ++channel, step += planes.pitch) {
                    Vec factor[tile];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) factor[r] = left[channel * rows + row + r];
                    GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o) {
                        const Vec neighbor = load(at[o] + step);
                        GEVIT_UNROLL for (int r = 0; r < tile; ++r) total[o][r] += factor[r] * neighbor;
                    }
                }
                Vec* to = result + (ptrdiff_t(key) * shifts.count + offset) * rows + row;
                GEVIT_UNROLL for (int o = 0; o < OFFSETS; ++o)
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) to[o * rows + r] = total[o][r];
            });
}

// result[channel][row] = sum over keys and offsets of weight[key][offset][row] * plane[key][channel][pixel + offset]
inline void mix(const Vec* weight, int rows, const Planes& planes, Shifts shifts, Vec* result) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_channel_tiles(planes.channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            Vec total[wide][tile] = {};
            const auto move_to_result = [&](bool first) {
                GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) {
                        Vec& to = result[(channel + c) * rows + row + r];
                        to = first ? total[c][r] : to + total[c][r];
                        total[c][r] = Vec{};
                    }
            };
            const Vec* factor = weight + row;
            int summands = 0;
            bool first = true;
            for (int key = 0; key < planes.keys; ++key) {
                const Real* plane = planes.at(key, channel);
                for (int begin = 0; begin < shifts.count; begin += SUMMANDS) {
                    const int end = begin + SUMMANDS < shifts.count ? begin + SUMMANDS : shifts.count;
                    if (summands + end - begin > SUMMANDS) {
                        move_to_result(first);
                        summands = 0;
                        first = false;
                    }
                    summands += end - begin;
                    for (int offset = begin; offset < end; ++offset, factor += rows) {
                        const Real* at = plane + shifts.distance[offset];
                        GEVIT_UNROLL for (int c = 0; c < wide; ++c) {
                            const Vec neighbor = load(at + c * planes.pitch);
                            GEVIT_UNROLL for (int r = 0; r < tile; ++r) total[c][r] += factor[r] * neighbor;
                        }
                    }
                }
            }
            move_to_result(first);
        });
    });
}

// plane[key][channel][pixel + offset] += sum over rows of weight[key][offset][row] * left[channel][row]
// The tile of left stays in registers; keys run innermost, so that a plane rests before its overlapping next visit.
inline void scatter(const Vec* weight, const Vec* left, int rows, const Planes& planes, Shifts shifts) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_channel_tiles(planes.channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            const ptrdiff_t pitch = planes.pitch, next_key = planes.channels * pitch;
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
                        Vec total = load(at + c * pitch);
                        GEVIT_UNROLL for (int r = 0; r < tile; ++r) total += w[r] * source[c][r];
                        store(at + c * pitch, total);
                    }
                    at += next_key;
                    factor += ptrdiff_t(shifts.count) * rows;
                }
            }
        });
    });
}

// The same three for the learned vectors, tables [index][channel] of plain numbers, and weight [index][row].
// result[index][row] = sum over channels of left[channel][row] * table[index][channel]
inline void dot(const Vec* left, int rows, const Real* table, int indices, int channels, Vec* result) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_tiles<4>(indices, [&](auto tall_, int index) {
            constexpr int tall = tall_;
            Vec total[tall][tile] = {};
            for (int channel = 0; channel < channels; ++channel)
                GEVIT_UNROLL for (int i = 0; i < tall; ++i) {
                    const Real factor = table[ptrdiff_t(index + i) * channels + channel];
                    GEVIT_UNROLL for (int r = 0; r < tile; ++r) total[i][r] += factor * left[channel * rows + row + r];
                }
            GEVIT_UNROLL for (int i = 0; i < tall; ++i)
                GEVIT_UNROLL for (int r = 0; r < tile; ++r) result[ptrdiff_t(index + i) * rows + row + r] = total[i][r];
        });
    });
}

// result[channel][row] += sum over indices of weight[index][row] * table[index][channel]
inline void mix(const Vec* weight, int rows, const Real* table, int indices, int channels, Vec* result) {
    in_tiles<ROWS>(rows, [&](auto tile_, int row) {
        constexpr int tile = tile_;
        in_channel_tiles(channels, [&](auto wide_, int channel) {
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
    for (int index = 0; index < indices; ++index)
        in_channel_tiles(channels, [&](auto wide_, int channel) {
            constexpr int wide = wide_;
            Vec* to = total + ptrdiff_t(index) * channels + channel;
            Vec sums[wide];
            GEVIT_UNROLL for (int c = 0; c < wide; ++c) sums[c] = to[c];
            for (int row = 0; row < rows; ++row)
                GEVIT_UNROLL for (int c = 0; c < wide; ++c)
                    sums[c] += weight[ptrdiff_t(index) * rows + row] * left[(channel + c) * rows + row];
            GEVIT_UNROLL for (int c = 0; c < wide; ++c) to[c] = sums[c];
        });
}

}  // namespace gevit
