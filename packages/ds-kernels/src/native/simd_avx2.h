// Eight floats at a time with AVX2, FMA and F16C.
// Included inside an unnamed namespace by exactly one translation unit (see sweeps.h).

using V = __m256;
constexpr int width = 8;

constexpr int fetch_ahead = 512;  // elements: 2 KiB of float32, measured best

inline V set(float x) { return _mm256_set1_ps(x); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V fms(V a, V b, V c) { return _mm256_fmsub_ps(a, b, c); }
inline V root(V a) { return _mm256_sqrt_ps(a); }
inline V divide(V a, V b) { return _mm256_div_ps(a, b); }

inline V sign(V a) {  // NaN and zeros stay what they are
  const V zero = _mm256_setzero_ps();
  const V up = _mm256_cmp_ps(a, zero, _CMP_GT_OQ);
  const V down = _mm256_cmp_ps(a, zero, _CMP_LT_OQ);
  return _mm256_blendv_ps(_mm256_blendv_ps(a, set(1.0f), up), set(-1.0f), down);
}

inline double sum(V a) {
  alignas(32) float x[8];
  _mm256_store_ps(x, a);
  double total = 0;
  for (float value : x) total += value;
  return total;
}

inline V load_f32(const float* p) { return _mm256_loadu_ps(p); }
inline void store_f32(float* p, V x) { _mm256_storeu_ps(p, x); }
inline void stream_f32(float* p, V x) { _mm256_stream_ps(p, x); }

inline __m128i load_half(const std::uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

inline V load_bf16(const std::uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
}

inline __m128i to_bf16(V x) {  // round to nearest, ties to even
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i rounded =
      _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

inline void store_bf16(std::uint16_t* p, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(x));
}
inline void stream_bf16(std::uint16_t* p, V x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_bf16(x));
}

inline V load_f16(const std::uint16_t* p) { return _mm256_cvtph_ps(load_half(p)); }
inline __m128i to_f16(V x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline void store_f16(std::uint16_t* p, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16(x));
}
inline void stream_f16(std::uint16_t* p, V x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_f16(x));
}

inline void fence() { _mm_sfence(); }
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
