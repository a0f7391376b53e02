// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/calls.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "standin/standin.hpp"

namespace standin {

namespace {

struct Plan {
  int code = 0;
  int after = 0;
  bool always = false;
};

struct Calls {
  std::mutex mutex;
  std::map<std::string, std::size_t> counts;
  std::map<std::pair<std::thread::id, std::string>, std::size_t> counts_of_threads;
  std::map<std::string, Plan> plans;
  std::set<std::string> hanging;
  std::condition_variable none_hangs;
};

Calls& all() {
  static auto* calls = new Calls;  // streams may still run when a program's other objects are gone
  return *calls;
}

void plan(const char* function, Plan what) {
  const std::lock_guard lock(all().mutex);
  all().plans[function] = what;
}

thread_local const char* called_here = "";

}  // namespace

void forbid_destroyed(const char* what, bool was_there) {
  if (!was_there) return;
  std::fprintf(stderr, "stand-in: %s uses a destroyed %s\n", called_here, what);
  std::abort();
}

std::optional<int> counted(const char* function) {
  if (function != host_wait) called_here = function;
  std::unique_lock lock(all().mutex);
  ++all().counts[function];
  ++all().counts_of_threads[{std::this_thread::get_id(), function}];
  all().none_hangs.wait(lock, [&] { return !all().hanging.contains(function); });
  const auto found = all().plans.find(function);
  if (found == all().plans.end() || found->second.after-- > 0) return std::nullopt;
  found->second.after = 0;
  const int code = found->second.code;
  if (!found->second.always) all().plans.erase(found);
  return code;
}

std::size_t calls(const char* function) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().counts.find(function);
  return found == all().counts.end() ? 0 : found->second;
}

std::size_t calls_here(const char* function) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().counts_of_threads.find({std::this_thread::get_id(), function});
  return found == all().counts_of_threads.end() ? 0 : found->second;
}

std::size_t cuda_calls_here() {
  const std::lock_guard lock(all().mutex);
  std::size_t sum = 0;
  for (const auto& [key, count] : all().counts_of_threads)
    if (key.first == std::this_thread::get_id() && key.second.starts_with("cuda")) sum += count;
  return sum;
}

std::size_t host_waits() { return calls(host_wait); }

void fail_next(const char* function, cudaError_t code, int after) { plan(function, {static_cast<int>(code), after}); }
void fail_next(const char* function, ncclResult_t code, int after) { plan(function, {static_cast<int>(code), after}); }
void fail_next(const char* function, cublasStatus_t code, int after) {
  plan(function, {static_cast<int>(code), after});
}
void fail_always(const char* function, cudaError_t code) { plan(function, {static_cast<int>(code), 0, true}); }
void fail_always(const char* function, ncclResult_t code) { plan(function, {static_cast<int>(code), 0, true}); }
void hang(const char* function) {
  const std::lock_guard lock(all().mutex);
  all().hanging.insert(function);
}
void hang_no_more() {
  const std::lock_guard lock(all().mutex);
  all().hanging.clear();
  all().none_hangs.notify_all();
}
void fail_never() {
  const std::lock_guard lock(all().mutex);
  all().plans.clear();
}

}  // namespace standin
