// A vector of consecutive pixels, as wide as the instruction set the file is compiled for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace gevit {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef uint32_t BitVec __attribute__((vector_size(LANES * 4)));

// Loops over registers must disappear: an array of accumulators is no array, it is a set of registers.
#define GEVIT_UNROLL _Pragma("GCC unroll 8")
#define GEVIT_INLINE __attribute__((always_inline))

inline Vec splat(float value) { return Vec{} + value; }

inline Vec load(const float* from) {
    Vec result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// The last vector of a plane may be partial: missing lanes read as zero and are not written.
inline Vec load(const float* from, int count) {
    if (count >= LANES) return load(from);
    Vec result = {};
    std::memcpy(&result, from, count * sizeof(float));
    return result;
}

inline void store(float* to, Vec value, int count) {
    std::memcpy(to, &value, (count < LANES ? count : LANES) * sizeof(float));
}

inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }  // b if either is NaN
inline Vec keep_where(IntVec mask, Vec value) { return mask ? value : Vec{}; }

inline bool any(IntVec mask) {
    int32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= mask[lane];
    return found != 0;
}

inline float sum(Vec value) {
    float total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += value[lane];
    return total;
}

// 2^x for x <= 0, to 2e-7. What should be below 2^-126 may be 2^-126: no sum of weights near 1 can see it. NaN stays
// NaN.
inline Vec exp2(Vec x) {
#if defined(__AVX512DQ__)
    const Vec f = (Vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT), whole = x - f;
#else
    const Vec rounder = splat(12582912.f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    x = larger(splat(-126.f), x);
    const Vec shifted = x + rounder, f = x - (shifted - rounder);
#endif
    Vec power = splat(1.3276472e-3f);
    power = power * f + 9.675541e-3f;
    power = power * f + 5.550713e-2f;
    power = power * f + .2402212f;
    power = power * f + .69314694f;
    power = power * f + 1.f;
#if defined(__AVX512DQ__)
    return (Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)power, (__m512)whole);
#else
    return (Vec)((IntVec)power + ((IntVec)shifted << 23));
#endif
}

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
