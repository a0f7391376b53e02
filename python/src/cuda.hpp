// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#ifdef DISTX_TORCH_CUDA
#include <c10/cuda/CUDAEvent.h>

#include <distx/nccl.hpp>
#endif

#include "group.hpp"

namespace distx_torch {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

#ifdef DISTX_TORCH_CUDA

using distx::Cuda;

/// The calls of a group on one GPU. They run on separate streams: collectives, with their copies, on the
/// communicator's, which NCCL uses, so that each call is an event before it and one after it.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  /// Makes the communicator. Collective.
  Gpu(const Group& group, int gpu, const std::string& prefix)
      : index(static_cast<c10::DeviceIndex>(gpu)),
        rank(group.rank),
        timeout(group.deadline),
        comm([&] {
          const c10::cuda::CUDAGuard guard(index);
          distx::KeyValueConnector connector(TorchStore{group.store}, prefix, rank, group.size, timeout);
          // With NCCL_RUNTIME_CONNECT=0 no later call blocks inside NCCL: this thread can enqueue calls, and the
          // deadline still applies.
          const char* const late = std::getenv("NCCL_RUNTIME_CONNECT");
          return distx::NcclCommunicator(
              connector, {.deadline = timeout, .device = gpu, .blocking = late != nullptr && *late == '0'});
        }()),
        collectives(c10::cuda::getStreamFromExternal(comm.stream().native_handle(), index)),
        messages(c10::cuda::getStreamFromPool(false, index)) {}

  WorkPtr collective(c10d::OpType type, const char* title, const Tensors& inputs, std::vector<Tensors> outputs,
                     std::uint64_t sequence, const Calls& calls);
  WorkPtr message(bool sends, const at::Tensor& tensor, int peer, std::uint64_t sequence);

  /// Whether the communicator has ended: what was in flight is not complete, though the GPU is done with it.
  [[nodiscard]] bool failed() const noexcept { return comm.native_handle() == nullptr; }
  /// @throws why the communicator has ended, if it has
  void check(c10d::OpType type) {
    if (!failed()) return;
    std::string why = "the communicator has ended";
    try {
      static_cast<void>(comm.start(distx::calls::Call<Cuda>(distx::calls::Barrier<Cuda>{})));  // is not begun
    } catch (const distx::Error& error) {
      why = error.message();
    }
    C10_THROW_ERROR(DistBackendError, "distx: " + c10d::opTypeToString(type) + " on cuda:" + std::to_string(index) +
                                          " may be incomplete: " + why);
  }
  /// Runs `f`, whose errors become those of torch.distributed.
  template <class F>
  void guarded(F&& f) {
    const c10::cuda::CUDAGuard guard(index);
    const std::lock_guard lock(mutex_);
    try {
      f();
    } catch (const distx::Error&) {
      std::rethrow_exception(translated(std::current_exception(), timeout));
    }
  }

 private:
  friend class GpuWork;
  using Kept = std::list<std::pair<c10::cuda::CUDAEvent, std::vector<Tensors>>>;

  /// Moves what calls that are complete had kept, to be released without the lock: Python's lock may be needed.
  /// @pre the lock is held
  void move_done(Kept& to) {
    while (!kept_.empty() && kept_.front().first.query()) to.splice(to.end(), kept_, kept_.begin());
  }

  std::mutex mutex_;
  c10::cuda::CUDAEvent before_;
  Kept kept_;  // tensors of calls that nobody has waited for, and the calls' ends; destroyed after the communicator

 public:
  const c10::DeviceIndex index;
  const int rank;
  const milliseconds timeout;
  distx::NcclCommunicator comm;
  const c10::cuda::CUDAStream collectives, messages;
};

