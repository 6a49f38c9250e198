// The loops compiled for scalar.
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace ds {
namespace {
#include "simd_scalar.h"
#include "columns.h"
#include "bodies.h"
#include "sweeps.h"
}  // namespace

extern const Kernels scalar_kernels = table();

}  // namespace ds
