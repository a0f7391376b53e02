// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "distx/comm/detail/in_order.hpp"
#include "distx/cuda/buffer.hpp"
#include "distx/cuda/detail/copy.hpp"
#include "distx/cuda/device.hpp"

namespace distx::inline DISTX_ABI::cuda {

class Uploader;

namespace detail {

/// Page-locked memory, and the event after which it may be written again.
struct UploadBuffer {
  PinnedBuffer<std::byte> memory;
  CudaEvent copied;
};

/// A GPU, the stream of its copies, and page-locked memory that is used again.
class UploadQueue {
 public:
  UploadQueue() : device_(current_device()) {}
  ~UploadQueue() {
    // Copies may still read the page-locked memory.
    static_cast<void>(cudaStreamSynchronize(stream_.native_handle()));
  }

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] CudaStreamRef stream() const noexcept { return stream_; }

  /// Returns memory of at least this size that no copy reads any more.
  [[nodiscard]] UploadBuffer take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto idle = std::find_if(free_.begin(), free_.end(), [&](const UploadBuffer& each) {
        return each.memory.size() >= bytes && each.memory.size() / 2 <= bytes && each.copied.done();
      });
      if (idle != free_.end()) {
        UploadBuffer taken = std::move(*idle);
        free_.erase(idle);
        return taken;
      }
    }
    return {PinnedBuffer<std::byte>(bytes), CudaEvent()};
  }
  void give_back(UploadBuffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  int device_;
  CudaStream stream_;
  std::mutex mutex_;
  std::deque<UploadBuffer> free_;  // the one that was given back first is first
};

}  // namespace detail

/// Elements that are being copied to a GPU; made by an Uploader. Move-only.
///
/// Destroying it returns its memory, after the copy and the work that is then enqueued on the streams passed to `on`.
template <class T>
class Uploaded {
 public:
  Uploaded() noexcept = default;
  Uploaded(Uploaded&&) noexcept = default;
  Uploaded& operator=(Uploaded&& other) noexcept {
    if (this == &other) return *this;
    end();
    queue_ = std::move(other.queue_);
    host_ = std::move(other.host_);
    memory_ = std::move(other.memory_);
    used_on_ = std::move(other.used_on_);
    return *this;
  }
  ~Uploaded() { end(); }

  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  /// Makes work that is enqueued on `stream` from now on wait for the copy, and returns the elements for it. Does not
  /// block the host. The stream must outlive this object, which at its end orders the memory's return after the work on
  /// the stream: CUDA does not detect a destroyed stream, and crashes.
  [[nodiscard]] Span<T, Cuda> on(CudaStreamRef stream) {
    if (size() == 0) return {};
    if (std::find(used_on_.begin(), used_on_.end(), stream) == used_on_.end()) used_on_.push_back(stream);
    stream.wait(host_->copied);
    return memory_;
  }

 private:
  friend class Uploader;

  void end() noexcept {
    if (queue_ == nullptr) return;
    try {
      const DeviceGuard guard(queue_->device());
      for (const auto stream : used_on_) distx::detail::order<Cuda>(stream, queue_->stream());
      memory_ = {};
      queue_->give_back(std::move(*host_));
    } catch (...) {  // the GPU has failed, or host memory is exhausted: copies may still read the page-locked memory
      static_cast<void>(cudaStreamSynchronize(queue_->stream().native_handle()));
    }
    memory_ = {};
    host_.reset();
    used_on_.clear();
    queue_ = nullptr;
  }

  std::shared_ptr<detail::UploadQueue> queue_;
  std::optional<detail::UploadBuffer> host_;
  Buffer<T, Cuda> memory_;
  std::vector<CudaStreamRef> used_on_;
};

/// Copies batches to the GPU that is current when it is constructed, by way of page-locked memory, on a separate
/// stream: while the GPU trains on one batch, the workers of a DataLoader fill and copy the next.
///
///     const distx::cuda::Uploader uploader;
///     distx::DataLoader loader(sampler, [&](std::span<const std::size_t> samples) {
///       return uploader.upload<float>(samples.size() * 784, [&](distx::Span<float> batch) { read(samples, batch); });
///     });
///     for (auto& batch : loader.epoch(0)) train(batch.on(stream), stream);
///
/// Page-locked memory is used again after its copy is complete. May be called concurrently; uploaded elements may
/// outlive it.
class Uploader {
 public:
  /// @throws BackendError without a GPU
  Uploader() : queue_(std::make_shared<detail::UploadQueue>()) {}

  /// Calls `fill(Span<T>)` with page-locked memory for `size` elements, whose values are unspecified, and enqueues the
  /// copy of these elements.
  /// @throws what `fill` throws; MemoryError
  template <class T, std::invocable<Span<T>> Fill>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] Uploaded<T> upload(std::size_t size, Fill&& fill) const {
    const DeviceGuard guard(queue_->device());
    Uploaded<T> batch;
    if (size == 0) return batch;
    auto host = queue_->take(size * sizeof(T));
    const Span<T> values(reinterpret_cast<T*>(host.memory.data()), size);
    fill(values);
    batch.memory_ = Buffer<T, Cuda>(size, uninitialized, queue_->stream());
    batch.host_ = std::move(host);
    batch.queue_ = queue_;
    copy(queue_->stream(), batch.memory_.span(), Span<const T, Host>(values));
    batch.host_->copied.record(queue_->stream());
    return batch;
  }

 private:
  std::shared_ptr<detail::UploadQueue> queue_;
};

}  // namespace distx::inline DISTX_ABI::cuda
