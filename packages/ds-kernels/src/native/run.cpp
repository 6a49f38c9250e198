#include "run.h"

#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "subnormals.h"

namespace ds {
namespace {

// Small enough that threads finish together and LAMB finds a small tensor still in the cache,
// large enough that taking the next chunk costs nothing.
constexpr std::int64_t chunk_elements = 1 << 16;
// Below this a thread costs more than it saves.
constexpr std::int64_t elements_a_thread = 1 << 15;

struct Piece {
  std::size_t tensor;
  std::int64_t begin, end;
};

struct Plan {
  std::vector<Piece> pieces;
  std::vector<std::size_t> starts;  // task i runs pieces [starts[i], starts[i + 1])
  std::int64_t elements = 0;

  std::int64_t tasks() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

// Large tensors are cut, small ones share a task.
Plan plan_of(const Batch& batch) {
  Plan plan;
  std::int64_t filled = chunk_elements;
  for (std::size_t t = 0; t < batch.size(); ++t) {
    for (std::int64_t begin = 0; begin < batch[t].count; begin += chunk_elements) {
      const std::int64_t end = std::min(begin + chunk_elements, batch[t].count);
      if (filled >= chunk_elements) {
        plan.starts.push_back(plan.pieces.size());
        filled = 0;
      }
      plan.pieces.push_back({t, begin, end});
      filled += end - begin;
      plan.elements += end - begin;
    }
  }
  plan.starts.push_back(plan.pieces.size());
  return plan;
}

template <class Work>
void for_pieces(const Plan& plan, int threads, const Work& work) {
  const auto useful = 1 + plan.elements / elements_a_thread;
  const int team = static_cast<int>(std::min<std::int64_t>(std::max(threads, 1), useful));
  parallel_for(plan.tasks(), team, [&](std::int64_t task) {
    [[maybe_unused]] const FlushSubnormals flush;
    for (std::size_t i = plan.starts[task]; i < plan.starts[task + 1]; ++i) work(i);
  });
}

template <class Formula>
void run_sweep(const Batch& batch, const Formula& formula, int threads, Sweep<Formula> sweep) {
  const Plan plan = plan_of(batch);
  for_pieces(plan, threads, [&](std::size_t i) {
    const Piece& piece = plan.pieces[i];
    sweep(batch[piece.tensor], formula, piece.begin, piece.end);
  });
}

double trust_of(const Norms& squares, const Lamb& formula) {
  const double param = std::sqrt(squares.param), update = std::sqrt(squares.update);
  if (!(param > 0 && update > 0)) return 1.0;
  return std::min(std::max(param / update, formula.low), formula.high);
}

}  // namespace

void run(const Kernels& k, const Batch& batch, const Adam& f, int threads) {
  run_sweep(batch, f, threads, k.adam);
}
void run(const Kernels& k, const Batch& batch, const Adagrad& f, int threads) {
  run_sweep(batch, f, threads, k.adagrad);
}
void run(const Kernels& k, const Batch& batch, const Lion& f, int threads) {
  run_sweep(batch, f, threads, k.lion);
}
void run(const Kernels& k, const Batch& batch, const Sgd& f, int threads) {
  run_sweep(batch, f, threads, k.sgd);
}
void run(const Kernels& k, const Batch& batch, const PlainSgd& f, int threads) {
  run_sweep(batch, f, threads, k.plain_sgd);
}
void run(const Kernels& k, const Batch& batch, const Bare<2>& f, int threads) {
  run_sweep(batch, f, threads, k.bare2);
}
void run(const Kernels& k, const Batch& batch, const Bare<1>& f, int threads) {
  run_sweep(batch, f, threads, k.bare1);
}

std::vector<double> run(const Kernels& kernels, const Batch& batch, const Lamb& f, int threads) {
  const Plan plan = plan_of(batch);
  std::vector<Norms> norms(plan.pieces.size());
  std::vector<double> trust(batch.size(), 1.0);
  for_pieces(plan, threads, [&](std::size_t i) {
    const Piece& piece = plan.pieces[i];
    const Streams& tensor = batch[piece.tensor];
    norms[i] = kernels.lamb_moments(tensor, f, piece.begin, piece.end);
    if (piece.end - piece.begin < tensor.count) return;
    trust[piece.tensor] = trust_of(norms[i], f);  // a whole tensor: finish it while it is cached
    kernels.lamb_apply(tensor, f, trust[piece.tensor], piece.begin, piece.end);
  });

  std::vector<Norms> totals(batch.size(), Norms{0, 0});
  Plan rest;
  for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
    const Piece& piece = plan.pieces[i];
    if (piece.end - piece.begin == batch[piece.tensor].count) continue;
    totals[piece.tensor].param += norms[i].param;
    totals[piece.tensor].update += norms[i].update;
    trust[piece.tensor] = trust_of(totals[piece.tensor], f);
    rest.starts.push_back(rest.pieces.size());
    rest.pieces.push_back(piece);
    rest.elements += piece.end - piece.begin;
  }
  rest.starts.push_back(rest.pieces.size());
  for_pieces(rest, threads, [&](std::size_t i) {
    const Piece& piece = rest.pieces[i];
    kernels.lamb_apply(batch[piece.tensor], f, trust[piece.tensor], piece.begin, piece.end);
  });
  return trust;
}

}  // namespace ds
