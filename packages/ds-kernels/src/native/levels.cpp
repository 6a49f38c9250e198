#include "levels.h"

#include <stdexcept>

#ifdef DS_KERNELS_X86
#include <cpuid.h>
#endif

namespace ds {
namespace {

#ifdef DS_KERNELS_X86
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::vector<std::string> detected_levels() {
  std::vector<std::string> names{"scalar"};
#ifdef DS_KERNELS_X86
  if (has_avx2()) names.push_back("avx2");
  if (has_avx512()) names.push_back("avx512");
  if (has_avx512_bf16()) names.push_back("avx512_bf16");
#endif
  return names;
}

}  // namespace

// Asked once: in a virtual machine the question leaves the guest, 8 us a time.
const std::vector<std::string>& available_levels() {
  static const std::vector<std::string> names = detected_levels();
  return names;
}

const Kernels& kernels_of(const std::string& level) {
  for (const auto& name : available_levels()) {
    if (name != level) continue;
#ifdef DS_KERNELS_X86
    if (level == "avx512_bf16") return avx512_bf16_kernels;
    if (level == "avx512") return avx512_kernels;
    if (level == "avx2") return avx2_kernels;
#endif
    return scalar_kernels;
  }
  throw std::invalid_argument("instruction level '" + level +
                              "' cannot run here; this processor has: " + joined(available_levels()));
}

}  // namespace ds
