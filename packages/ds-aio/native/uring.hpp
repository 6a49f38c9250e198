// io_uring through its system calls.
#pragma once

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "queue.hpp"
#include "system.hpp"

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

namespace ds_aio {

// Made and used by one thread.
class UringQueue final : public Queue {
public:
    explicit UringQueue(unsigned depth) {
        io_uring_params params{};
        unsigned entries = 1;
        while (entries < depth) entries *= 2;
        // Completions are then run when this thread asks for them, not by interrupting it.
        params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
        ring_ = set_up(entries, params);
        if (!ring_ && errno == EINVAL) {
            params = {};
            ring_ = set_up(entries, params);
        }
        if (!ring_) throw_errno();
        map(params);
    }

    void push(const Transfer& t) override {
        const unsigned index = sq_local_tail_ & sq_mask_;
        io_uring_sqe& entry = entries_[index];
        entry = {};
        entry.opcode = t.write ? IORING_OP_WRITE : IORING_OP_READ;
        entry.fd = t.fd;
        entry.addr = reinterpret_cast<uint64_t>(t.memory);
        entry.len = t.length;
        entry.off = t.offset;
        entry.user_data = t.tag;
        sq_array_[index] = index;
        ++sq_local_tail_;
    }

    void submit() override {
        __atomic_store_n(sq_tail_, sq_local_tail_, __ATOMIC_RELEASE);
        while (const unsigned waiting = sq_local_tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE)) {
            const long taken = enter(waiting, 0, 0);
            if (taken > 0) flying_ += static_cast<size_t>(taken);
            if (taken >= 0 || errno == EINTR) continue;
            if ((errno == EAGAIN || errno == EBUSY) && flying_ > 0) {
                enter(0, 1, IORING_ENTER_GETEVENTS);
                collect(early_);
                continue;
            }
            take_back(errno);
        }
    }

    void reap(size_t at_least, std::vector<Result>& results) override {
        size_t got = early_.size() + collect(results);
        results.insert(results.end(), early_.begin(), early_.end());
        early_.clear();
        if (at_least == 0 && got == 0 && flying_ > 0) {
            // Deferred completions become visible only to a thread that asks.
            enter(0, 0, IORING_ENTER_GETEVENTS);
            collect(results);
        }
        while (got < at_least && flying_ > 0) {
            enter(0, static_cast<unsigned>(at_least - got), IORING_ENTER_GETEVENTS);
            got += collect(results);
        }
    }

private:
    static Descriptor set_up(unsigned entries, io_uring_params& params) {
        return Descriptor(static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params)));
    }
    long enter(unsigned count, unsigned at_least, unsigned flags) {
        return ::syscall(SYS_io_uring_enter, ring_.get(), count, at_least, flags, nullptr, 0);
    }

    // The kernel takes no more: what it has not taken ends with this errno.
    void take_back(int number) {
        const unsigned head = __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
        for (unsigned i = head; i != sq_local_tail_; ++i)
            early_.push_back({entries_[i & sq_mask_].user_data, -static_cast<int64_t>(number)});
        sq_local_tail_ = head;
        __atomic_store_n(sq_tail_, head, __ATOMIC_RELEASE);
    }

    void map(const io_uring_params& p) {
        size_t sq_size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
        size_t cq_size = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
        const bool single = p.features & IORING_FEAT_SINGLE_MMAP;
        if (single) sq_size = cq_size = std::max(sq_size, cq_size);
        sq_map_ = Mapping::shared(ring_.get(), sq_size, IORING_OFF_SQ_RING);
        if (!single) cq_map_ = Mapping::shared(ring_.get(), cq_size, IORING_OFF_CQ_RING);
        entry_map_ = Mapping::shared(ring_.get(), p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
        char* sq = sq_map_.data();
        char* cq = single ? sq : cq_map_.data();
        sq_head_ = reinterpret_cast<unsigned*>(sq + p.sq_off.head);
        sq_tail_ = reinterpret_cast<unsigned*>(sq + p.sq_off.tail);
        sq_mask_ = *reinterpret_cast<unsigned*>(sq + p.sq_off.ring_mask);
        sq_array_ = reinterpret_cast<unsigned*>(sq + p.sq_off.array);
        cq_head_ = reinterpret_cast<unsigned*>(cq + p.cq_off.head);
        cq_tail_ = reinterpret_cast<unsigned*>(cq + p.cq_off.tail);
        cq_mask_ = *reinterpret_cast<unsigned*>(cq + p.cq_off.ring_mask);
        results_ = reinterpret_cast<io_uring_cqe*>(cq + p.cq_off.cqes);
        entries_ = reinterpret_cast<io_uring_sqe*>(entry_map_.data());
        sq_local_tail_ = *sq_tail_;
    }

    size_t collect(std::vector<Result>& results) {
        unsigned head = *cq_head_;
        const unsigned tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
        const size_t count = tail - head;
        flying_ -= count;
        for (; head != tail; ++head) {
            const io_uring_cqe& entry = results_[head & cq_mask_];
            results.push_back({entry.user_data, entry.res});
        }
        __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
        return count;
    }

    Descriptor ring_;
    Mapping sq_map_, cq_map_, entry_map_;
    unsigned *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr, sq_mask_ = 0;
    unsigned *cq_head_ = nullptr, *cq_tail_ = nullptr, cq_mask_ = 0;
    unsigned sq_local_tail_ = 0;
    size_t flying_ = 0;
    std::vector<Result> early_;
    io_uring_sqe* entries_ = nullptr;
    io_uring_cqe* results_ = nullptr;
};

}  // namespace ds_aio
