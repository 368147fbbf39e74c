// A vector of consecutive pixels, as wide as the instruction set the file is compiled for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "attend.h"

namespace gevit {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16, REGISTERS = 32;
#else
constexpr int VECTOR_BYTES = 16, REGISTERS = 16;
#endif

constexpr bool DOUBLE = std::is_same_v<Real, double>;
constexpr int LANES = VECTOR_BYTES / sizeof(Real);

typedef std::conditional_t<DOUBLE, int64_t, int32_t> Int;  // as wide as Real, so that comparisons of Vec are IntVec

typedef Real Vec __attribute__((vector_size(VECTOR_BYTES)));
typedef Int IntVec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t BitVec __attribute__((vector_size(LANES * 4)));  // in any precision, for dropout to be the same

// Loops over registers must disappear: an array of accumulators is no array, it is a set of registers.
#define GEVIT_UNROLL _Pragma("GCC unroll 10")
#define GEVIT_INLINE __attribute__((always_inline))

inline Vec splat(Real value) { return Vec{} + value; }

inline Vec load(const Real* from) {
    Vec result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

inline void store(Real* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// The last vector of a plane may be partial: missing lanes read as zero and are not written.
inline Vec load(const Real* from, int count) {
    if (count >= LANES) return load(from);
    Vec result = {};
    std::memcpy(&result, from, count * sizeof(Real));
    return result;
}

inline void store(Real* to, Vec value, int count) {
    if (count >= LANES) store(to, value);
    else std::memcpy(to, &value, count * sizeof(Real));
}

inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }  // b if either is NaN
inline Vec keep_where(IntVec mask, Vec value) { return mask ? value : Vec{}; }

// The exact difference between a + b and its rounded value (Knuth's two-sum).
inline Vec rounded_off(Vec a, Vec b, Vec sum) {
    const Vec from_b = sum - a;
    return (a - (sum - from_b)) + (b - from_b);
}

inline bool any(IntVec mask) {
    Int found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= mask[lane];
    return found != 0;
}

inline Real sum(Vec value) {
    Real total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += value[lane];
    return total;
}

// The 32 bits of each lane as a signed number.
inline IntVec as_signed(BitVec bits) {
    typedef int32_t Signed __attribute__((vector_size(sizeof(BitVec))));
    return __builtin_convertvector((Signed)bits, IntVec);
}

// highest f^n + ... + last
template <class... Rest>
inline Vec polynomial(Vec f, Real highest, Rest... rest) {
    Vec result = splat(highest);
    ((result = result * f + Real(rest)), ...);
    return result;
}

constexpr Real SMALLEST_EXPONENT = std::numeric_limits<Real>::min_exponent * .6931471805599453;  // e to it is normal

// 2^f for |f| <= 1/2
inline Vec exp2_of_fraction(Vec f) {
    if constexpr (DOUBLE)
        return polynomial(f, 4.445257140458853e-10, 7.074112203581162e-9, 1.0178125486258942e-7, 1.321543338897091e-6,
                          1.5252733684247801e-5, 1.5403530460764842e-4, 1.3333558146558133e-3, 9.618129107591496e-3,
                          5.5504108664821084e-2, .24022650695910136, .6931471805599453, 1.);
    else
        return polynomial(f, 1.3276472e-3f, 9.675541e-3f, 5.550713e-2f, .2402212f, .69314694f, 1.f);
}

// e^x for SMALLEST_EXPONENT <= x < -SMALLEST_EXPONENT, to 2e-7 or, in double, 2e-16; for other x any number.
inline Vec exp_within_range(Vec x) {
    constexpr Real LOG2_E = 1.4426950408889634;
#if defined(__AVX512DQ__)
    x *= LOG2_E;
    if constexpr (DOUBLE) {
        const __m512d f = _mm512_reduce_pd((__m512d)x, _MM_FROUND_TO_NEAREST_INT), whole = (__m512d)x - f;
        return (Vec)_mm512_maskz_scalef_pd(0xff, (__m512d)exp2_of_fraction((Vec)f), whole);
    } else {
        const __m512 f = _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT), whole = (__m512)x - f;
        return (Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)exp2_of_fraction((Vec)f), whole);
    }
#else
    typedef std::numeric_limits<Real> Limits;
    typedef std::make_unsigned_t<Int> Bits __attribute__((vector_size(VECTOR_BYTES)));  // unsigned, since it may wrap
    constexpr int MANTISSA = Limits::digits - 1;
    const Vec rounder = splat(int64_t(3) << (MANTISSA - 1));  // adding it leaves the nearest integer in the low bits
    const Vec shifted = x * LOG2_E + rounder, f = x * LOG2_E - (shifted - rounder);  // a fused product is not rounded
    return (Vec)((Bits)exp2_of_fraction(f) + ((Bits)shifted << MANTISSA));
#endif
}

// The same for any x <= 0. What should be below the smallest normal number may be that number: no sum of weights near 1
// can see it. NaN stays NaN.
inline Vec exp(Vec x) {
#if !defined(__AVX512DQ__)
    x = larger(splat(SMALLEST_EXPONENT), x);
#endif
    return exp_within_range(x);
}

// The largest magnitude among numbers, of which NaN is larger than infinity.
class Peak {
    IntVec bits_ = {};

  public:
    void see(Vec x) {
        const IntVec magnitude = (IntVec)x & std::numeric_limits<Int>::max();
        bits_ = magnitude > bits_ ? magnitude : bits_;
    }
    bool within(Real bound) const { return !any(bits_ > (IntVec)splat(bound)); }
};

// Products of small exponentials may underflow; as denormal numbers they would cost a hundred cycles each.
class FlushDenormals {
#if defined(__SSE__)
    unsigned saved_ = _mm_getcsr();

  public:
    FlushDenormals() { _mm_setcsr(saved_ | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved_); }
#else
  public:
    FlushDenormals() {}
    ~FlushDenormals() {}
#endif
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace gevit
