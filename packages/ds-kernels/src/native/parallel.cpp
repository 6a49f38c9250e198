#include "parallel.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace ds {
namespace {

using Task = std::function<void(std::int64_t)>;

class Team {
 public:
  void run(std::int64_t count, int extra, const Task& task) {
    std::lock_guard<std::mutex> turn(turn_);
    grow(extra);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      next_ = 0;
      count_ = count;
      task_ = &task;
      wanted_ = extra;
      ++round_;
    }
    start_.notify_all();
    work(task, count);
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0;  // who has not woken yet need not come any more
    finished_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void grow(int extra) {
    try {
      for (; size_ < extra; ++size_) std::thread([this, me = size_] { serve(me); }).detach();
    } catch (const std::system_error&) {
      // The process may have no more threads: those that exist share the work.
    }
  }

  void serve(int me) {
    std::uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return round_ != seen && me < wanted_; });
      seen = round_;
      ++running_;
      const Task* task = task_;
      const std::int64_t count = count_;
      lock.unlock();
      work(*task, count);
      lock.lock();
      if (--running_ == 0) finished_.notify_all();
    }
  }

  void work(const Task& task, std::int64_t count) {
    for (std::int64_t i = next_.fetch_add(1); i < count; i = next_.fetch_add(1)) task(i);
  }

  std::mutex turn_;  // one run at a time
  std::mutex mutex_;
  std::condition_variable start_, finished_;
  std::atomic<std::int64_t> next_{0};
  const Task* task_ = nullptr;
  std::int64_t count_ = 0;
  std::uint64_t round_ = 0;
  int size_ = 0, wanted_ = 0, running_ = 0;
};

// The team lives as long as the process; a forked child, which has none of its threads, gets a new
// one.
Team& team() {
  static std::mutex mutex;
  static Team* current = nullptr;
  static pid_t owner = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (!current || owner != getpid()) {
    current = new Team;
    owner = getpid();
  }
  return *current;
}

}  // namespace

void parallel_for(std::int64_t count, int threads, const Task& task) {
  const auto extra = static_cast<int>(std::min<std::int64_t>(threads, count) - 1);
  if (extra > 0) {
    team().run(count, extra, task);
  } else {
    for (std::int64_t i = 0; i < count; ++i) task(i);
  }
}

}  // namespace ds
