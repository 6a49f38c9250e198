// Gives the memory of large reads its pages while the first transfers are under way.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "job.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ds_aio {

// New memory gets its pages when it is first touched, which can take longer than to read into it. One
// thread walks from the end of a request towards the transfers, which touch what comes first.
class Prefault {
public:
    ~Prefault() { close(); }

    void begin(const std::shared_ptr<Job>& job) {
        if (job->kind != Kind::read || job->total() < kWorthwhile || !job->hold()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        try {
            if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
        } catch (const std::system_error&) {  // no more threads: the transfers do it themselves
            job->release();
            return;
        }
        jobs_.push_back(job);
        wake_.notify_one();
    }
    void close() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

private:
    static constexpr uint64_t kWorthwhile = 16u << 20;
    static constexpr uint64_t kStep = 4u << 20;

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            const std::shared_ptr<Job> job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            walk(*job);
            job->release();
            lock.lock();
        }
    }

    static void walk(const Job& job) {
        uint64_t before = job.total();
        const std::vector<Segment>& segments = job.segments();
        for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
            for (uint64_t left = segment->length; left > 0;) {
                const uint64_t bytes = std::min(left, kStep);
                left -= bytes;
                before -= bytes;
                if (job.taken() >= before || job.failed() || !populate(segment->address + left, bytes)) return;
            }
        }
    }

    // False when there is nothing to do: the memory has been used before, or the kernel does not know how.
    static bool populate(char* memory, uint64_t bytes) {
        const auto first = round_down(reinterpret_cast<uintptr_t>(memory), kPage);
        const uint64_t length = round_up(reinterpret_cast<uintptr_t>(memory) + bytes, kPage) - first;
        auto* const start = reinterpret_cast<void*>(first);
        std::vector<unsigned char> present(length / kPage);
        if (::mincore(start, length, present.data()) != 0) return false;
        if (std::all_of(present.begin(), present.end(), [](unsigned char page) { return page & 1; })) return false;
        return ::madvise(start, length, MADV_POPULATE_WRITE) == 0;
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Job>> jobs_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace ds_aio
