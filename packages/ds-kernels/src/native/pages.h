// Asks the system to hold memory in huge pages.
#pragma once

#include <cstdint>

namespace ds {

// Moves whole 2 MiB blocks of [address, address + bytes) onto huge pages; what they hold and where
// stays the same. Returns how many bytes were moved or were there already: 0 where the system has
// none to give, or does not know how.
std::uint64_t to_huge_pages(std::uint64_t address, std::uint64_t bytes);

}  // namespace ds