/// A call on a GPU, as torch.distributed has them for NCCL: `wait` makes the current stream wait.
class GpuWork final : public c10d::Work {
 public:
  GpuWork(std::shared_ptr<Gpu> gpu, c10d::OpType type, const char* title, const Tensors& inputs,
          std::vector<Tensors> outputs, std::uint64_t sequence)
      : Work(gpu->rank, type, title, inputs),
        gpu_(std::move(gpu)),
        inputs_(inputs),
        outputs_(std::move(outputs)),
        sequence_(sequence) {}
  ~GpuWork() override {
    if (waited_) return;
    try {
      follow();
      outputs_.push_back(std::move(inputs_));
      gpu_->guarded([this] { gpu_->kept_.emplace_back(std::move(event_), std::move(outputs_)); });
    } catch (const std::exception&) {  // the group's next call throws it
    }
  }

  /// Records the end of a call that was enqueued on `stream`.
  void enqueued(const c10::cuda::CUDAStream& stream) { event_.record(stream), finish(); }
  /// Stores a posted message. NCCL begins posted messages together, when one of them is waited for.
  void posted(distx::Pending<Cuda> pending) { pending_ = std::move(pending), followed_ = false, finish(); }

  bool isCompleted() override {
    if (gpu_->failed()) return true;
    if (!followed_) {
      bool begun = false;
      gpu_->guarded([&] { begun = followed_ || pending_.test(); });
      if (!begun) return false;
    }
    return follow(), event_.query();
  }
  bool isSuccess() const override { return !gpu_->failed() && followed_ && event_.query(); }
  bool wait(milliseconds limit) override {
    follow();
    const c10::cuda::CUDAGuard guard(gpu_->index);
    if (limit != kNoTimeout || opType_ == c10d::OpType::BARRIER) {  // waits of the host
      const auto end = distx::detail::wait_until(
          limit == kNoTimeout ? distx::no_timeout : distx::Timeout(limit), [this] { return event_.query(); },
          [this] { return gpu_->failed(); });
      if (end == distx::detail::WaitEnd::expired) {
        const auto text = "Timed out waiting " + std::to_string(limit.count()) + "ms for " +
                          c10d::opTypeToString(opType_) + " to complete";
        gpu_->comm.revoke(text);  // the other ranks cannot complete it either
        C10_THROW_ERROR(DistBackendError, "distx: " + text);
      }
    } else {
      event_.block(c10::cuda::getCurrentCUDAStream(gpu_->index));
    }
    gpu_->check(opType_);
    waited_ = true;
    inputs_.clear();  // later work that overwrites them is enqueued after the call
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override { gpu_->comm.revoke("a call was aborted"); }
  Tensors result() override { return outputs_.empty() ? Tensors() : outputs_[0]; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    follow();
    {
      const std::lock_guard lock(mutex_);
      if (future_) return future_;
      const auto list = c10::ListType::create(c10::TensorType::get());
      future_ = c10::make_intrusive<c10::ivalue::Future>(outputs_.size() > 1 ? c10::ListType::create(list) : list,
                                                         std::vector{c10::Device(c10::kCUDA, gpu_->index)});
    }
    // The future completes with the work on the current stream.
    const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool(false, gpu_->index));
    event_.block(c10::cuda::getCurrentCUDAStream(gpu_->index));
    future_->markCompleted(outputs_.size() > 1 ? c10::IValue(outputs_) : c10::IValue(result()));
    return future_;
  }

 private:
  /// Enqueues a posted message.
  void follow() {
    if (followed_) return;
    gpu_->guarded([this] {
      if (followed_) return;
      pending_.wait(gpu_->messages.stream());
      event_.record(gpu_->messages);
      followed_ = true;
    });
  }

