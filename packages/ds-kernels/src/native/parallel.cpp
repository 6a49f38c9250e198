#include "parallel.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

#include "signals.h"

namespace ds {
namespace {

using Task = std::function<void(std::int64_t)>;

class Team {
 public:
  void run(std::int64_t count, int extra, const Task& task) {
    std::lock_guard<std::mutex> turn(turn_);
    grow(extra);
    make_way(extra);
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
    if (size() >= extra) return;
    const SignalsBlocked blocked;
    try {
      while (size() < extra) {
        std::thread helper([this, me = size()] { serve(me); });
        helpers_.push_back({helper.native_handle()});
        helper.detach();
      }
    } catch (const std::system_error&) {
      // The process may have no more threads: those that exist share the work.
    }
  }

  // Keeps helpers off the caller's processor. Where processors share no cache, as in some virtual
  // machines, the scheduler may wake a helper behind the caller, and there it waits for
  // milliseconds while another processor is idle.
  void make_way([[maybe_unused]] int extra) {
#ifdef __linux__
    const int here = sched_getcpu();
    cpu_set_t others;
    int allowed = -1;
    for (int i = 0; i < std::min(extra, size()); ++i) {
      Helper& helper = helpers_[static_cast<std::size_t>(i)];
      if (helper.avoids == here) continue;
      if (allowed < 0) {
        if (pthread_getaffinity_np(pthread_self(), sizeof(others), &others)) return;
        allowed = CPU_COUNT(&others);
        if (here >= 0 && allowed > 1) CPU_CLR(here, &others);
      }
      if (allowed > 1) pthread_setaffinity_np(helper.handle, sizeof(others), &others);
      helper.avoids = here;
    }
#endif
  }

  int size() const { return static_cast<int>(helpers_.size()); }

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
  int wanted_ = 0, running_ = 0;

  struct Helper {
    std::thread::native_handle_type handle;
    int avoids = -1;  // a processor
  };
  std::vector<Helper> helpers_;  // they live as long as the process
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
