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
// A forked child has the queue but not its thread, nor what that thread holds: it starts anew.
class Queue {
 public:
  Queue() = default;
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  std::shared_ptr<Ticket> submit(std::function<void()> work);

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<Ticket> ticket;
  };
  struct Line {
    void serve();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    bool closing = false;
    std::thread thread;
  };
  Line& line();

  std::mutex mutex_;
  Line* line_ = nullptr;
  int owner_ = 0;  // the process of the line
};

}  // namespace ds
