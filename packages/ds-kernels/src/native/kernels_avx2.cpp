// The loops compiled for avx2.
#include <cstddef>
#include <cstdint>

#include <immintrin.h>
#include "kernels.h"

namespace ds {
namespace {
#include "simd_avx2.h"
#include "columns.h"
#include "bodies.h"
#include "sweeps.h"
}  // namespace

extern const Kernels avx2_kernels = table();

}  // namespace ds
