// Touches the memory of large requests ahead of the transfers.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "job.hpp"
#include "system.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ds_aio {

// New memory gets its pages when it is first touched, which can take longer than to read into it. Memory
// that is to be copied before it is written, and has been idle, may have to come back from a swap file
// or from the host of a virtual machine. Threads that walk ahead of the transfers do either meanwhile.
class Prefault {
public:
    ~Prefault() { close(); }

    void begin(const std::shared_ptr<Job>& job) {
        if (job->total() < kWorthwhile) return;
        const auto walk = std::make_shared<Walk>(job);
        const SignalsBlocked blocked;
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < most_threads_ && job->hold(); ++i) {
            try {
                if (threads_.size() <= i) threads_.emplace_back([this] { serve(); });
            } catch (const std::system_error&) {  // no more threads: the transfers do it themselves
                job->release();
                break;
            }
            walks_.push_back(walk);
        }
        wake_.notify_all();
    }
    void close() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

private:
    static constexpr uint64_t kWorthwhile = 16u << 20;
    static constexpr uint64_t kStep = kHugePage;

    // How far one request is touched, by all threads together.
    struct Walk {
        explicit Walk(const std::shared_ptr<Job>& walked) : job(walked) {
            uint64_t at = 0;
            for (const Segment& segment : job->segments()) {
                starts.push_back(at);
                at += segment.length;
            }
        }
        const std::shared_ptr<Job> job;
        std::vector<uint64_t> starts;  // of the segments, in the bytes of the request
        std::atomic<uint64_t> next{0};
    };

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [this] { return stopping_ || !walks_.empty(); });
            if (walks_.empty()) return;
            const std::shared_ptr<Walk> walk = std::move(walks_.front());
            walks_.pop_front();
            lock.unlock();
            while (step(*walk)) {}
            walk->job->release();
            lock.lock();
        }
    }

    // Touches what comes next, unless the transfers are there already; false at the end.
    static bool step(Walk& walk) {
        const Job& job = *walk.job;
        uint64_t next = walk.next.load(), begin;
        do {
            begin = std::max(next, job.taken());
            if (begin >= job.total() || job.failed()) return false;
        } while (!walk.next.compare_exchange_weak(next, begin + kStep));
        uint64_t left = std::min(kStep, job.total() - begin);
        const auto after = std::upper_bound(walk.starts.begin(), walk.starts.end(), begin);
        for (size_t i = static_cast<size_t>(after - walk.starts.begin()) - 1; left > 0; ++i) {
            const Segment& segment = job.segments()[i];
            const uint64_t within = begin - walk.starts[i];
            const uint64_t bytes = std::min(left, segment.length - within);
            touch(job, segment.address + within, bytes);
            begin += bytes;
            left -= bytes;
        }
        return true;
    }

    static void touch(const Job& job, char* memory, uint64_t bytes) {
        if (bytes == 0) return;
        if (job.kind == Kind::read) {
            populate(memory, bytes);
        } else if (job.file->uses_direct() &&
                   reinterpret_cast<uintptr_t>(memory) % job.file->alignment().memory != 0) {
            look(memory, bytes);  // what is copied; the device needs no page tables of ours
        }
    }

    static void populate(char* memory, uint64_t bytes) {
        const auto first = round_down(reinterpret_cast<uintptr_t>(memory), kPage);
        const uint64_t length = round_up(reinterpret_cast<uintptr_t>(memory) + bytes, kPage) - first;
        auto* const start = reinterpret_cast<void*>(first);
        std::array<unsigned char, kStep / kPage + 1> present;
        if (::mincore(start, length, present.data()) != 0) return;
        const auto* const end = present.data() + length / kPage;
        if (std::all_of<const unsigned char*>(present.data(), end, [](unsigned char page) { return page & 1; })) return;
        ::madvise(start, length, MADV_POPULATE_WRITE);
    }

    static void look(const char* memory, uint64_t bytes) {
        for (uint64_t at = 0; at < bytes; at += kPage)
            static_cast<void>(*static_cast<const volatile char*>(memory + at));
    }

    // The transfers need a core, too.
    const size_t most_threads_ = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 2);
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Walk>> walks_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace ds_aio