  std::shared_ptr<Gpu> gpu_;
  Tensors inputs_;
  std::vector<Tensors> outputs_;
  std::uint64_t sequence_;
  distx::Pending<Cuda> pending_;
  std::atomic<bool> followed_{true}, waited_{false};
  c10::cuda::CUDAEvent event_;  // marks the call's end
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Returns `call`, whose spans are in GPU memory, as a Call<Cuda>.
[[nodiscard]] inline distx::calls::Call<Cuda> on_gpu(const distx::calls::Call<>& call) {
  distx::calls::Call<Cuda> c;
  c.kind = call.kind;
  c.send = {call.send.data(), call.send.size(), call.send.type(), call.send.element_bytes()};
  c.receive = {call.receive.data(), call.receive.size(), call.receive.type(), call.receive.element_bytes()};
  c.op = call.op;
  c.root = call.root;
  c.counts = call.counts;
  c.receive_counts = call.receive_counts;
  return c;
}

inline WorkPtr Gpu::collective(c10d::OpType type, const char* title, const Tensors& inputs,
                               std::vector<Tensors> outputs, std::uint64_t sequence, const Calls& calls) {
  auto work = c10::make_intrusive<GpuWork>(shared_from_this(), type, title, inputs, std::move(outputs), sequence);
  Kept released;
  guarded([&] {
    move_done(released);
    before_.record(c10::cuda::getCurrentCUDAStream(index));
    before_.block(collectives);
    const c10::cuda::CUDAStreamGuard stream(collectives);
    const at::NoGradGuard no_grad;
    calls([this](const distx::calls::Call<>& call) { comm.start(on_gpu(call), comm.stream()).wait(comm.stream()); });
    work->enqueued(collectives);
  });
  return work;
}
inline WorkPtr Gpu::message(bool sends, const at::Tensor& tensor, int peer, std::uint64_t sequence) {
  if (!tensor.is_contiguous()) refuse("a CUDA tensor that is sent or received must be contiguous");
  auto work = c10::make_intrusive<GpuWork>(shared_from_this(), sends ? c10d::OpType::SEND : c10d::OpType::RECV,
                                           sends ? "distx:send" : "distx:recv", Tensors{tensor},
                                           std::vector<Tensors>{{tensor}}, sequence);
  Kept released;
  guarded([&] {
    move_done(released);
    distx::calls::Call<Cuda> call;
    call.kind = sends ? distx::calls::CollectiveKind::send : distx::calls::CollectiveKind::receive;
    call.send =
        call.receive = {tensor.data_ptr(), static_cast<std::size_t>(tensor.nbytes()), distx::ElementType::bytes, 1};
    call.to = call.from = peer;  // NCCL has no tags
    work->posted(comm.start(call, c10::cuda::getCurrentCUDAStream(index).stream()));
  });
  return work;
}

/// The calls of a group on the GPUs of this process.
class Gpus {
 public:
  /// Returns those of one GPU. Collective where it is the first use.
  [[nodiscard]] std::shared_ptr<Gpu> of(const Group& group, int index) {
    const std::lock_guard lock(mutex_);
    auto& gpu = gpus_[index];
    try {
      if (!gpu) gpu = std::make_shared<Gpu>(group, index, "distx/cuda" + std::to_string(++made_) + "/");
    } catch (const distx::Error&) {
      std::rethrow_exception(translated(std::current_exception(), group.deadline));
    }
    return gpu;
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    for (const auto& [index, gpu] : gpus_)
      if (gpu) gpu->comm.revoke("the process group was aborted");
  }
  /// Ends the communicators, which may wait for the other ranks.
  void clear() {
    const std::lock_guard lock(mutex_);
    gpus_.clear();
  }
  [[nodiscard]] static int current() { return c10::cuda::current_device(); }

 private:
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Gpu>> gpus_;
  int made_ = 0;
};

#else

/// The stub of a build without CUDA.
struct Gpus {
  [[nodiscard]] std::shared_ptr<Gpus> of(const Group&, int) { refuse("this build of distx_torch has no CUDA"); }
  WorkPtr collective(auto&&...) { return {}; }
  WorkPtr message(auto&&...) { return {}; }
  void abort() {}
  void clear() {}
  [[nodiscard]] static int current() { return 0; }
};

#endif

}  // namespace distx_torch
