// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/kernel.hpp"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "standin/device.hpp"
#include "standin/fiber.hpp"
#include "standin/runtime.hpp"

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit uint3 blockDim{};
thread_local constinit uint3 gridDim{};

// The initial values of `__shared__` variables, whose place in them is that of the variables in a thread's memory.
extern "C" {
extern const char __start_standin_shared[] __attribute__((weak));
extern const char __stop_standin_shared[] __attribute__((weak));
}

namespace standin {

namespace {

/// This thread's `__shared__` variables.
struct Shared {
  char* begin = nullptr;
  std::size_t size = 0;
};
int find_shared(dl_phdr_info* info, std::size_t, void* result) {
  const auto start = reinterpret_cast<std::uintptr_t>(__start_standin_shared);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type != PT_TLS || start < begin || start >= begin + header.p_memsz) continue;
    *static_cast<Shared*>(result) = {static_cast<char*>(info->dlpi_tls_data) + (start - begin),
                                     static_cast<std::size_t>(__stop_standin_shared - __start_standin_shared)};
    return 1;
  }
  return 0;
}
/// A block finds nothing of an earlier block's in the memory that its threads share.
void poison_shared() {
  static thread_local const Shared shared = [] {
    Shared found;
    if (__start_standin_shared != nullptr) dl_iterate_phdr(find_shared, &found);
    return found;
  }();
  if (shared.size > 0) std::memset(shared.begin, 0xCB, shared.size);
}

std::atomic<int> wanted_order{-1};
std::atomic<unsigned> launches{0};

/// 0 … count - 1 in an order.
std::vector<std::size_t> ordered(std::size_t count, Order order, unsigned seed) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order == Order::reverse) std::reverse(all.begin(), all.end());
  if (order == Order::random) std::shuffle(all.begin(), all.end(), std::minstd_rand(seed + 1));
  return all;
}

constexpr unsigned lanes_of_warp = 32;

/// A thread of a block, as far as it has begun and not ended.
struct Thread {
  enum class State { not_begun, runs, waits_for_block, waits_for_warp, ended };

  State state = State::not_begun;
  uint3 index{};
  Fiber* fiber = nullptr;
  unsigned mask = 0;
  Exchange* exchange = nullptr;
};

/// Runs the threads of a block, on as few fibers as there are threads that wait for others at one time.
class Block {
 public:
  Block(uint3 size, const std::function<void()>& body, const std::vector<std::size_t>& order)
      : body_(body), order_(order), threads_(order.size()), rank_(order.size()), size_(size) {
    for (std::size_t i = 0; i < order.size(); ++i) rank_[order[i]] = i;
  }

  void run() {
    while (!stopped_ && begun_ < threads_.size()) {
      Fiber& fiber = free_fiber();
      fiber.begin([&] { run_threads(fiber); });
      fiber.resume();
      if (fiber.ended()) free_.push_back(&fiber);
    }
    while (!stopped_ && ended_ < threads_.size()) {
      bool any = release_warps();
      if (!any) any = release_block();
      if (!any && !stopped_) {
        std::fprintf(stderr, "stand-in: the threads of a kernel wait for one another for ever\n");
        std::abort();
      }
    }
  }

  void wait(Thread::State what, unsigned mask, Exchange* mine) {
    Thread& self = threads_[current_];
    self.state = what;
    self.mask = mask;
    self.exchange = mine;
    self.fiber->pause();
  }

  /// Called by a thread: none of the block's threads continues.
  [[noreturn]] void stop() {
    stopped_ = true;
    while (true) threads_[current_].fiber->pause();
  }

  [[nodiscard]] unsigned lane() const { return static_cast<unsigned>(current_ % lanes_of_warp); }

 private:
  /// One fiber runs one thread after the other, until one of them has to wait.
  void run_threads(Fiber& fiber) {
    while (begun_ < threads_.size()) {
      const std::size_t mine = order_[begun_++];
      Thread& self = threads_[mine];
      const auto number = static_cast<unsigned>(mine);
      self.index = {number % size_.x, number / size_.x % size_.y, number / size_.x / size_.y};
      self.fiber = &fiber;
      enter(mine);
      body_();
      self.state = Thread::State::ended;
      ++ended_;
    }
  }

  void enter(std::size_t thread) {
    current_ = thread;
    threads_[thread].state = Thread::State::runs;
    threadIdx = threads_[thread].index;
  }

  void go_on(std::size_t thread) {
    if (stopped_) return;
    Fiber& fiber = *threads_[thread].fiber;
    enter(thread);
    fiber.resume();
    if (fiber.ended()) free_.push_back(&fiber);
  }

  bool release_block() {
    for (const Thread& thread : threads_)
      if (thread.state != Thread::State::waits_for_block && thread.state != Thread::State::ended) return false;
    // Resumed threads may reach the next barrier, so all threads to resume are collected first.
    std::vector<std::size_t> all;
    for (const std::size_t thread : order_)
      if (threads_[thread].state == Thread::State::waits_for_block) all.push_back(thread);
    for (const std::size_t thread : all) go_on(thread);
    return !all.empty();
  }

  bool release_warps() {
    bool any = false;
    for (std::size_t first = 0; first < threads_.size(); first += lanes_of_warp)
      while (release_lanes(first)) any = true;
    return any;
  }

