// Carries pieces of requests through one queue, and finishes by hand what the queue leaves undone.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "job.hpp"
#include "memory.hpp"
#include "queue.hpp"

namespace ds_aio {

// Few and small enough to stay in a cache: such slots are filled faster than the caller's own memory.
constexpr uint64_t kLargestBounce = 256u << 10;
constexpr uint64_t kArenaBytes = 16u << 20;

struct Settings {
    uint64_t block_size;
    unsigned queue_depth;
    bool single_submit;
    bool overlap_events;
};

class Worker {
public:
    Worker(std::unique_ptr<Queue> queue, const Settings& settings, unsigned depth, const Faults& faults)
        : queue_(std::move(queue)),
          settings_(settings),
          faults_(faults),
          depth_(depth),
          // What has arrived and waits for its copy does not count against the depth.
          flights_(depth + depth / 2),
          bounce_(std::min(std::max<uint64_t>(settings.block_size, kLargestAlignment), kLargestBounce)),
          arena_(round_up(bounce_, kLargestAlignment) + kLargestAlignment, arena_slots()) {
        for (size_t i = flights_.size(); i > 0; --i) free_.push_back(i - 1);
    }

    size_t flying() const { return flights_.size() - free_.size(); }
    bool has_room() const { return !free_.empty() && in_queue_ < depth_; }

    // The piece that would be taken next; its place in memory may be missing: see `can_take`.
    Piece plan(const Job& job) const {
        const File& file = *job.file;
        const Alignment& align = file.alignment();
        const bool direct = file.uses_direct();
        const uint64_t step = direct ? std::max<uint64_t>(file.cut(), align.offset) : 1;
        const Layout layout{direct, align.offset, align.memory, step,
                            std::max(round_up(settings_.block_size, step), step),
                            std::max(round_up(std::min(settings_.block_size, bounce_), step), step)};
        return next_piece(job.kind, layout, job.offset(), job.remaining(), job.address(), job.here());
    }
    bool can_take(const Piece& piece) const {
        return has_room() && (!piece.bounce || arena_.available());
    }

    struct Taken {
        std::shared_ptr<Job> job;
        uint64_t offset;
        Spot spot;
        Piece piece;
    };

    void start(Taken&& taken) {
        const size_t index = free_.back();
        free_.pop_back();
        Flight& f = flights_[index];
        f.taken = std::move(taken);
        f.bounce = f.taken.piece.bounce ? arena_.take() : nullptr;
        const Job& job = *f.taken.job;
        const Piece& piece = f.taken.piece;
        f.io_offset = f.taken.offset;
        f.io_length = piece.length;
        if (piece.direct && piece.bounce && job.kind == Kind::read) {
            const uint64_t step = job.file->alignment().offset;
            f.io_offset = round_down(f.taken.offset, step);
            f.io_length = round_up(f.taken.offset + piece.length, step) - f.io_offset;
        }
        if (f.bounce && job.kind == Kind::write) job.gather(f.taken.spot, f.bounce, piece.length);
        send(index);
    }

    void submit() { queue_->submit(); }

    // Finishes so many pieces.
    void reap(size_t count) {
        if (arrived_.size() < count) collect(count - arrived_.size());
        for (; count > 0 && !arrived_.empty(); --count) finish_next();
    }

    // One step on: hears from the device, waiting for it if there is nothing else to do, or finishes one
    // piece. A virtual disk may answer a whole queue at once and then idle, so that what has come free
    // must go back to it before all of that is copied.
    void step(bool wait) {
        const size_t before = arrived_.size();
        collect(wait && before == 0 ? 1 : 0);
        if (arrived_.size() > before && has_room()) return;
        if (!arrived_.empty()) finish_next();
    }

private:
    struct Flight {
        Taken taken;
        char* bounce = nullptr;
        uint64_t io_offset = 0;
        uint64_t io_length = 0;
    };

    size_t arena_slots() const {
        const uint64_t slots = kArenaBytes / (bounce_ + kLargestAlignment);
        return std::min<size_t>(flights_.size(), slots);
    }

    void collect(size_t at_least) {
        arrived_.insert(arrived_.end(), early_.begin(), early_.end());
        at_least -= std::min(at_least, early_.size());
        early_.clear();
        queue_->reap(at_least, results_);
        in_queue_ -= results_.size();
        arrived_.insert(arrived_.end(), results_.begin(), results_.end());
        results_.clear();
    }
    void finish_next() {
        const Result result = arrived_.front();
        arrived_.pop_front();
        complete(result);
    }

