// One float at a time, for any processor; the compiler vectorises what it can.
// Included inside an unnamed namespace by exactly one translation unit (see sweeps.h).

using V = float;
constexpr int width = 1;

constexpr int fetch_ahead = 0;  // a prefetch a number would keep the compiler from vectorising

inline V set(float x) { return x; }
inline V add(V a, V b) { return a + b; }
inline V sub(V a, V b) { return a - b; }
inline V mul(V a, V b) { return a * b; }
inline V fma(V a, V b, V c) { return a * b + c; }
inline V fms(V a, V b, V c) { return a * b - c; }
inline V root(V a) { return __builtin_sqrtf(a); }
inline V divide(V a, V b) { return a / b; }
inline V sign(V a) { return a > 0 ? 1.0f : (a < 0 ? -1.0f : a); }
inline double sum(V a) { return a; }

inline float as_float(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

inline std::uint32_t as_bits(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

inline V load_f32(const float* p) { return *p; }
inline void store_f32(float* p, V x) { *p = x; }

inline V load_bf16(const std::uint16_t* p) { return as_float(std::uint32_t(*p) << 16); }

inline void store_bf16(std::uint16_t* p, V x) {
  const std::uint32_t bits = as_bits(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  *p = std::uint16_t(x != x ? 0x7fc0u : rounded);
}

inline V load_f16(const std::uint16_t* p) {
  const std::uint32_t half = *p;
  const std::uint32_t sign_bit = (half & 0x8000u) << 16;
  const std::uint32_t body = half & 0x7fffu;
  // Subnormal halves are normal floats: 2^-24 a unit.
  const std::uint32_t small = as_bits(static_cast<float>(body) * 0x1p-24f);
  const std::uint32_t rebias = (body >= 0x7c00u ? 224u : 112u) << 23;
  return as_float(sign_bit | (body < 0x400u ? small : (body << 13) + rebias));
}

inline void store_f16(std::uint16_t* p, V x) {
  const std::uint32_t bits = as_bits(x);
  const std::uint32_t sign_bit = (bits >> 16) & 0x8000u;
  const std::uint32_t body = bits & 0x7fffffffu;
  std::uint32_t half;
  if (body > 0x7f800000u) {
    half = 0x7e00u;
  } else if (body >= 0x477ff000u) {  // from 65520 on the nearest half is infinity
    half = 0x7c00u;
  } else if (body < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded half in the low bits
    half = as_bits(as_float(body) + 0.5f) - 0x3f000000u;
  } else {
    half = (body - 0x38000000u + 0xfffu + ((body >> 13) & 1u)) >> 13;
  }
  *p = std::uint16_t(sign_bit | half);
}

inline void stream_f32(float* p, V x) { store_f32(p, x); }
inline void stream_bf16(std::uint16_t* p, V x) { store_bf16(p, x); }
inline void stream_f16(std::uint16_t* p, V x) { store_f16(p, x); }
inline void fence() {}
inline void prefetch(const void*) {}
