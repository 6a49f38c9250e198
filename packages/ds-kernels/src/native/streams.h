// What one step touches: the memory of one tensor, without any tensor library.
#pragma once

#include <cstdint>

namespace ds {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };

// `param` and the states are read and written, `grad` is read, `out` is written. `out` may be null.
struct Streams {
  std::int64_t count;
  void* param;
  const void* grad;
  void* state1;
  void* state2;
  void* out;
  DType param_type;
  DType grad_type;
  DType state_type;
  DType out_type;
};

// Sums that LAMB needs over one chunk.
struct Norms {
  double param;
  double update;
};

}  // namespace ds
