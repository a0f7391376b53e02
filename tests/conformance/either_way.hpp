// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "distx/distx.hpp"

// Operands with sentinels after them, and calls that are blocking or asynchronous.
namespace conformance {

/// The operands of some calls. After each of them is memory that no call may write.
class GuardedMemory {
 public:
  /// Returns memory for `count` elements, filled with `value`, that stays valid as long as this object.
  template <class T>
  distx::Span<T> make(std::size_t count, T value = {}) {
    auto& block = blocks_.emplace_back(std::make_unique<std::byte[]>(count * sizeof(T) + sentinels), count * sizeof(T));
    T* const first = reinterpret_cast<T*>(block.memory.get());
    std::uninitialized_fill_n(first, count, value);
    std::memset(block.memory.get() + block.bytes, sentinel, sentinels);
    return {first, count};
  }
  /// Returns whether nothing was written after any of the operands.
  [[nodiscard]] bool intact() const {
    for (const auto& block : blocks_)
      for (std::size_t i = 0; i < sentinels; ++i)
        if (block.memory[block.bytes + i] != std::byte{sentinel}) return false;
    return true;
  }

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
  };
  static constexpr std::size_t sentinels = 4096;
  static constexpr unsigned char sentinel = 0xa5;

  std::vector<Block> blocks_;
};

/// Makes blocking calls, or starts them and waits.
struct EitherWay {
  using Counts = std::vector<std::size_t>;

  bool asynchronous;

  void all_reduce(auto& comm, auto send, auto receive, auto op) const {
    if (asynchronous)
      distx::start_all_reduce(comm, send, receive, op).wait();
    else
      distx::all_reduce(comm, send, receive, op);
  }
  void reduce(auto& comm, auto send, auto receive, auto op, int root) const {
    if (asynchronous)
      distx::start_reduce(comm, send, receive, op, root).wait();
    else
      distx::reduce(comm, send, receive, op, root);
  }
  void reduce_scatter(auto& comm, auto send, auto receive, auto op, const Counts& counts = {}) const {
    if (asynchronous)
      distx::start_reduce_scatter(comm, send, receive, op, counts).wait();
    else
      distx::reduce_scatter(comm, send, receive, op, counts);
  }
  void broadcast(auto& comm, auto buffer, int root) const {
    if (asynchronous)
      distx::start_broadcast(comm, buffer, root).wait();
    else
      distx::broadcast(comm, buffer, root);
  }
  void all_gather(auto& comm, auto send, auto receive, const Counts& counts = {}) const {
    if (asynchronous)
      distx::start_all_gather(comm, send, receive, counts).wait();
    else
      distx::all_gather(comm, send, receive, counts);
  }
  void all_to_all(auto& comm, auto send, auto receive, const Counts& to = {}, const Counts& from = {}) const {
    if (asynchronous)
      distx::start_all_to_all(comm, send, receive, to, from).wait();
    else
      distx::all_to_all(comm, send, receive, to, from);
  }
  void gather(auto& comm, auto send, auto receive, int root, const Counts& counts = {}) const {
    if (asynchronous)
      distx::start_gather(comm, send, receive, root, counts).wait();
    else
      distx::gather(comm, send, receive, root, counts);
  }
  void scatter(auto& comm, auto send, auto receive, int root) const {
    if (asynchronous)
      distx::start_scatter(comm, send, receive, root).wait();
    else
      distx::scatter(comm, send, receive, root);
  }
  void send(auto& comm, auto buffer, int to, int tag = 0) const {
    if (asynchronous)
      distx::start_send(comm, buffer, to, tag).wait();
    else
      distx::send(comm, buffer, to, tag);
  }
  void receive(auto& comm, auto buffer, int from, int tag = 0) const {
    if (asynchronous)
      distx::start_receive(comm, buffer, from, tag).wait();
    else
      distx::receive(comm, buffer, from, tag);
  }
  void barrier(auto& comm) const {
    if (asynchronous)
      distx::start_barrier(comm).wait();
    else
      distx::barrier(comm);
  }
  /// Makes a call that every rank can make at any time; unlike a barrier, it has data.
  void any_call(auto& comm) const {
    int total = 1;
    if (asynchronous)
      distx::start_all_reduce(comm, total, distx::sum).wait();
    else
      distx::all_reduce(comm, total, distx::sum);
  }
};

}  // namespace conformance
