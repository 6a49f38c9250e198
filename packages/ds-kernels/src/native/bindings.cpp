// The border to Python. Forwards only: tensors are checked before their addresses get here.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "levels.h"
#include "pages.h"
#include "queue.h"
#include "run.h"

namespace py = pybind11;

namespace {

// (count, param, grad, state1, state2, out, param type, grad type, state type, out type)
using Row = std::array<std::uint64_t, 10>;
using Rows = std::vector<Row>;
using Scalars = std::vector<double>;

ds::Batch batch_of(const Rows& rows) {
  const auto at = [](std::uint64_t address) { return reinterpret_cast<void*>(address); };
  const auto type = [](std::uint64_t code) { return static_cast<ds::DType>(code); };
  ds::Batch batch;
  batch.reserve(rows.size());
  for (const Row& r : rows) {
    batch.push_back({static_cast<std::int64_t>(r[0]), at(r[1]), at(r[2]), at(r[3]), at(r[4]),
                     at(r[5]), type(r[6]), type(r[7]), type(r[8]), type(r[9])});
  }
  return batch;
}

template <class Formula, std::size_t... I>
Formula filled(const Scalars& x, std::index_sequence<I...>) {
  if (x.size() != sizeof...(I)) throw std::invalid_argument("wrong number of scalars");
  return Formula{x[I]...};
}

// Adds `name(rows, scalars, level, threads, queue=None)` for one formula of `Count` scalars.
template <class Formula, std::size_t Count>
void define(py::module_& m, const char* name) {
  const auto call = [](const Rows& rows, const Scalars& scalars, const std::string& level,
                       int threads, ds::Queue* queue) -> std::shared_ptr<ds::Ticket> {
    const auto formula = filled<Formula>(scalars, std::make_index_sequence<Count>());
    const ds::Kernels* kernels = &ds::kernels_of(level);
    auto work = [kernels, batch = batch_of(rows), formula, threads] {
      ds::run(*kernels, batch, formula, threads);
    };
    py::gil_scoped_release released;
    if (queue) return queue->submit(std::move(work));
    work();
    return nullptr;
  };
  m.def(name, call, py::arg("rows"), py::arg("scalars"), py::arg("level"), py::arg("threads"),
        py::arg("queue").none(true) = nullptr);
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "Compiled loops of ds_kernels.";
  m.def("available_levels", &ds::available_levels);
  m.def("to_huge_pages", &ds::to_huge_pages, py::arg("address"), py::arg("bytes"),
        py::call_guard<py::gil_scoped_release>());

  py::class_<ds::Ticket, std::shared_ptr<ds::Ticket>>(m, "Ticket")
      .def("wait", &ds::Ticket::wait, py::call_guard<py::gil_scoped_release>())
      .def("done", &ds::Ticket::done);
  py::class_<ds::Queue>(m, "Queue").def(py::init<>());

  define<ds::Adam, 7>(m, "adam");
  define<ds::Adagrad, 4>(m, "adagrad");
  define<ds::Lion, 5>(m, "lion");
  define<ds::Sgd, 7>(m, "sgd");
  define<ds::PlainSgd, 3>(m, "plain_sgd");
  define<ds::Bare<2>, 1>(m, "bare2");
  define<ds::Bare<1>, 1>(m, "bare1");
  m.def("lamb", [](const Rows& rows, const Scalars& scalars, const std::string& level,
                   int threads) {
    const auto formula = filled<ds::Lamb>(scalars, std::make_index_sequence<9>());
    const ds::Kernels& kernels = ds::kernels_of(level);
    const ds::Batch batch = batch_of(rows);
    py::gil_scoped_release released;
    return ds::run(kernels, batch, formula, threads);
  }, py::arg("rows"), py::arg("scalars"), py::arg("level"), py::arg("threads"));
}
