// An open file: a plain descriptor, a direct one where possible, and the alignment direct I/O needs.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>
#include <atomic>
#include <mutex>
#include <string>

#include "faults.hpp"
#include "memory.hpp"
#include "system.hpp"

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000U
#endif
#ifndef RAMFS_MAGIC
#define RAMFS_MAGIC 0x858458f6
#endif

namespace ds_aio {

constexpr uint32_t kLargestAlignment = 65536;

struct Alignment {
    uint32_t memory = 0;  // 0: no direct I/O
    uint32_t offset = 0;
    std::string reason;   // why there is no direct I/O, or where the numbers come from
};

// The kernel's struct statx up to the fields added in Linux 6.1, which older headers lack.
struct StatxDio {
    unsigned char head[0x98];
    uint32_t memory, offset;
    unsigned char rest[256 - 0xa0];
};

inline Alignment ask_alignment(int fd) {
    alignas(8) struct statx raw {};
    static_assert(sizeof(raw) == 256 && sizeof(StatxDio) == 256, "struct statx has 256 bytes");
    if (::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &raw) == 0 &&
        (raw.stx_mask & STATX_DIOALIGN)) {
        StatxDio dio;
        static_assert(sizeof(dio) == sizeof(raw), "");
        std::copy_n(reinterpret_cast<const unsigned char*>(&raw), sizeof(raw),
                    reinterpret_cast<unsigned char*>(&dio));
        if (dio.memory == 0 || dio.offset == 0)
            return {0, 0, "the file system has no direct I/O for this file"};
        if (std::max(dio.memory, dio.offset) > kLargestAlignment)
            return {0, 0, "direct I/O would need an alignment above 65536"};
        return {dio.memory, dio.offset, "statx"};
    }
    struct statfs fs {};
    if (::fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
        return {0, 0, "the file system lives in memory"};
    return {4096, 4096, "assumed, the kernel does not tell"};
}

class File {
public:
    // Opens for reading or for writing. Missing files are created when `create` is set.
    File(const std::string& path, bool write, bool create, bool truncate, bool direct,
         const Faults& faults) {
        struct stat before {};
        if (::stat(path.c_str(), &before) == 0 && !acceptable(before.st_mode))
            throw SystemError{S_ISDIR(before.st_mode) ? EISDIR : ESPIPE};
        int access = write ? O_RDWR : O_RDONLY;
        const int extra = (create ? O_CREAT : 0) | (truncate ? O_TRUNC : 0);
        plain_ = open_retrying(path, access | extra);
        if (!plain_ && write && errno == EACCES) {
            access = O_WRONLY;
            plain_ = open_retrying(path, access | extra);
        }
        if (!plain_) throw_errno();
        struct stat info {};
        if (::fstat(plain_.get(), &info) != 0) throw_errno();
        if (!acceptable(info.st_mode)) throw SystemError{S_ISDIR(info.st_mode) ? EISDIR : ESPIPE};
        regular_ = S_ISREG(info.st_mode);
        device_ = info.st_dev;
        cut_ = std::max<uint64_t>(kPage, std::min<uint64_t>(info.st_blksize, kLargestAlignment));
        if (cut_ & (cut_ - 1)) cut_ = kLargestAlignment;
        open_direct(path, access, direct, info, faults);
    }

    int plain() const { return plain_.get(); }
    int direct() const { return direct_.get(); }
    bool uses_direct() const { return direct_ && !refused_.load(std::memory_order_relaxed); }
    void refuse_direct() { refused_.store(true, std::memory_order_relaxed); }
    bool refused() const { return refused_.load(std::memory_order_relaxed); }
    const Alignment& alignment() const { return alignment_; }
    // Direct writes begin and end at multiples of this, so that no page holds both cached and direct bytes.
    uint64_t cut() const { return cut_; }
    bool regular() const { return regular_; }
    uint64_t device() const { return device_; }
    std::mutex& length_mutex() { return length_mutex_; }

    uint64_t size() const {
        struct stat info {};
        if (::fstat(plain_.get(), &info) != 0) throw_errno();
        return static_cast<uint64_t>(info.st_size);
    }
    void sync(bool data_only) const {
        while ((data_only ? ::fdatasync(plain_.get()) : ::fsync(plain_.get())) != 0)
            if (errno != EINTR) throw_errno();
    }
    void truncate(uint64_t length) const {
        while (::ftruncate(plain_.get(), static_cast<off_t>(length)) != 0)
            if (errno != EINTR) throw_errno();
    }
    // Writes a zero at `offset`, which never makes the file shorter.
    void touch(uint64_t offset) const {
        const char zero = 0;
        while (::pwrite(plain_.get(), &zero, 1, static_cast<off_t>(offset)) != 1)
            if (errno != EINTR) throw_errno();
    }
    // Lets go of the descriptors early. Only when no transfer uses them.
    void close() {
        plain_.reset();
        direct_.reset();
    }

private:
    static bool acceptable(mode_t mode) { return S_ISREG(mode) || S_ISBLK(mode); }

    static Descriptor open_retrying(const std::string& path, int flags) {
        int fd;
        do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
        while (fd < 0 && errno == EINTR);
        return Descriptor(fd);
    }

    void open_direct(const std::string& path, int access, bool wanted, const struct stat& info,
                     const Faults& faults) {
        if (!wanted) {
            alignment_.reason = "not asked for";
            return;
        }
        alignment_ = ask_alignment(plain_.get());
        if (faults.report_alignment)
            alignment_ = {faults.report_alignment, faults.report_alignment, "forced"};
        if (alignment_.memory == 0) return;
        if (faults.refuse_open) {
            errno = EINVAL;
        } else {
            direct_ = open_retrying(path, access | O_DIRECT);
        }
        if (!direct_) {
            alignment_ = {0, 0, std::string("open with O_DIRECT answers ") + strerror_of(errno)};
            return;
        }
        struct stat again {};
        // Another file may have taken the name between the two opens.
        if (::fstat(direct_.get(), &again) != 0 || again.st_ino != info.st_ino ||
            again.st_dev != info.st_dev) {
            direct_.reset();
            alignment_ = {0, 0, "the file was replaced while it was opened"};
            return;
        }
        cut_ = std::max<uint64_t>(cut_, alignment_.offset);
    }

    static std::string strerror_of(int number) {
        char text[128] = "";
        return ::strerror_r(number, text, sizeof text);
    }

    Descriptor plain_;
    Descriptor direct_;
    Alignment alignment_;
    uint64_t cut_ = kPage;
    uint64_t device_ = 0;
    bool regular_ = true;
    std::atomic<bool> refused_{false};
    std::mutex length_mutex_;
};

}  // namespace ds_aio
