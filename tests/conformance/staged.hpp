// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>

#include "distx/cuda.hpp"
#include "distx/distx.hpp"

// A GPU communicator for the suite, whose operands are in host memory: every call is made on copies of its operands.
namespace conformance {

/// The copies of a call's operands on the GPU; copies overlap if the operands do.
class Mirror {
 public:
  using Const = distx::Span<const distx::AnyElement>;
  using Mutable = distx::Span<distx::AnyElement>;
  using GpuConst = distx::Span<const distx::AnyElement, distx::Cuda>;
  using GpuMutable = distx::Span<distx::AnyElement, distx::Cuda>;

  Mirror(Const send, Mutable receive) : receive_(receive) {
    const std::byte* const begin = std::min(send.bytes(), static_cast<const std::byte*>(receive.bytes()));
    const bool overlap = !send.empty() && !receive.empty() && send.bytes() < receive.bytes() + receive.size_bytes() &&
                         receive.bytes() < send.bytes() + send.size_bytes();
    if (overlap) {
      const std::byte* const end =
          std::max<const std::byte*>(send.bytes() + send.size_bytes(), receive.bytes() + receive.size_bytes());
      memory_ = distx::Buffer<std::byte, distx::Cuda>(static_cast<std::size_t>(end - begin));
      gpu_send_ = memory_.data() + (send.bytes() - begin);
      gpu_receive_ = memory_.data() + (receive.bytes() - begin);
    } else {
      // Separated, and aligned for any element type.
      const std::size_t first = (send.size_bytes() + 255) / 256 * 256;
      memory_ = distx::Buffer<std::byte, distx::Cuda>(first + receive.size_bytes());
      gpu_send_ = memory_.data();
      gpu_receive_ = memory_.data() + first;
    }
    move(gpu_send_, send.data(), send.size_bytes());
    move(gpu_receive_, receive.data(), receive.size_bytes());
    gpu_ = {GpuConst{gpu_send_, send.size(), send.type(), send.element_bytes()},
            GpuMutable{gpu_receive_, receive.size(), receive.type(), receive.element_bytes()}};
  }

  [[nodiscard]] GpuConst send() const { return gpu_.first; }
  [[nodiscard]] GpuMutable receive() const { return gpu_.second; }
  void copy_back() { move(receive_.data(), gpu_receive_, receive_.size_bytes()); }

 private:
  static void move(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) distx::cuda::detail::check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }

  Mutable receive_;
  distx::Buffer<std::byte, distx::Cuda> memory_;
  std::byte* gpu_send_ = nullptr;
  std::byte* gpu_receive_ = nullptr;
  std::pair<GpuConst, GpuMutable> gpu_;
};

/// Calls `f(call on the GPU)` and returns the copies.
template <class F>
auto mirrored(const distx::calls::Call<>& c, int rank, F&& f) {
  using enum distx::calls::CollectiveKind;
  const bool ignored = (c.kind == reduce || c.kind == gather) && rank != c.root;
  const bool unsent = (c.kind == scatter && rank != c.root) || c.kind == broadcast;
  auto m = std::make_unique<Mirror>(unsent ? Mirror::Const() : c.send, ignored ? Mirror::Mutable() : c.receive);
  distx::calls::Call<distx::Cuda> there;
  there.kind = c.kind;
  there.send = c.kind == broadcast ? Mirror::GpuConst(m->receive()) : m->send();
  there.receive = m->receive();
  there.op = c.op;
  there.root = c.root;
  there.to = c.to;
  there.from = c.from;
  there.tag = c.tag;
  there.counts = c.counts;
  there.receive_counts = c.receive_counts;
  there.location = c.location;
  f(there);
  return m;
}

/// An asynchronous call whose wait copies the received data back.
template <class P>
class StagedPending {
 public:
  StagedPending() = default;
  StagedPending(P pending, std::unique_ptr<Mirror> mirror) : mirror_(std::move(mirror)), pending_(std::move(pending)) {}
  StagedPending(StagedPending&&) noexcept = default;
  StagedPending& operator=(StagedPending&& other) noexcept {
    settle();
    mirror_ = std::move(other.mirror_);
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~StagedPending() { settle(); }

  void wait() {
    pending_.wait();
    if (mirror_ != nullptr) std::exchange(mirror_, nullptr)->copy_back();
  }
  void wait(distx::HostStream) { wait(); }
  [[nodiscard]] bool test() { return pending_.test(); }

 private:
  void settle() noexcept try {
    if (mirror_ != nullptr && std::uncaught_exceptions() == 0) wait();
  } catch (const std::exception&) {
  }

  std::unique_ptr<Mirror> mirror_;
  P pending_;  // last: it uses the copies
};

template <distx::Communicator C>
class Staged {
 public:
  using space = distx::Host;

  explicit Staged(C inner) : inner_(std::move(inner)), state_(std::make_shared<State>()) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] std::string_view backend() const { return inner_.backend(); }
  [[nodiscard]] Staged share() const { return Staged(inner_.share(), state_); }
  [[nodiscard]] Staged split(int color, int key) { return Staged(inner_.split(color, key)); }
  template <class T>
  [[nodiscard]] distx::CommunicatorMemory<T> allocate(std::size_t size) {
    return distx::CommunicatorMemory<T>::plain(size);
  }
  [[nodiscard]] distx::Span<std::byte> scratch(std::size_t bytes) {
    if (state_->scratch.size() < bytes) state_->scratch = distx::Buffer<std::byte>(bytes);
    return {state_->scratch.data(), bytes};
  }
  [[nodiscard]] distx::detail::GroupCache& group_cache() { return state_->groups; }
  void revoke(const std::string& reason) { inner_.revoke(reason); }

  void execute(const distx::calls::Call<>& call) {
    mirrored(call, rank(), [&](const auto& on_gpu) { inner_.execute(on_gpu); })->copy_back();
  }
  [[nodiscard]] auto start(const distx::calls::Call<>& call, distx::HostStream = {}) {
    using P = decltype(inner_.start(distx::calls::Barrier<distx::Cuda>{}, distx::CudaStreamRef()));
    P pending;
    auto mirror =
        mirrored(call, rank(), [&](const auto& on_gpu) { pending = inner_.start(on_gpu, distx::CudaStreamRef()); });
    return StagedPending<P>(std::move(pending), std::move(mirror));
  }

 private:
  struct State {
    distx::Buffer<std::byte> scratch;
    distx::detail::GroupCache groups;
  };
  Staged(C inner, std::shared_ptr<State> state) : inner_(std::move(inner)), state_(std::move(state)) {}

  C inner_;
  std::shared_ptr<State> state_;
};

}  // namespace conformance
