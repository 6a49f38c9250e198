#include "queue.h"

#include <unistd.h>

#include <utility>

#include "signals.h"

namespace ds {

void Ticket::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool Ticket::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void Ticket::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

Queue::~Queue() {
  // In a forked child there is nobody to end, and to destroy what a thread waited on never ends.
  if (!line_ || owner_ != getpid()) return;
  {
    std::lock_guard<std::mutex> lock(line_->mutex);
    line_->closing = true;
  }
  line_->changed.notify_all();
  line_->thread.join();
  delete line_;
}

std::shared_ptr<Ticket> Queue::submit(std::function<void()> work) {
  auto ticket = std::make_shared<Ticket>();
  Line& to = line();
  std::lock_guard<std::mutex> lock(to.mutex);
  to.items.push_back({std::move(work), ticket});
  to.changed.notify_all();
  return ticket;
}

Queue::Line& Queue::line() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!line_ || owner_ != getpid()) {
    const SignalsBlocked blocked;
    auto fresh = std::make_unique<Line>();
    fresh->thread = std::thread([line = fresh.get()] { line->serve(); });
    line_ = fresh.release();
    owner_ = getpid();
  }
  return *line_;
}

void Queue::Line::serve() {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return closing || !items.empty(); });
    if (items.empty()) return;
    Item item = std::move(items.front());
    items.pop_front();
    lock.unlock();
    item.work();
    item.ticket->finish();
    lock.lock();
  }
}

}  // namespace ds
