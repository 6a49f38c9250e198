#include "pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ds {

#if defined(__linux__)
namespace {

constexpr std::uint64_t block = std::uint64_t{1} << 21;
constexpr int collapse_now = 25;  // MADV_COLLAPSE of Linux 6.1; older systems answer EINVAL

}  // namespace

std::uint64_t to_huge_pages(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t first = (address + block - 1) / block * block;
  const std::uint64_t last = (address + bytes) / block * block;
  if (first >= last) return 0;
  void* const from = reinterpret_cast<void*>(first);
  // The first call is for pages not touched yet, and for the system's own collector on old systems.
  if (madvise(from, last - first, MADV_HUGEPAGE) != 0) return 0;
  return madvise(from, last - first, collapse_now) == 0 ? last - first : 0;
}
#else
std::uint64_t to_huge_pages(std::uint64_t, std::uint64_t) { return 0; }
#endif

}  // namespace ds
