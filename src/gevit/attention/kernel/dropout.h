// Which attention coefficients survive dropout: the function that gevit/attention/dropout.py defines, bit for bit.
#pragma once
#include <cmath>
#include <vector>

#include "simd.h"

namespace gevit {

// A bijection of 32 bits in which every input bit flips every output bit with probability close to a half.
template <class Bits>
inline Bits scramble(Bits x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

// The mask costs a few instructions a coefficient: pixels, offsets and places (a pair of elements h and h~ with two
// neighbouring keys m) are scrambled well, once, and one xor and one product of them give 32 bits, 16 for each key.
class Dropout {
  public:
    Dropout(double probability, uint64_t seed, int pairs, int keys, int offsets)
        : place_keys_(size_t(pairs) * ((keys + 1) / 2)), offset_keys_(2 * size_t(offsets)) {
        const double dropped = std::fmin(std::nearbyint(probability * 65536), 65535);
        scale_ = Real(65536 / (65536 - dropped));
        threshold_ = Int(int64_t(dropped * 65536) - (int64_t(1) << 31));
        seed_low_ = scramble(uint32_t(seed) + 0x9e3779b9u);
        seed_high_ = scramble(uint32_t(seed >> 32) ^ seed_low_);
        for (size_t i = 0; i < place_keys_.size(); ++i) place_keys_[i] = scramble(uint32_t(i) + 0x3c6ef372u);
        for (size_t i = 0; i < offset_keys_.size(); ++i) offset_keys_[i] = scramble(uint32_t(i) + 0xdaa66d2bu);
    }

    Real scale() const { return scale_; }

    // The random numbers of LANES pixels of one (batch, head).
    struct Pixels {
        BitVec added, multiplied;
    };
    Pixels pixels(uint32_t task, uint32_t first) const {
        BitVec index;
        for (int lane = 0; lane < LANES; ++lane) index[lane] = first + uint32_t(lane);
        const uint32_t key = scramble(task + seed_high_) ^ seed_low_;
        const BitVec added = scramble(index + key);
        return {added, scramble((added ^ index) + scramble(key + 0x78dde6e4u))};
    }

    struct Offset {
        BitVec flipped, factor;
    };
    Offset offset(const Pixels& pixels, int j) const {
        return {BitVec{} + offset_keys_[2 * j], (pixels.multiplied + offset_keys_[2 * j + 1]) | 1u};
    }

    int places() const { return int(place_keys_.size()); }
    BitVec place(const Pixels& pixels, int i) const { return pixels.added + place_keys_[i]; }

    struct Pair {
        IntVec even, odd;  // all bits set where key m, and where key m + 1, is kept
    };
    Pair keep(const BitVec& place, const Offset& offset) const {
        const BitVec bits = (place ^ offset.flipped) * offset.factor;
        return {as_signed(bits) >= threshold_, as_signed(bits ^ (bits << 16)) >= threshold_};
    }

  private:
    std::vector<uint32_t> place_keys_, offset_keys_;
    uint32_t seed_low_, seed_high_;
    Int threshold_;
    Real scale_;
};

}  // namespace gevit
