// The loops compiled for avx512 with the instruction that rounds to bfloat16.
#include <cstddef>
#include <cstdint>

#include <immintrin.h>
#include "kernels.h"

namespace ds {
namespace {
#include "simd_avx512.h"
#include "columns.h"
#include "bodies.h"
#include "sweeps.h"
}  // namespace

extern const Kernels avx512_bf16_kernels = table();

}  // namespace ds
