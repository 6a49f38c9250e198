// Threads that serve requests in the order they came, each through its own queue.
#pragma once

#include <deque>
#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "linux_aio.hpp"
#include "prefault.hpp"
#include "uring.hpp"
#include "worker.hpp"

namespace ds_aio {

enum class Backend { io_uring, linux_aio, threads };

inline std::unique_ptr<Queue> make_queue(Backend backend, unsigned depth) {
    switch (backend) {
        case Backend::io_uring: return std::make_unique<UringQueue>(depth);
        case Backend::linux_aio: return std::make_unique<LinuxAioQueue>(depth);
        default: return std::make_unique<PlainQueue>();
    }
}

class Engine {
public:
    Engine(Backend backend, const Settings& settings, unsigned num_threads, const Faults& faults)
        : backend_(backend), settings_(settings), faults_(faults), process_(::getpid()) {
        try {
            start(num_threads);
        } catch (const std::system_error& error) {  // no more threads
            close();
            throw SystemError{error.code().value()};
        } catch (...) {
            close();
            throw;
        }
    }
    ~Engine() { close(); }

    // Ends after the requests under way are done.
    void close() {
        // A forked child has this object but none of its threads.
        if (!alive_here()) return;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
        prefault_.close();
    }

    bool alive_here() const { return process_ == ::getpid(); }
    bool stopping() const {
        std::lock_guard<std::mutex> lock(mutex_);
        return stopping_;
    }
    const Faults& faults() const { return faults_; }

    void submit(const std::shared_ptr<Job>& job) {
        if (job->finished()) return;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (stopping_) throw std::runtime_error("this engine is closed");
            prefault_.begin(job);
            waiting_.push_back(job);
        }
        wake_.notify_one();
    }

    // Does a short request in the calling thread when nothing else is under way.
    bool try_here(const std::shared_ptr<Job>& job) {
        if (job->finished()) return true;
        if (job->total() > settings_.block_size || job->total() > kLargestBounce) return false;
        std::unique_lock<std::mutex> turn(here_mutex_, std::try_to_lock);
        if (!turn) return false;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!waiting_.empty() || num_flying_ != 0) return false;
        }
        if (!here_) here_ = std::make_unique<Worker>(std::make_unique<PlainQueue>(), settings_, 1, faults_);
        prepare(*job);
        while (!job->finished()) {
            here_->start(claim(job, here_->plan(*job)));
            here_->submit();
            here_->reap(1);
        }
        return true;
    }

