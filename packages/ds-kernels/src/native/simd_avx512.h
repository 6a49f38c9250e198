// Sixteen floats at a time with AVX-512 (F, BW, VL, DQ, and BF16 where the compiler may).
// Included inside an unnamed namespace by one translation unit a level (see sweeps.h).

using V = __m512;
constexpr int width = 16;

constexpr int fetch_ahead = 512;  // elements: 2 KiB of float32, measured best

inline V set(float x) { return _mm512_set1_ps(x); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V fms(V a, V b, V c) { return _mm512_fmsub_ps(a, b, c); }
inline V root(V a) { return _mm512_sqrt_ps(a); }
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

// The sixteen bf16 of the lower half, each as the upper word of its lane: one instruction.
inline V load_bf16(const std::uint16_t* p) {
  const __m512i lane_of = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,  //
                                           7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  const __m512i half = _mm512_castsi256_si512(load_half(p));
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, lane_of, half));
}

// Round to nearest, ties to even; NaN stays NaN.
#ifdef __AVX512BF16__
// The instruction takes and makes no subnormals. Nor does any sum before it (see subnormals.h).
inline __m256i to_bf16(V x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
inline __m256i to_bf16(V x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i upper_words = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                               31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5,
                                               3, 1);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper_words, rounded));
}
#endif

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
