// One request: file ranges, the memory they go to or come from, and how far the work is.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "copy.hpp"
#include "file.hpp"
#include "plan.hpp"

namespace ds_aio {

struct Segment {
    char* address;
    uint64_t length;
};

struct Range {
    uint64_t offset;
    uint64_t length;
};

// A place in the concatenation of a request's segments.
struct Spot {
    size_t segment = 0;
    uint64_t within = 0;
};

struct Outcome {
    uint64_t done = 0;
    int error = 0;          // errno; 0 with `ended` set: the file was too short
    bool ended = false;
    uint64_t offset = 0;    // where it went wrong
};

class Job {
public:
    // The ranges together are as long as the segments together.
    Job(Kind kind, std::shared_ptr<File> file, std::vector<Range> ranges, std::vector<Segment> segments)
        : kind(kind), file(std::move(file)), ranges_(std::move(ranges)), segments_(std::move(segments)) {
        for (const Range& range : ranges_) total_ += range.length;
        skip_empty();
        if (exhausted()) finished_ = true;
    }

    const Kind kind;
    const std::shared_ptr<File> file;

    // The cursor: guarded by the engine.
    bool exhausted() const { return range_ == ranges_.size(); }
    uint64_t offset() const { return ranges_[range_].offset + position_; }
    uint64_t remaining() const { return ranges_[range_].length - position_; }
    Spot spot() const { return spot_; }
    uintptr_t address() const {
        return reinterpret_cast<uintptr_t>(segments_[spot_.segment].address + spot_.within);
    }
    uint64_t here() const { return segments_[spot_.segment].length - spot_.within; }
    uint64_t total() const { return total_; }
    uint64_t end() const {
        uint64_t last = 0;
        for (const Range& range : ranges_)
            if (range.length) last = std::max(last, range.offset + range.length);
        return last;
    }
    const std::vector<Range>& ranges() const { return ranges_; }
    const std::vector<Segment>& segments() const { return segments_; }
    // How many bytes have been given away; anybody may ask.
    uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

    // Moves the cursor; the piece passed over is now somebody's to finish with `piece_done`.
    void advance(uint64_t length) {
        position_ += length;
        taken_.fetch_add(length, std::memory_order_relaxed);
        walk(spot_, length, [](char*, uint64_t) {});
        skip_empty();
        std::lock_guard<std::mutex> lock(mutex_);
        ++outstanding_;
        if (exhausted()) all_taken_ = true;
    }

    // Keeps the request from finishing, and so the memory from being let go, until `release`.
    bool hold() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!finished_) ++outstanding_;
        return !finished_;
    }
    void release() { piece_done(0, 0, false, 0); }

    void piece_done(uint64_t done, int error, bool ended, uint64_t at) {
        std::lock_guard<std::mutex> lock(mutex_);
        outcome_.done += done;
        if ((error || ended) && !failed_locked()) {
            outcome_.error = error;
            outcome_.ended = ended;
            outcome_.offset = at;
            all_taken_ = true;
        }
        --outstanding_;
        finish_if_complete();
    }
    // Gives up before any piece is taken.
    void refuse(int error, uint64_t at) {
        std::lock_guard<std::mutex> lock(mutex_);
        outcome_.error = error;
        outcome_.offset = at;
        all_taken_ = true;
        finish_if_complete();
    }
    bool failed() const {
        std::lock_guard<std::mutex> lock(mutex_);
        return failed_locked();
    }
    bool finished() const {
        std::lock_guard<std::mutex> lock(mutex_);
        return finished_;
    }
    bool wait_for(std::chrono::milliseconds time) const {
        std::unique_lock<std::mutex> lock(mutex_);
        return signal_.wait_for(lock, time, [this] { return finished_; });
    }
    void wait() const {
        std::unique_lock<std::mutex> lock(mutex_);
        signal_.wait(lock, [this] { return finished_; });
    }
    Outcome outcome() const {
        std::lock_guard<std::mutex> lock(mutex_);
        return outcome_;
    }

    // Visits `length` bytes of memory from `spot` on as (address, bytes) runs, moving the spot.
    template <typename Visit>
    void walk(Spot& spot, uint64_t length, Visit visit) const {
        while (length > 0) {
            const Segment& segment = segments_[spot.segment];
            const uint64_t bytes = std::min(length, segment.length - spot.within);
            visit(segment.address + spot.within, bytes);
            length -= bytes;
            spot.within += bytes;
            while (spot.segment < segments_.size() && spot.within == segments_[spot.segment].length)
                spot = {spot.segment + 1, 0};
        }
    }
    void gather(Spot spot, char* to, uint64_t length) const {
        walk(spot, length, [&to](char* from, uint64_t bytes) {
            std::memcpy(to, from, bytes);
            to += bytes;
        });
    }
    void scatter(Spot spot, const char* from, uint64_t length) const {
        // What is small may be used at once, and is better left in the caches.
        const bool large = total_ >= kLarge;
        walk(spot, length, [&from, large](char* to, uint64_t bytes) {
            if (large) {
                stream_copy(to, from, bytes);
            } else {
                std::memcpy(to, from, bytes);
            }
            from += bytes;
        });
    }

    // Set by the engine: the file length before a write made the file longer.
    uint64_t length_before = 0;
    bool lengthened = false;
    enum class Stage { fresh, preparing, ready } stage = Stage::fresh;

private:
    static constexpr uint64_t kLarge = 4u << 20;

    void skip_empty() {
        while (range_ < ranges_.size() && position_ == ranges_[range_].length) {
            ++range_;
            position_ = 0;
        }
        while (spot_.segment < segments_.size() && spot_.within == segments_[spot_.segment].length)
            spot_ = {spot_.segment + 1, 0};
    }
    bool failed_locked() const { return outcome_.error != 0 || outcome_.ended; }
    void finish_if_complete() {
        if (!all_taken_ || outstanding_ != 0 || finished_) return;
        if (failed_locked() && lengthened) shorten();
        finished_ = true;
        signal_.notify_all();
    }
    // A failed write takes back the length it added, never bytes before its own range.
    void shorten() {
        uint64_t first = ranges_.front().offset;
        for (const Range& range : ranges_) first = std::min(first, range.offset);
        std::lock_guard<std::mutex> lock(file->length_mutex());
        const uint64_t kept = std::min(std::max({length_before, first, kept_end()}), end());
        try {
            const uint64_t size = file->size();
            if (kept < size && size <= end()) file->truncate(kept);  // else others made it longer
        } catch (const SystemError&) {
            // The write's own error is the one to report.
        }
    }
    // With one range, everything before the first fault may have been written: keep up to it.
    uint64_t kept_end() const { return ranges_.size() == 1 ? outcome_.offset : 0; }

    std::vector<Range> ranges_;
    std::vector<Segment> segments_;
    uint64_t total_ = 0;
    size_t range_ = 0;
    uint64_t position_ = 0;
    std::atomic<uint64_t> taken_{0};
    Spot spot_;

    mutable std::mutex mutex_;
    mutable std::condition_variable signal_;
    uint64_t outstanding_ = 0;
    bool all_taken_ = false;
    bool finished_ = false;
    Outcome outcome_;
};

}  // namespace ds_aio
