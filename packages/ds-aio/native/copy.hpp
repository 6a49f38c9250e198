// Copies of large transfers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ds_aio {

// Copies past the caches: the destination need not be read first, and the source, memory that is used
// over and over, stays in them.
inline void stream_copy(char* to, const char* from, uint64_t length) {
#if defined(__SSE2__)
    constexpr uint64_t kLine = 64, kPart = 16;
    if (length >= 16 * kLine) {
        const uint64_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
        std::memcpy(to, from, head);
        to += head;
        from += head;
        length -= head;
        for (; length >= kLine; length -= kLine, to += kLine, from += kLine) {
            for (uint64_t part = 0; part < kLine; part += kPart)
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
        }
        _mm_sfence();
    }
#endif
    std::memcpy(to, from, length);
}

}  // namespace ds_aio
