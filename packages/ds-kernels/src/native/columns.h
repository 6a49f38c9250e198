// A column of numbers in one of the storage types, read and written as vectors of floats.
// Included inside an unnamed namespace, after a simd_*.h.

struct F32 {};
struct BF16 {};
struct F16 {};
struct Any {};  // decided for each vector: the rarer mixtures of types

template <class Kind>
struct Column;

template <>
struct Column<F32> {
  float* base;
  Column(const void* p, DType) : base(static_cast<float*>(const_cast<void*>(p))) {}
  int bytes() const { return 4; }
  const void* at(std::int64_t i) const { return base + i; }
  V load(std::int64_t i) const { return load_f32(base + i); }
  void store(std::int64_t i, V x) const { store_f32(base + i, x); }
  void stream(std::int64_t i, V x) const { stream_f32(base + i, x); }
};

template <>
struct Column<BF16> {
  std::uint16_t* base;
  Column(const void* p, DType) : base(static_cast<std::uint16_t*>(const_cast<void*>(p))) {}
  int bytes() const { return 2; }
  const void* at(std::int64_t i) const { return base + i; }
  V load(std::int64_t i) const { return load_bf16(base + i); }
  void store(std::int64_t i, V x) const { store_bf16(base + i, x); }
  void stream(std::int64_t i, V x) const { stream_bf16(base + i, x); }
};

template <>
struct Column<F16> {
  std::uint16_t* base;
  Column(const void* p, DType) : base(static_cast<std::uint16_t*>(const_cast<void*>(p))) {}
  int bytes() const { return 2; }
  const void* at(std::int64_t i) const { return base + i; }
  V load(std::int64_t i) const { return load_f16(base + i); }
  void store(std::int64_t i, V x) const { store_f16(base + i, x); }
  void stream(std::int64_t i, V x) const { stream_f16(base + i, x); }
};

template <>
struct Column<Any> {
  void* base;
  DType type;
  Column(const void* p, DType t) : base(const_cast<void*>(p)), type(t) {}
  int bytes() const { return type == DType::f32 ? 4 : 2; }
  const void* at(std::int64_t i) const { return static_cast<char*>(base) + i * bytes(); }
  V load(std::int64_t i) const {
    if (type == DType::f32) return Column<F32>(base, type).load(i);
    if (type == DType::bf16) return Column<BF16>(base, type).load(i);
    return Column<F16>(base, type).load(i);
  }
  void store(std::int64_t i, V x) const {
    if (type == DType::f32) return Column<F32>(base, type).store(i, x);
    if (type == DType::bf16) return Column<BF16>(base, type).store(i, x);
    return Column<F16>(base, type).store(i, x);
  }
  void stream(std::int64_t i, V x) const {
    if (type == DType::f32) return Column<F32>(base, type).stream(i, x);
    if (type == DType::bf16) return Column<BF16>(base, type).stream(i, x);
    return Column<F16>(base, type).stream(i, x);
  }
};

// The first `count` (fewer than `width`) elements from i on; the other lanes are zero. Goes through
// a buffer, so that nothing beyond the tensor is touched and a lane's result never depends on
// where its tensor was cut.
template <class Kind>
V load_part(const Column<Kind>& column, std::int64_t i, int count) {
  alignas(64) unsigned char buffer[4 * width] = {};
  const int bytes = column.bytes();
  const auto* from = reinterpret_cast<const unsigned char*>(column.base) + i * bytes;
  __builtin_memcpy(buffer, from, static_cast<std::size_t>(count) * bytes);
  Column<Kind> part = column;
  part.base = reinterpret_cast<decltype(part.base)>(buffer);
  return part.load(0);
}

template <class Kind>
void store_part(const Column<Kind>& column, std::int64_t i, int count, V x) {
  alignas(64) unsigned char buffer[4 * width];
  Column<Kind> part = column;
  part.base = reinterpret_cast<decltype(part.base)>(buffer);
  part.store(0, x);
  const int bytes = column.bytes();
  auto* to = reinterpret_cast<unsigned char*>(column.base) + i * bytes;
  __builtin_memcpy(to, buffer, static_cast<std::size_t>(count) * bytes);
}
