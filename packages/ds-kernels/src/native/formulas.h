// The scalars of each update formula, computed once a step by the caller in double precision.
#pragma once

namespace ds {

// g = scale*grad + l2*p;  m += mix1*(g - m);  v += mix2*(g*g - v);
// p -= step*m/(sqrt(v) + eps) + decay*p
struct Adam {
  double scale, mix1, mix2, step, eps, decay, l2;
  static constexpr int states = 2;
};

// g = scale*grad + l2*p;  s += g*g;  p -= step*g/(sqrt(s) + eps)
struct Adagrad {
  double scale, step, eps, l2;
  static constexpr int states = 1;
};

// g = scale*grad;  c = m + mix1*(g - m);  p -= step*sign(c) + decay*p;  m += mix2*(g - m)
struct Lion {
  double scale, mix1, mix2, step, decay;
  static constexpr int states = 1;
};

// g = scale*grad + l2*p;  b = momentum*b + gain*g;  p -= step*(nesterov*g + carry*b)
// First step: momentum 0 and gain 1.
struct Sgd {
  double scale, momentum, gain, nesterov, carry, step, l2;
  static constexpr int states = 1;
};

// g = scale*grad + l2*p;  p -= step*g
struct PlainSgd {
  double scale, step, l2;
  static constexpr int states = 0;
};

// g = scale*grad;  m += mix1*(g - m);  v += mix2*(g*g - v);
// u = gain*m/(sqrt(v) + eps) + decay*p;  p -= step*trust*u, trust = clamp(|p|/|u|, low, high)
struct Lamb {
  double scale, mix1, mix2, gain, eps, decay, step, low, high;
  static constexpr int states = 2;
};

// The memory floor: the reads and writes of a formula with `states` moments, one addition each.
template <int N>
struct Bare {
  double add;
  static constexpr int states = N;
};

}  // namespace ds
