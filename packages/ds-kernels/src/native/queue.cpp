#include "queue.h"

#include <unistd.h>

#include <utility>

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

bool Queue::is_mine() const { return owner_ == getpid(); }

Queue::~Queue() {
  if (thread_.joinable() && !is_mine()) {
    thread_.detach();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Ticket> Queue::submit(std::function<void()> work) {
  auto ticket = std::make_shared<Ticket>();
  std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable() && !is_mine()) thread_.detach();
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { serve(); });
    owner_ = getpid();
  }
  items_.push_back({std::move(work), ticket});
  changed_.notify_all();
  return ticket;
}

void Queue::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item.work();
    item.ticket->finish();
    lock.lock();
  }
}

}  // namespace ds
