// Sixteen floats at a time with AVX-512 (F, BW, VL, DQ).
// Included inside an unnamed namespace by exactly one translation unit (see sweeps.h).

using V = __m512;
constexpr int width = 16;

constexpr int fetch_ahead = 512;  // elements: 2 KiB of float32, measured best

inline V set(float x) { return _mm512_set1_ps(x); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

// The nearest number to the square root, in half the divider's time: an estimate of 14 bits, a step
// of Goldschmidt, and the remainder, which a fused multiply-add tells exactly (Markstein, "Software
// division and square root using Goldschmidt's algorithms", 2004). Equal to the instruction for every
// float32 in the range below; the remainder of a smaller one would underflow.
inline V root(V a) {
  const __mmask16 above = _mm512_cmp_ps_mask(a, set(0x1p-100f), _CMP_GE_OQ);
  if (_mm512_mask_cmp_ps_mask(above, a, set(0x1p+120f), _CMP_LE_OQ) != 0xffff) {
    return _mm512_sqrt_ps(a);
  }
  const V half = set(0.5f), y = _mm512_rsqrt14_ps(a);
  const V s = mul(a, y), h = mul(half, y);
  const V error = _mm512_fnmadd_ps(s, h, half);
  const V near = fma(s, error, s);
  return fma(_mm512_fnmadd_ps(near, near, a), fma(h, error, h), near);
}
inline V divide(V a, V b) { return _mm512_div_ps(a, b); }

inline V sign(V a) {  // NaN and zeros stay what they are
  const V zero = _mm512_setzero_ps();
  const V up = _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, zero, _CMP_GT_OQ), set(1.0f));
  return _mm512_mask_mov_ps(up, _mm512_cmp_ps_mask(a, zero, _CMP_LT_OQ), set(-1.0f));
}

inline double sum(V a) {
  alignas(64) float x[16];
  _mm512_store_ps(x, a);
  double total = 0;
  for (float value : x) total += value;
  return total;
}

inline V load_f32(const float* p) { return _mm512_loadu_ps(p); }
inline void store_f32(float* p, V x) { _mm512_storeu_ps(p, x); }
inline void stream_f32(float* p, V x) { _mm512_stream_ps(p, x); }

inline __m256i load_half(const std::uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline V load_bf16(const std::uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p)), 16));
}

// Round to nearest, ties to even, by integers: the bf16 instructions flush subnormals to zero.
inline __m256i to_bf16(V x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i rounded =
      _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(rounded);
}

inline void store_bf16(std::uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
}
inline void stream_bf16(std::uint16_t* p, V x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
}

inline V load_f16(const std::uint16_t* p) { return _mm512_cvtph_ps(load_half(p)); }
inline __m256i to_f16(V x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline void store_f16(std::uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(x));
}
inline void stream_f16(std::uint16_t* p, V x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_f16(x));
}

inline void fence() { _mm_sfence(); }
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