    void send(size_t index) {
        Flight& f = flights_[index];
        const Job& job = *f.taken.job;
        char* memory = f.bounce;
        if (!memory) {
            Spot spot = f.taken.spot;
            job.walk(spot, 1, [&memory](char* address, uint64_t) { memory = address; });
        }
        uint64_t length = f.io_length;
        const bool direct = f.taken.piece.direct;
        const int fault = faults_.meet(direct, reinterpret_cast<uintptr_t>(memory), f.io_offset, length);
        if (fault) {
            early_.push_back({index, -static_cast<int64_t>(fault)});
            return;
        }
        ++in_queue_;
        queue_->push({job.kind == Kind::write, direct ? job.file->direct() : job.file->plain(), memory,
                      static_cast<uint32_t>(length), f.io_offset, index});
    }

    void complete(const Result& result) {
        Flight& f = flights_[result.tag];
        Job& job = *f.taken.job;
        const Piece& piece = f.taken.piece;
        const uint64_t skipped = f.taken.offset - f.io_offset;
        uint64_t done = 0;
        int error = 0;
        bool by_hand = true;
        if (result.value >= 0) {
            const auto moved = static_cast<uint64_t>(result.value);
            done = std::min(moved > skipped ? moved - skipped : 0, piece.length);
            if (f.bounce && job.kind == Kind::read && done) job.scatter(f.taken.spot, f.bounce + skipped, done);
            by_hand = done < piece.length;
        } else {
            error = static_cast<int>(-result.value);
            if (piece.direct && (error == EINVAL || error == EOPNOTSUPP || error == ENOTBLK)) {
                job.file->refuse_direct();
            } else if (error != EINTR && error != EAGAIN && error != ECANCELED) {
                // Nobody here cancels: the kernel does, where it could not start a helper of its own.
                by_hand = false;
            }
        }
        if (f.bounce) arena_.give_back(f.bounce);
        bool ended = false;
        if (by_hand) {
            error = 0;
            finish_by_hand(f, done, error, ended);
        }
        const std::shared_ptr<Job> owner = std::move(f.taken.job);
        const uint64_t at = f.taken.offset + done;
        free_.push_back(result.tag);
        owner->piece_done(done, error, ended, at);
    }

    // Plain reads and writes until the piece is whole, the file ends or the kernel gives a reason.
    void finish_by_hand(const Flight& f, uint64_t& done, int& error, bool& ended) const {
        const Job& job = *f.taken.job;
        Spot spot = f.taken.spot;
        job.walk(spot, done, [](char*, uint64_t) {});
        const uint64_t start = done;
        job.walk(spot, f.taken.piece.length - start, [&](char* memory, uint64_t bytes) {
            while (bytes > 0 && !error && !ended) {
                const uint64_t moved = move_once(job, memory, bytes, f.taken.offset + done, error, ended);
                done += moved;
                memory += moved;
                bytes -= moved;
            }
        });
    }

    uint64_t move_once(const Job& job, char* memory, uint64_t bytes, uint64_t offset, int& error,
                       bool& ended) const {
        const int fault = faults_.meet(false, reinterpret_cast<uintptr_t>(memory), offset, bytes);
        ssize_t moved = -1;
        errno = fault;
        const int fd = job.file->plain();
        if (!fault)
            moved = job.kind == Kind::write ? ::pwrite(fd, memory, bytes, static_cast<off_t>(offset))
                                            : ::pread(fd, memory, bytes, static_cast<off_t>(offset));
        if (moved < 0 && errno != EINTR) error = errno;
        if (moved == 0) {
            ended = job.kind == Kind::read;
            if (!ended) error = EIO;
        }
        return moved > 0 ? static_cast<uint64_t>(moved) : 0;
    }

    std::unique_ptr<Queue> queue_;
    const Settings settings_;
    const Faults& faults_;
    const size_t depth_;
    std::vector<Flight> flights_;
    std::vector<size_t> free_;
    const uint64_t bounce_;
    Arena arena_;
    size_t in_queue_ = 0;
    std::vector<Result> results_;
    std::vector<Result> early_;
    std::deque<Result> arrived_;
};

}  // namespace ds_aio
