// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The thread that looks at what is in flight.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>

#include "distx/core/detail/wait.hpp"
#include "distx/core/detail/watch_thread.hpp"

namespace {

using namespace std::chrono_literals;
using distx::detail::WatchThread;

struct Purpose {
  static constexpr std::chrono::milliseconds interval{1};
};
struct OtherPurpose {
  static constexpr std::chrono::milliseconds interval{1};
};

template <class Ready>
bool comes(Ready&& ready) {
  return distx::detail::wait_until(60s, ready, [] { return false; }) == distx::detail::WaitEnd::ready;
}

/// Something to look at.
struct Work {
  std::atomic<bool> in_flight{false};
  std::atomic<int> looks{0};

  WatchThread::Look look() {
    return [this] { return ++looks, in_flight.load(); };
  }
};

TEST_CASE("a watch thread looks while anything is in flight, then sleeps until it is woken") {
  Work busy, idle;
  busy.in_flight = true;
  WatchThread thread(1ms, {});
  thread.add(&busy, busy.look());
  thread.add(&idle, idle.look());
  CHECK(comes([&] { return busy.looks > 200 && idle.looks > 200; }));

  busy.in_flight = false;
  int before = -1;  // it sleeps if it has not looked for far longer than its interval
  CHECK(comes([&] {
    before = idle.looks;
    const auto looks = [&] { return idle.looks != before; };
    return distx::detail::wait_until(500ms, looks, [] { return false; }) == distx::detail::WaitEnd::expired;
  }));
  thread.wake();
  CHECK(comes([&] { return idle.looks > before; }));
}

TEST_CASE("a removed function is not called any more, and an added one wakes the thread") {
  WatchThread thread(1ms, {});
  for (int round = 0; round < 20; ++round) {
    auto work = std::make_unique<Work>();  // a sanitizer finds a look after its end
    work->in_flight = round % 2 == 0;
    thread.add(work.get(), work->look());
    CHECK(comes([&] { return work->looks >= (work->in_flight ? 100 : 50); }));
    thread.remove(work.get());
  }
}

TEST_CASE("a process shares a watch thread for each purpose while anyone holds it") {
  auto one = WatchThread::shared<Purpose>({});
  CHECK(one == WatchThread::shared<Purpose>({}));
  CHECK(one != WatchThread::shared<OtherPurpose>({}));
  const std::weak_ptr<WatchThread> known = one;
  one.reset();
  CHECK(known.expired());
  CHECK(WatchThread::shared<Purpose>({}) != nullptr);
}

}  // namespace
