// Numbered tasks on a few threads.
#pragma once

#include <cstdint>
#include <functional>

namespace ds {

// Runs task(0) .. task(count - 1) on up to `threads` threads, the calling one among them; returns
// when all have run. Threads take the next task as they get free. Tasks must not throw.
//
// The other threads are the process's own team: they stay asleep between calls, since a new thread
// can take milliseconds to find a free processor. Calls from several threads take turns.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& task);

}  // namespace ds
