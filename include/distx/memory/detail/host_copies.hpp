// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>

#include "distx/memory/buffer.hpp"
#include "distx/memory/operations.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The type that owns a stream of a memory space, or stands for its default stream.
template <MemorySpace Space>
struct owned_stream {
  struct type {
    operator typename Space::stream() const noexcept { return {}; }  // NOLINT
  };
};
template <MemorySpace Space>
  requires requires { typename Space::owned_stream; }
struct owned_stream<Space> {
  using type = typename Space::owned_stream;
};

/// Blocking copies of a few values between the host and a memory space that the host cannot access.
///
/// On a GPU they are made on a separate stream, by way of page-locked memory: with other memory CUDA would wait in the
/// driver, and on the default stream for all that is enqueued there, which may wait for a rank that has failed.
template <MemorySpace Space>
class HostCopies {
 public:
  /// Work that is enqueued before may still be in progress, and work that is enqueued later sees the values.
  void write(Span<std::byte, Space> to, Span<const std::byte> from) {
    const auto pinned = staging(from.size());
    std::memcpy(pinned.data(), from.data(), from.size());
    copy(stream(), to, Span<const std::byte>(pinned));
    stream().synchronize();
  }
  /// @pre the work that writes `from` is complete
  void read(Span<std::byte> to, Span<const std::byte, Space> from) {
    const auto pinned = staging(from.size());
    copy(stream(), pinned, from);
    stream().synchronize();
    std::memcpy(to.data(), pinned.data(), to.size());
  }

 private:
  [[nodiscard]] typename Space::stream stream() {
    if (!stream_) stream_.emplace();
    return *stream_;
  }
  [[nodiscard]] Span<std::byte> staging(std::size_t bytes) {
    if (staging_.size() < bytes) staging_ = StagingBuffer<std::byte, Space>(std::max<std::size_t>(bytes, 4096));
    return staging_.span().first(bytes);
  }

  std::optional<typename owned_stream<Space>::type> stream_;
  StagingBuffer<std::byte, Space> staging_;
};

}  // namespace distx::inline DISTX_ABI::detail
