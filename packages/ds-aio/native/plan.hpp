// How one request is cut into transfers. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "system.hpp"

namespace ds_aio {

enum class Kind { read, write };

struct Layout {
    bool direct;             // the file takes direct I/O now
    uint64_t offset_align;   // of direct I/O
    uint64_t memory_align;
    uint64_t cut;            // of direct writes: see File::cut
    uint64_t block;          // longest transfer
    uint64_t bounce;         // longest transfer through a bounce slot
};

struct Piece {
    uint64_t length;
    bool direct;
    bool bounce;
};

// Below this a transfer straight from the caller's memory is not worth extra cuts.
constexpr uint64_t kWorthDirect = 64u << 10;

// The next transfer of a request that stands at `offset` with `remaining` bytes to go, whose memory
// continues at `address` for `here` bytes before another segment begins.
inline Piece next_piece(Kind kind, const Layout& l, uint64_t offset, uint64_t remaining,
                        uintptr_t address, uint64_t here) {
    const uint64_t run = std::min({remaining, here, l.block});
    if (!l.direct) {
        const bool straight = run >= std::min(remaining, kWorthDirect);
        return {straight ? run : std::min(remaining, l.bounce), false, !straight};
    }
    const uint64_t step = kind == Kind::write ? l.cut : l.offset_align;
    const uint64_t ragged = offset % step;
    const uint64_t worth = std::min({kWorthDirect, l.block, std::max(step, remaining)});
    if (kind == Kind::write) {
        if (ragged != 0 || remaining < step) {
            const uint64_t length = std::min(remaining, step - ragged);
            return {length, false, here < length};
        }
        const uint64_t whole = round_down(run, step);
        if (address % l.memory_align == 0 && whole >= std::min(worth, round_down(remaining, step)))
            return {whole, true, false};
        return {round_down(std::min(remaining, l.bounce), step), true, true};
    }
    if (ragged == 0 && address % l.memory_align == 0) {
        const uint64_t whole = round_down(run, step);
        if (whole != 0 && (whole >= worth || whole == remaining)) return {whole, true, false};
    }
    // A short first transfer pays when it brings offset and memory onto a common alignment.
    const uint64_t lead = step - ragged;
    if (ragged != 0 && std::min(remaining, here) >= lead + worth &&
        (address + lead) % l.memory_align == 0)
        return {lead, true, true};
    return {std::min(remaining, l.bounce - ragged), true, true};
}

}  // namespace ds_aio
