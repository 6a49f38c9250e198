#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace ds {

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(i);
  };
  const auto extra = std::min<std::int64_t>(threads, count) - 1;
  std::vector<std::thread> team;
  for (std::int64_t i = 0; i < extra; ++i) {
    try {
      team.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // the process may have no more threads: those that run share the work
    }
  }
  work();
  for (auto& thread : team) thread.join();
}

}  // namespace ds