private:
    void start(unsigned num_threads) {
        const SignalsBlocked blocked;
        std::vector<std::future<void>> begun;
        for (unsigned i = 0; i < num_threads; ++i) {
            std::promise<void> promise;
            begun.push_back(promise.get_future());
            threads_.emplace_back([this, p = std::move(promise)]() mutable { serve(std::move(p)); });
        }
        for (std::future<void>& future : begun) future.get();
    }

    enum class Fed { end, more, full };

    unsigned queue_depth() const { return backend_ == Backend::threads ? 1 : settings_.queue_depth; }

    // A queue is made by the thread that uses it; a refusal of the kernel is told to the constructor.
    void serve(std::promise<void> begun) {
        std::unique_ptr<Worker> made;
        try {
            made = std::make_unique<Worker>(make_queue(backend_, queue_depth()), settings_, queue_depth(), faults_);
        } catch (...) {
            begun.set_exception(std::current_exception());
            return;
        }
        begun.set_value();
        Worker& worker = *made;
        for (Fed fed = feed(worker); fed != Fed::end; fed = feed(worker)) {
            const size_t before = worker.flying();
            if (before == 0) continue;
            if (settings_.overlap_events) {
                worker.step(fed == Fed::full);
            } else {
                worker.reap(before);
            }
            num_flying_ -= before - worker.flying();
        }
    }

    // Takes what there is room for. Waits for work only when nothing is under way.
    Fed feed(Worker& worker) {
        const uint64_t batch = std::max(settings_.block_size, kBatchBytes);
        uint64_t bytes = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        if (worker.flying() == 0) {
            wake_.wait(lock, [this] { return next_job() || (stopping_ && waiting_.empty()); });
            if (waiting_.empty()) return Fed::end;
        }
        while (const std::shared_ptr<Job> job = next_job()) {
            if (job->stage == Job::Stage::fresh) {
                job->stage = Job::Stage::preparing;
                lock.unlock();
                prepare(*job);
                lock.lock();
                job->stage = Job::Stage::ready;
                wake_.notify_all();
                continue;
            }
            const Piece piece = worker.plan(*job);
            if (!worker.can_take(piece)) break;
            ++num_flying_;
            Worker::Taken taken = claim(job, piece);
            const bool others = threads_.size() > 1 && next_job();
            lock.unlock();
            if (others) wake_.notify_one();
            const bool copies = piece.bounce && taken.job->kind == Kind::write;
            worker.start(std::move(taken));
            bytes += piece.length;
            if (settings_.single_submit || bytes >= batch) {
                // The device begins while the next pieces are prepared.
                worker.submit();
                if (settings_.overlap_events && copies) return Fed::more;
                bytes = 0;
            }
            lock.lock();
        }
        lock.unlock();
        worker.submit();
        return Fed::full;
    }

    // The first request that has pieces to give away. Called with the mutex held.
    std::shared_ptr<Job> next_job() {
        for (auto it = waiting_.begin(); it != waiting_.end();) {
            Job& job = **it;
            if (job.stage == Job::Stage::preparing) {
                ++it;
            } else if (job.exhausted() || job.failed()) {
                it = waiting_.erase(it);
            } else {
                return *it;
            }
        }
        return nullptr;
    }

    static Worker::Taken claim(const std::shared_ptr<Job>& job, const Piece& piece) {
        Worker::Taken taken{job, job->offset(), job->spot(), piece};
        job->advance(piece.length);
        return taken;
    }

    // Gives a file its new length before direct writes, which could not overlap while each lengthens it.
    static void prepare(Job& job) {
        const File& file = *job.file;
        if (job.kind != Kind::write || !file.uses_direct() || !file.regular() || job.total() < file.cut())
            return;
        try {
            std::lock_guard<std::mutex> lock(job.file->length_mutex());
            const uint64_t size = file.size();
            if (job.end() <= size) return;
            job.length_before = size;
            job.lengthened = true;
            // From behind: where room cannot be reserved, the last byte gives the length at once.
            for (auto range = job.ranges().rbegin(); range != job.ranges().rend(); ++range)
                if (range->length && range->offset + range->length > size) reserve(file, *range);
        } catch (const SystemError& error) {
            job.refuse(error.number, job.offset());
        }
    }

    static void reserve(const File& file, const Range& range) {
        int answer;
        do
            answer = ::fallocate(file.plain(), 0, static_cast<off_t>(range.offset),
                                 static_cast<off_t>(range.length));
        while (answer != 0 && errno == EINTR);
        if (answer == 0) return;
        const int number = errno;
        if (number != EOPNOTSUPP && number != ENOSYS && number != EINVAL) throw SystemError{number};
        // Not by ftruncate: another process may make the file longer at this very moment.
        if (file.size() < range.offset + range.length) file.touch(range.offset + range.length - 1);
    }

    static constexpr uint64_t kBatchBytes = 256u << 10;

    const Backend backend_;
    const Settings settings_;
    const Faults faults_;
    const pid_t process_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<Job>> waiting_;
    bool stopping_ = false;
    std::atomic<size_t> num_flying_{0};
    std::vector<std::thread> threads_;
    Prefault prefault_;
    std::mutex here_mutex_;
    std::unique_ptr<Worker> here_;
};

}  // namespace ds_aio
