// One table of loops for each instruction set; every loop handles elements [begin, end) of a tensor.
#pragma once

#include "formulas.h"
#include "streams.h"

namespace ds {

template <class Formula>
using Sweep = void (*)(const Streams&, const Formula&, std::int64_t begin, std::int64_t end);

struct Kernels {
  Sweep<Adam> adam;
  Sweep<Adagrad> adagrad;
  Sweep<Lion> lion;
  Sweep<Sgd> sgd;
  Sweep<PlainSgd> plain_sgd;
  Sweep<Bare<2>> bare2;
  Sweep<Bare<1>> bare1;
  // LAMB takes two sweeps: moments with norms, then the update scaled by the trust ratio.
  Norms (*lamb_moments)(const Streams&, const Lamb&, std::int64_t begin, std::int64_t end);
  void (*lamb_apply)(const Streams&, const Lamb&, double trust, std::int64_t begin,
                     std::int64_t end);
};

extern const Kernels scalar_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512_bf16_kernels;

}  // namespace ds
