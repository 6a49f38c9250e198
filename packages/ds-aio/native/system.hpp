// Owned descriptors, errors of system calls, and the signals of threads.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace ds_aio {

// An errno that becomes a Python OSError.
struct SystemError {
    int number;
};

[[noreturn]] inline void throw_errno() { throw SystemError{errno}; }

// A file descriptor that closes itself.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~Descriptor() { reset(); }

    void reset() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }

private:
    int fd_ = -1;
};

// A mapping that unmaps itself.
class Mapping {
public:
    Mapping() = default;
    Mapping(void* address, size_t length) : address_(address), length_(length) {}
    Mapping(Mapping&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        if (this != &other) {
            reset();
            address_ = std::exchange(other.address_, nullptr);
            length_ = std::exchange(other.length_, 0);
        }
        return *this;
    }
    ~Mapping() { reset(); }

    static Mapping shared(int fd, size_t length, uint64_t offset) {
        void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                               static_cast<off_t>(offset));
        if (address == MAP_FAILED) throw_errno();
        return Mapping(address, length);
    }
    static Mapping anonymous(size_t length) {
        void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED) throw_errno();
        return Mapping(address, length);
    }

    void reset() {
        if (address_) ::munmap(address_, length_);
        address_ = nullptr;
        length_ = 0;
    }
    char* data() const { return static_cast<char*>(address_); }
    size_t size() const { return length_; }

private:
    void* address_ = nullptr;
    size_t length_ = 0;
};

// Threads begun while this lives meet no signals but those of their own faults: the kernel starts no helper
// of io_uring for a thread that has a signal waiting, and drops the transfer.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t blocked;
        ::sigfillset(&blocked);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
            ::sigdelset(&blocked, own);
        ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

inline uint64_t round_down(uint64_t value, uint64_t step) { return value - value % step; }
inline uint64_t round_up(uint64_t value, uint64_t step) { return round_down(value + step - 1, step); }

}  // namespace ds_aio
