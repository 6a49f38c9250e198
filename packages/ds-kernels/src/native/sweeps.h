// The loops: streams in, one formula, streams out. Included inside an unnamed namespace, so that
// every instruction set has its own copy and none leaks into code that other processors run.

// Which columns a sweep reads and writes back.
struct AllColumns {
  static constexpr bool reads_grad = true, writes_param = true, writes_states = true;
};
struct MomentsOnly {
  static constexpr bool reads_grad = true, writes_param = false, writes_states = true;
};
struct ParamOnly {
  static constexpr bool reads_grad = false, writes_param = true, writes_states = false;
};

// How the low-precision copy leaves. It is not read back soon, so streaming past the caches saves
// the read that an ordinary store begins with.
enum class Out { none, store, stream };

template <class P, class G, class S, int States, class Use>
struct Loop {
  Column<P> param;
  Column<G> grad;
  Column<S> state1, state2;
  Column<Any> out;

  explicit Loop(const Streams& t)
      : param(t.param, t.param_type), grad(t.grad, t.grad_type), state1(t.state1, t.state_type),
        state2(t.state2, t.state_type), out(t.out, t.out_type) {}

  // The division and the square root keep so few vectors in flight that the processor's own
  // prefetching falls behind; asking for the data early closes the gap to a bare loop.
  void fetch(std::int64_t i) const {
    prefetch(param.at(i));
    if constexpr (Use::reads_grad) prefetch(grad.at(i));
    if constexpr (States > 0) prefetch(state1.at(i));
    if constexpr (States > 1) prefetch(state2.at(i));
  }

  template <Out Mode, class Body>
  void whole(std::int64_t begin, std::int64_t end, Body& body) const {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; i += width) {
      if constexpr (fetch_ahead > 0) fetch(i + fetch_ahead);
      V p = param.load(i), g = set(0.0f), a = set(0.0f), b = set(0.0f);
      if constexpr (Use::reads_grad) g = grad.load(i);
      if constexpr (States > 0) a = state1.load(i);
      if constexpr (States > 1) b = state2.load(i);
      body(p, g, a, b);
      if constexpr (Use::writes_param) param.store(i, p);
      if constexpr (Use::writes_states && States > 0) state1.store(i, a);
      if constexpr (Use::writes_states && States > 1) state2.store(i, b);
      if constexpr (Mode == Out::store) out.store(i, p);
      if constexpr (Mode == Out::stream) out.stream(i, p);
    }
  }

  template <class Body>
  void part(std::int64_t i, int count, Body& body) const {
    V p = load_part(param, i, count), g = set(0.0f), a = set(0.0f), b = set(0.0f);
    if constexpr (Use::reads_grad) g = load_part(grad, i, count);
    if constexpr (States > 0) a = load_part(state1, i, count);
    if constexpr (States > 1) b = load_part(state2, i, count);
    body(p, g, a, b);
    if constexpr (Use::writes_param) store_part(param, i, count, p);
    if constexpr (Use::writes_states && States > 0) store_part(state1, i, count, a);
    if constexpr (Use::writes_states && States > 1) store_part(state2, i, count, b);
    if (Use::writes_param && out.base) store_part(out, i, count, p);
  }

  // Elements from i to the next vector boundary of the column that gains most from alignment.
  std::int64_t to_boundary(std::int64_t i) const {
    const int bytes = out.base ? out.bytes() : param.bytes();
    const auto at = reinterpret_cast<std::uintptr_t>(out.base ? out.base : param.base) + i * bytes;
    const auto vector_bytes = static_cast<std::uintptr_t>(width) * bytes;
    return static_cast<std::int64_t>((vector_bytes - at % vector_bytes) % vector_bytes / bytes);
  }

  template <class Body>
  void run(std::int64_t begin, std::int64_t end, Body& body) const {
    const std::int64_t head = to_boundary(begin);
    const std::int64_t first = begin + (head < end - begin ? head : end - begin);
    const std::int64_t last = first + (end - first) / width * width;
    if (begin < first) part(begin, static_cast<int>(first - begin), body);
    if (!Use::writes_param || !out.base) {
      whole<Out::none>(first, last, body);
    } else if (reinterpret_cast<std::uintptr_t>(out.base) % out.bytes()) {
      whole<Out::store>(first, last, body);  // not even aligned to its elements
    } else {
      whole<Out::stream>(first, last, body);
      fence();
    }
    if (last < end) part(last, static_cast<int>(end - last), body);
  }
};

template <int States, class Use, class Body>
void sweep(const Streams& t, std::int64_t begin, std::int64_t end, Body& body) {
  const bool plain_states = States == 0 || t.state_type == DType::f32;
  const bool f32 = t.param_type == DType::f32 && plain_states;
  const bool bf16 = t.param_type == DType::bf16 && plain_states;
  if (f32 && t.grad_type == DType::f32) {
    Loop<F32, F32, F32, States, Use>(t).run(begin, end, body);
  } else if (f32 && t.grad_type == DType::bf16) {
    Loop<F32, BF16, F32, States, Use>(t).run(begin, end, body);
  } else if (bf16 && t.grad_type == DType::bf16) {
    Loop<BF16, BF16, F32, States, Use>(t).run(begin, end, body);
  } else {
    Loop<Any, Any, Any, States, Use>(t).run(begin, end, body);
  }
}

template <class Formula, class Body>
void update(const Streams& t, const Formula& f, std::int64_t begin, std::int64_t end) {
  Body body(f);
  sweep<Formula::states, AllColumns>(t, begin, end, body);
}

inline Norms lamb_moments(const Streams& t, const Lamb& f, std::int64_t begin, std::int64_t end) {
  LambMomentsBody body(f);
  sweep<2, MomentsOnly>(t, begin, end, body);
  return {sum(body.params), sum(body.updates)};
}

inline void lamb_apply(const Streams& t, const Lamb& f, double trust, std::int64_t begin,
                       std::int64_t end) {
  LambApplyBody body(f, trust);
  sweep<2, ParamOnly>(t, begin, end, body);
}

constexpr Kernels table() {
  return {update<Adam, AdamBody>,         update<Adagrad, AdagradBody>,
          update<Lion, LionBody>,         update<Sgd, SgdBody>,
          update<PlainSgd, PlainSgdBody>, update<Bare<2>, BareBody<2>>,
          update<Bare<1>, BareBody<1>>,   lamb_moments,
          lamb_apply};
}
