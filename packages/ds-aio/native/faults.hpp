// Faults a test asks for, applied where the kernel would produce them.
#pragma once

#include <atomic>
#include <cstdint>

namespace ds_aio {

struct Faults {
    uint32_t report_alignment = 0;   // what the file system claims to need (0: ask the kernel)
    uint32_t enforce_alignment = 0;  // what it really needs (0: the kernel decides)
    bool refuse_open = false;        // O_DIRECT is refused by open
    bool refuse_transfer = false;    // O_DIRECT opens, transfers answer EINVAL
    int fail_errno = 0;              // answered for transfers that cover `fail_offset`
    uint64_t fail_offset = 0;
    int64_t fail_times = -1;     // -1: each time
    uint64_t short_limit = 0;    // transfers stop after so many bytes (0: never)

    Faults() = default;
    Faults(const Faults& other)
        : report_alignment(other.report_alignment),
          enforce_alignment(other.enforce_alignment),
          refuse_open(other.refuse_open),
          refuse_transfer(other.refuse_transfer),
          fail_errno(other.fail_errno),
          fail_offset(other.fail_offset),
          fail_times(other.fail_times),
          short_limit(other.short_limit),
          failed_(0) {}

    // The errno this transfer meets, or 0. May shorten `length`.
    int meet(bool direct, uintptr_t address, uint64_t offset, uint64_t& length) const {
        if (direct && refuse_transfer) return 22;
        if (direct && enforce_alignment > 1 &&
            ((address | offset | length) & (enforce_alignment - 1)) != 0)
            return 22;
        if (fail_errno != 0 && offset <= fail_offset && fail_offset < offset + length) {
            if (fail_times < 0 || failed_.fetch_add(1) < fail_times) return fail_errno;
        }
        if (short_limit != 0 && length > short_limit) {
            const uint64_t step = direct ? (enforce_alignment > 1 ? enforce_alignment : 512) : 1;
            const uint64_t kept = short_limit / step * step;
            length = kept > step ? kept : step;
        }
        return 0;
    }

private:
    mutable std::atomic<int64_t> failed_{0};
};

}  // namespace ds_aio