  /// Resumes lanes of a warp if all lanes of their mask are waiting.
  bool release_lanes(std::size_t first) {
    if (stopped_) return false;
    const std::size_t count = std::min<std::size_t>(lanes_of_warp, threads_.size() - first);
    for (std::size_t lane = 0; lane < count; ++lane) {
      if (threads_[first + lane].state != Thread::State::waits_for_warp) continue;
      const unsigned mask = threads_[first + lane].mask;
      std::vector<std::size_t> group;
      bool complete = true;
      for (std::size_t other = 0; other < count; ++other) {
        const Thread& thread = threads_[first + other];
        if ((mask >> other & 1U) == 0 || thread.state == Thread::State::ended) continue;
        if (thread.state == Thread::State::waits_for_warp && thread.mask == mask)
          group.push_back(first + other);
        else
          complete = false;
      }
      if (!complete) continue;
      exchange_among(first, group);
      for (const std::size_t thread : in_order(std::move(group))) go_on(thread);
      return true;
    }
    return false;
  }

  /// Threads in the block's order.
  [[nodiscard]] std::vector<std::size_t> in_order(std::vector<std::size_t> threads) const {
    std::sort(threads.begin(), threads.end(), [&](std::size_t a, std::size_t b) { return rank_[a] < rank_[b]; });
    return threads;
  }

  void exchange_among(std::size_t first, const std::vector<std::size_t>& group) {
    std::array<std::array<unsigned char, 16>, lanes_of_warp> values{};
    unsigned present = 0;
    unsigned lanes = 0;
    for (const std::size_t thread : group) {
      const auto lane = static_cast<unsigned>(thread - first);
      values[lane] = threads_[thread].exchange->value;
      present |= 1U << lane;
      if (values[lane][0] != 0) lanes |= 1U << lane;
    }
    for (const std::size_t thread : group) {
      Exchange& mine = *threads_[thread].exchange;
      mine.lanes = lanes;
      // A lane that does not take part has no value: reading it is undefined on a GPU, and gives poison here.
      if (mine.source < lanes_of_warp && (present >> mine.source & 1U) != 0)
        mine.value = values[mine.source];
      else
        mine.value.fill(0xCB);
    }
  }

  Fiber& free_fiber() {
    if (free_.empty()) {
      static thread_local std::vector<std::unique_ptr<Fiber>> all;
      if (used_ == all.size()) all.push_back(std::make_unique<Fiber>());
      return *all[used_++];
    }
    Fiber& fiber = *free_.back();
    free_.pop_back();
    return fiber;
  }

  const std::function<void()>& body_;
  const std::vector<std::size_t>& order_;
  std::vector<Thread> threads_;
  std::vector<std::size_t> rank_;  // where in the order each thread is
  uint3 size_;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t current_ = 0;
  std::size_t used_ = 0;
  bool stopped_ = false;
  std::vector<Fiber*> free_;
};

thread_local Block* block = nullptr;

void run(uint3 grid, uint3 size, const std::function<void()>& body) {
  const unsigned number = launches.fetch_add(1);
  const int wanted = wanted_order.load();
  const Order order = wanted >= 0 ? static_cast<Order>(wanted) : static_cast<Order>(number % 3);
  gridDim = grid;
  blockDim = size;
  const auto threads = ordered(std::size_t{size.x} * size.y * size.z, order, number);
  for (const std::size_t index : ordered(std::size_t{grid.x} * grid.y * grid.z, order, number)) {
    const auto i = static_cast<unsigned>(index);
    blockIdx = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    poison_shared();
    Block now(size, body, threads);
    block = &now;
    now.run();
    if (gpu_failure() != cudaSuccess) break;
  }
  block = nullptr;
}

bool is_positive(const dim3& size) { return size.x > 0 && size.y > 0 && size.z > 0; }

}  // namespace

void thread_order(std::optional<Order> order) { wanted_order = order ? static_cast<int>(*order) : -1; }

cudaError_t end_gpu_failure() noexcept {
  const auto failure = gpu_failure();
  fail_gpu(cudaSuccess);
  return failure;
}

void wait_for_block() { block->wait(Thread::State::waits_for_block, 0, nullptr); }
void exchange(unsigned mask, Exchange& mine) { block->wait(Thread::State::waits_for_warp, mask, &mine); }
unsigned lane() { return block->lane(); }

cudaError_t launch(const cudaLaunchConfig_t* config, std::function<void()> thread) {
  return runtime_called("cudaLaunchKernelEx", [&] {
    require(config != nullptr, cudaErrorInvalidValue);
    const int device = current_device();
    const dim3 grid = config->gridDim;
    const dim3 size = config->blockDim;
    require(is_positive(grid) && is_positive(size), cudaErrorInvalidConfiguration);
    require(grid.x <= 2147483647U && grid.y <= 65535 && grid.z <= 65535, cudaErrorInvalidConfiguration);
    require(size.x <= 1024 && size.y <= 1024 && size.z <= 64, cudaErrorInvalidConfiguration);
    require(size.x * size.y * size.z <= 1024, cudaErrorInvalidConfiguration);
    require(config->dynamicSmemBytes <= (48U << 10), cudaErrorInvalidValue);
    const auto stream = stream_of(config->stream, device);
    require(stream->device == device, cudaErrorInvalidResourceHandle);
    enqueue(stream,
            [body = std::move(thread), grid, size] { run({grid.x, grid.y, grid.z}, {size.x, size.y, size.z}, body); });
  });
}

}  // namespace standin

using namespace standin;

/// What -fsanitize=alignment calls in kernels before an access whose address is not a multiple of its type's alignment,
/// which a GPU does not have. It is defined here instead of in the sanitizer's library, which replaces it where all of
/// the program is sanitized.
extern "C" [[gnu::weak]] void __ubsan_handle_type_mismatch_v1(void*, void*) {
  fail_gpu(cudaErrorMisalignedAddress);
  block->stop();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  // Compiled by nvcc: nothing here can run it.
  return runtime_called("cudaLaunchKernelExC", [] { fail(cudaErrorInvalidDeviceFunction); });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return runtime_called("cudaFuncGetAttributes", [&] {
    require(attributes != nullptr && function != nullptr, cudaErrorInvalidValue);
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
  });
}
