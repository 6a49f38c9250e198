// Linux AIO through its system calls.
#pragma once

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "queue.hpp"
#include "system.hpp"

namespace ds_aio {

class LinuxAioQueue final : public Queue {
public:
    explicit LinuxAioQueue(unsigned depth) : blocks_(depth), events_(depth) {
        if (::syscall(SYS_io_setup, depth, &context_) != 0) throw_errno();
        for (unsigned i = 0; i < depth; ++i) free_.push_back(&blocks_[i]);
    }
    ~LinuxAioQueue() override { ::syscall(SYS_io_destroy, context_); }

    void push(const Transfer& t) override {
        iocb* block = free_.back();
        free_.pop_back();
        *block = {};
        block->aio_data = t.tag;
        block->aio_lio_opcode = t.write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
        block->aio_fildes = static_cast<uint32_t>(t.fd);
        block->aio_buf = reinterpret_cast<uint64_t>(t.memory);
        block->aio_nbytes = t.length;
        block->aio_offset = static_cast<int64_t>(t.offset);
        staged_.push_back(block);
    }

    void submit() override {
        size_t first = 0;
        while (first < staged_.size()) {
            const long taken = ::syscall(SYS_io_submit, context_, static_cast<long>(staged_.size() - first),
                                         staged_.data() + first);
            if (taken > 0) {
                first += static_cast<size_t>(taken);
                flying_ += static_cast<size_t>(taken);
            } else if (taken < 0 && errno == EINTR) {
                continue;
            } else if (taken < 0 && errno == EAGAIN && flying_ > 0) {
                collect(1, early_);
            } else {
                // The kernel refuses this one before it starts.
                early_.push_back({staged_[first]->aio_data, -static_cast<int64_t>(taken < 0 ? errno : EIO)});
                free_.push_back(staged_[first++]);
            }
        }
        staged_.clear();
    }

    void reap(size_t at_least, std::vector<Result>& results) override {
        const size_t early = early_.size();
        results.insert(results.end(), early_.begin(), early_.end());
        early_.clear();
        if (flying_ > 0) collect(at_least > early ? at_least - early : 0, results);
    }

private:
    void collect(size_t at_least, std::vector<Result>& results) {
        size_t got = 0;
        do {
            timespec now{0, 0};
            const long count =
                ::syscall(SYS_io_getevents, context_, static_cast<long>(at_least > got ? at_least - got : 0),
                          static_cast<long>(events_.size()), events_.data(), at_least > got ? nullptr : &now);
            if (count < 0) {
                if (errno == EINTR) continue;
                throw_errno();
            }
            for (long i = 0; i < count; ++i) {
                results.push_back({events_[i].data, events_[i].res});
                free_.push_back(reinterpret_cast<iocb*>(events_[i].obj));
            }
            got += static_cast<size_t>(count);
            flying_ -= static_cast<size_t>(count);
        } while (got < at_least && flying_ > 0);
    }

    aio_context_t context_ = 0;
    std::vector<iocb> blocks_;
    std::vector<io_event> events_;
    std::vector<iocb*> free_;
    std::vector<iocb*> staged_;
    std::vector<Result> early_;
    size_t flying_ = 0;
};

}  // namespace ds_aio
