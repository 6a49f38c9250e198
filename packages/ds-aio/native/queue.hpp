// What every way of talking to the kernel offers: push transfers, reap their results.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

namespace ds_aio {

struct Transfer {
    bool write;
    int fd;
    char* memory;
    uint32_t length;
    uint64_t offset;
    uint64_t tag;
};

struct Result {
    uint64_t tag;
    int64_t value;  // bytes, or -errno
};

// Used by one thread at a time.
class Queue {
public:
    virtual ~Queue() = default;
    // At most the depth given at construction may be pushed and not yet reaped.
    virtual void push(const Transfer& transfer) = 0;
    virtual void submit() = 0;
    // Appends results; blocks until there are `at_least`.
    virtual void reap(size_t at_least, std::vector<Result>& results) = 0;
};

// Does each transfer on the spot.
class PlainQueue final : public Queue {
public:
    void push(const Transfer& t) override {
        ssize_t value;
        do
            value = t.write ? ::pwrite(t.fd, t.memory, t.length, static_cast<off_t>(t.offset))
                            : ::pread(t.fd, t.memory, t.length, static_cast<off_t>(t.offset));
        while (value < 0 && errno == EINTR);
        results_.push_back({t.tag, value < 0 ? -static_cast<int64_t>(errno) : value});
    }
    void submit() override {}
    void reap(size_t, std::vector<Result>& results) override {
        results.insert(results.end(), results_.begin(), results_.end());
        results_.clear();
    }

private:
    std::vector<Result> results_;
};

}  // namespace ds_aio
