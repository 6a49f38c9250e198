// One step over any number of tensors: cuts them into chunks, hands the chunks to threads.
#pragma once

#include <vector>

#include "kernels.h"

namespace ds {

using Batch = std::vector<Streams>;

void run(const Kernels& kernels, const Batch& batch, const Adam& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const Adagrad& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const Lion& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const Sgd& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const PlainSgd& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const Bare<2>& formula, int threads);
void run(const Kernels& kernels, const Batch& batch, const Bare<1>& formula, int threads);

// Returns the trust ratio of each tensor. The same whatever the number of threads.
std::vector<double> run(const Kernels& kernels, const Batch& batch, const Lamb& formula,
                        int threads);

}  // namespace ds
