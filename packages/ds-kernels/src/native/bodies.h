// Each update formula on one vector of elements. Included inside an unnamed namespace.
// The operators are inlined by force: left outside of a loop, one passes its vectors through memory,
// which took 11 of the 26 cycles of a vector of Adam.

// m += mix*(x - m): exact for x == m, and the two weights add up to one whatever mix rounds to.
inline V blend(V m, V x, V mix) { return fma(mix, sub(x, m), m); }
inline V blend_square(V v, V g, V mix) { return fma(mix, fms(g, g, v), v); }

struct AdamBody {
  V scale, mix1, mix2, step, eps, decay, l2;
  explicit AdamBody(const Adam& f)
      : scale(set(f.scale)), mix1(set(f.mix1)), mix2(set(f.mix2)), step(set(f.step)),
        eps(set(f.eps)), decay(set(f.decay)), l2(set(f.l2)) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V& m, V& v) {
    const V g = fma(l2, p, mul(scale, grad));
    m = blend(m, g, mix1);
    v = blend_square(v, g, mix2);
    const V ratio = divide(m, add(root(v), eps));
    p = sub(p, fma(step, ratio, mul(decay, p)));
  }
};

struct AdagradBody {
  V scale, step, eps, l2;
  explicit AdagradBody(const Adagrad& f)
      : scale(set(f.scale)), step(set(f.step)), eps(set(f.eps)), l2(set(f.l2)) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V& s, V&) {
    const V g = fma(l2, p, mul(scale, grad));
    s = fma(g, g, s);
    p = sub(p, mul(step, divide(g, add(root(s), eps))));
  }
};

struct LionBody {
  V scale, mix1, mix2, step, decay;
  explicit LionBody(const Lion& f)
      : scale(set(f.scale)), mix1(set(f.mix1)), mix2(set(f.mix2)), step(set(f.step)),
        decay(set(f.decay)) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V& m, V&) {
    const V g = mul(scale, grad);
    const V direction = sign(blend(m, g, mix1));
    p = sub(p, fma(step, direction, mul(decay, p)));
    m = blend(m, g, mix2);
  }
};

struct SgdBody {
  V scale, momentum, gain, nesterov, carry, step, l2;
  explicit SgdBody(const Sgd& f)
      : scale(set(f.scale)), momentum(set(f.momentum)), gain(set(f.gain)),
        nesterov(set(f.nesterov)), carry(set(f.carry)), step(set(f.step)), l2(set(f.l2)) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V& b, V&) {
    const V g = fma(l2, p, mul(scale, grad));
    b = fma(momentum, b, mul(gain, g));
    p = sub(p, mul(step, fma(nesterov, g, mul(carry, b))));
  }
};

struct PlainSgdBody {
  V scale, step, l2;
  explicit PlainSgdBody(const PlainSgd& f)
      : scale(set(f.scale)), step(set(f.step)), l2(set(f.l2)) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V&, V&) {
    p = sub(p, mul(step, fma(l2, p, mul(scale, grad))));
  }
};

// u of LAMB from moments that are already new.
struct LambUpdate {
  V gain, eps, decay;
  explicit LambUpdate(const Lamb& f)
      : gain(set(f.gain)), eps(set(f.eps)), decay(set(f.decay)) {}
  [[gnu::always_inline]] V operator()(V p, V m, V v) const {
    return fma(gain, divide(m, add(root(v), eps)), mul(decay, p));
  }
};

struct LambMomentsBody {
  V scale, mix1, mix2;
  LambUpdate update_of;
  V params = set(0.0f), updates = set(0.0f);
  explicit LambMomentsBody(const Lamb& f)
      : scale(set(f.scale)), mix1(set(f.mix1)), mix2(set(f.mix2)), update_of(f) {}
  [[gnu::always_inline]] void operator()(V& p, V grad, V& m, V& v) {
    const V g = mul(scale, grad);
    m = blend(m, g, mix1);
    v = blend_square(v, g, mix2);
    const V u = update_of(p, m, v);
    params = fma(p, p, params);
    updates = fma(u, u, updates);
  }
};

struct LambApplyBody {
  V step;
  LambUpdate update_of;
  LambApplyBody(const Lamb& f, double trust)
      : step(set(static_cast<float>(f.step * trust))), update_of(f) {}
  [[gnu::always_inline]] void operator()(V& p, V, V& m, V& v) { p = sub(p, mul(step, update_of(p, m, v))); }
};

template <int N>
struct BareBody {
  V amount;
  explicit BareBody(const Bare<N>& f) : amount(set(f.add)) {}
  [[gnu::always_inline]] void operator()(V& p, V g, V& a, V& b) {
    p = add(p, g);
    a = add(a, amount);
    if constexpr (N == 2) b = add(b, amount);
  }
};
