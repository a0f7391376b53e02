// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/kernel.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "standin/device.hpp"
#include "standin/fiber.hpp"
#include "standin/runtime.hpp"

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit uint3 blockDim{};
thread_local constinit uint3 gridDim{};

namespace standin {

namespace {

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
  Block(uint3 size, const std::function<void()>& body)
      : body_(body), threads_(std::size_t{size.x} * size.y * size.z), size_(size) {}

  void run() {
    while (begun_ < threads_.size()) {
      Fiber& fiber = free_fiber();
      fiber.begin([&] { run_threads(fiber); });
      fiber.resume();
      if (fiber.ended()) free_.push_back(&fiber);
    }
    while (ended_ < threads_.size()) {
      bool any = release_warps();
      if (!any) any = release_block();
      if (!any) {
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

  [[nodiscard]] unsigned lane() const { return static_cast<unsigned>(current_ % lanes_of_warp); }

 private:
  /// One fiber runs one thread after the other, until one of them has to wait.
  void run_threads(Fiber& fiber) {
    while (begun_ < threads_.size()) {
      const std::size_t mine = begun_++;
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
    Fiber& fiber = *threads_[thread].fiber;
    enter(thread);
    fiber.resume();
    if (fiber.ended()) free_.push_back(&fiber);
  }

  bool release_block() {
    for (const Thread& thread : threads_)
      if (thread.state != Thread::State::waits_for_block && thread.state != Thread::State::ended) return false;
    // Those that go on may come to the next barrier, so the ones to go on are known before.
    std::vector<std::size_t> all;
    for (std::size_t thread = 0; thread < threads_.size(); ++thread)
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

  /// Lets lanes of a warp go on of which all in their mask have come.
  bool release_lanes(std::size_t first) {
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
      for (const std::size_t thread : group) go_on(thread);
      return true;
    }
    return false;
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
      // A lane that brings nothing has no value: what it gives is undefined, and here is poison.
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
  std::vector<Thread> threads_;
  uint3 size_;
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::size_t current_ = 0;
  std::size_t used_ = 0;
  std::vector<Fiber*> free_;
};

thread_local Block* block = nullptr;

void run(uint3 grid, uint3 size, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = size;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        Block now(size, body);
        block = &now;
        now.run();
      }
  block = nullptr;
}

bool is_positive(const dim3& size) { return size.x > 0 && size.y > 0 && size.z > 0; }

}  // namespace

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

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  // Compiled by nvcc: nothing here can run it.
  return runtime_called("cudaLaunchKernelExC", [] { fail(cudaErrorInvalidDeviceFunction); });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int size, size_t) {
  return runtime_called("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    require(blocks != nullptr && size > 0, cudaErrorInvalidValue);
    *blocks = std::min(32, 2048 / std::min(size, 2048));
  });
}
