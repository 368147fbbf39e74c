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

// By subtraction: adding zero changes -0, so a compiler would really add.
inline Vec splat(Real value) { return value - Vec{}; }

// What has several uses is held in a register: a compiler would read it from memory again for each of them.
template <bool Hold = true>
inline Vec held(Vec value) {
#if defined(__SSE__)
    if constexpr (Hold) asm("" : "+v"(value));
#elif defined(__aarch64__)
    if constexpr (Hold) asm("" : "+w"(value));
#endif
    return value;
}

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

// f = highest f^n + ... + last, for several vectors together: one would have to wait for each of its products.
template <int Count, class... Rest>
GEVIT_INLINE inline void polynomial(Vec (&f)[Count], Real highest, Rest... rest) {
    Vec result[Count];
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) result[i] = splat(highest);
    const auto next = [&](Real coefficient) GEVIT_INLINE {
        GEVIT_UNROLL for (int i = 0; i < Count; ++i) result[i] = result[i] * f[i] + coefficient;
    };
    (next(Real(rest)), ...);
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) f[i] = result[i];
}

constexpr Real SMALLEST_EXPONENT = std::numeric_limits<Real>::min_exponent * .6931471805599453;  // e to it is normal

// f = 2^f for |f| <= 1/2
template <int Count>
GEVIT_INLINE inline void exponentiate_fractions(Vec (&f)[Count]) {
    if constexpr (DOUBLE)
        polynomial(f, 4.445257140458853e-10, 7.074112203581162e-9, 1.0178125486258942e-7, 1.321543338897091e-6,
                   1.5252733684247801e-5, 1.5403530460764842e-4, 1.3333558146558133e-3, 9.618129107591496e-3,
                   5.5504108664821084e-2, .24022650695910136, .6931471805599453, 1.);
    else
        polynomial(f, 1.3276472e-3f, 9.675541e-3f, 5.550713e-2f, .2402212f, .69314694f, 1.f);
}

// x = e^x for SMALLEST_EXPONENT <= x < -SMALLEST_EXPONENT, to 2e-7 or, in double, 2e-16; for other x any number.
template <int Count>
GEVIT_INLINE inline void exponentiate_within_range(Vec (&x)[Count]) {
    constexpr Real LOG2_E = 1.4426950408889634;
    Vec f[Count];
#if defined(__AVX512DQ__)
    Vec whole[Count];
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) {
        x[i] *= LOG2_E;
        if constexpr (DOUBLE) f[i] = (Vec)_mm512_reduce_pd((__m512d)x[i], _MM_FROUND_TO_NEAREST_INT);
        else f[i] = (Vec)_mm512_reduce_ps((__m512)x[i], _MM_FROUND_TO_NEAREST_INT);
        whole[i] = x[i] - f[i];
    }
    exponentiate_fractions(f);
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) {
        if constexpr (DOUBLE) x[i] = (Vec)_mm512_maskz_scalef_pd(0xff, (__m512d)f[i], (__m512d)whole[i]);
        else x[i] = (Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)f[i], (__m512)whole[i]);
    }
#else
    typedef std::numeric_limits<Real> Limits;
    typedef std::make_unsigned_t<Int> Bits __attribute__((vector_size(VECTOR_BYTES)));  // unsigned, since it may wrap
    constexpr int MANTISSA = Limits::digits - 1;
    const Vec rounder = splat(int64_t(3) << (MANTISSA - 1));  // adding it leaves the nearest integer in the low bits
    Vec shifted[Count];
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) shifted[i] = x[i] * LOG2_E + rounder;
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) f[i] = x[i] * LOG2_E - (shifted[i] - rounder);  // fused: not rounded
    exponentiate_fractions(f);
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) x[i] = (Vec)((Bits)f[i] + ((Bits)shifted[i] << MANTISSA));
#endif
}

// The same for any x <= 0. What should be below the smallest normal number may be that number: no sum of weights near 1
// can see it. NaN stays NaN.
template <int Count>
GEVIT_INLINE inline void exponentiate(Vec (&x)[Count]) {
#if !defined(__AVX512DQ__)
    GEVIT_UNROLL for (int i = 0; i < Count; ++i) x[i] = larger(splat(SMALLEST_EXPONENT), x[i]);
#endif
    exponentiate_within_range(x);
}

inline Vec exp(Vec x) {
    Vec one[] = {x};
    exponentiate(one);
    return one[0];
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
