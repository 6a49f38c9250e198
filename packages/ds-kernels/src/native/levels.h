// Instruction sets: which are compiled in, which this processor has.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace ds {

// Names of the levels this processor can run, slowest first.
const std::vector<std::string>& available_levels();

// The loops of a level by name. Throws std::invalid_argument if it is unknown or cannot run here.
const Kernels& kernels_of(const std::string& level);

}  // namespace ds
