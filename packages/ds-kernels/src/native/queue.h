// Work that runs in the background, one piece after the other, on one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace ds {

// A piece of work in flight.
class Ticket {
 public:
  void wait();
  bool done();

 private:
  friend class Queue;
  void finish();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// The thread starts with the first piece and ends with the queue, which first finishes what it has.
class Queue {
 public:
  Queue() = default;
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  std::shared_ptr<Ticket> submit(std::function<void()> work);

 private:
  bool is_mine() const;
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Ticket> ticket;
  };
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool closing_ = false;
  std::thread thread_;
  int owner_ = 0;  // the process that started the thread: a forked child has none
};

}  // namespace ds
