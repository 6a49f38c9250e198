// Page-aligned memory outside of the heap: I/O buffers, bounce slots.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <vector>

#include "system.hpp"

namespace ds_aio {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2u << 20;

// Memory whose first byte lies `phase` bytes after a page boundary, optionally locked in RAM.
class Buffer {
public:
    Buffer(uint64_t size, uint64_t phase, bool lock) : size_(size), phase_(phase % kPage) {
        const uint64_t wanted = round_up(size_ + phase_ + 1, kPage);
        const bool huge = wanted >= kHugePage;
        // Over-allocate so that large buffers start on a huge page: fewer faults, fewer pinned folios.
        mapping_ = Mapping::anonymous(huge ? wanted + kHugePage : wanted);
        const auto start = reinterpret_cast<uintptr_t>(mapping_.data());
        base_ = reinterpret_cast<char*>(huge ? round_up(start, kHugePage) : start);
        if (huge) ::madvise(base_, round_up(wanted, kPage), MADV_HUGEPAGE);
        if (lock && ::mlock(data(), size_ ? size_ : 1) != 0) lock_error_ = errno;
        locked_ = lock && lock_error_ == 0;
    }

    char* data() const { return base_ + phase_; }
    uint64_t size() const { return size_; }
    bool locked() const { return locked_; }
    int lock_error() const { return lock_error_; }

private:
    uint64_t size_;
    uint64_t phase_;
    Mapping mapping_;
    char* base_ = nullptr;
    bool locked_ = false;
    int lock_error_ = 0;
};

// Equal aligned slots for transfers whose own memory cannot be used. Memory is touched on first use
// and the last slot given back is handed out first, so the working set stays small.
class Arena {
public:
    Arena(uint64_t slot_size, size_t slots) : slot_size_(slot_size), slots_(slots) {}

    bool available() const { return !free_.empty() || used_ < slots_; }
    char* take() {
        if (!free_.empty()) {
            char* slot = free_.back();
            free_.pop_back();
            return slot;
        }
        if (!mapped_) {
            buffer_ = std::make_unique<Buffer>(slot_size_ * slots_, 0, false);
            mapped_ = true;
        }
        return buffer_->data() + slot_size_ * used_++;
    }
    void give_back(char* slot) { free_.push_back(slot); }

private:
    uint64_t slot_size_;
    size_t slots_;
    size_t used_ = 0;
    bool mapped_ = false;
    std::unique_ptr<Buffer> buffer_;
    std::vector<char*> free_;
};

}  // namespace ds_aio
