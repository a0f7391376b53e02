// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions that copy and fill.
#include <cstring>

#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/runtime.hpp"

using namespace standin;

namespace {

bool of_host(Kind kind) { return kind == Kind::pageable || kind == Kind::pinned; }

/// Returns the memory at an address; if its size is known, it must have that number of bytes.
Kind checked(const void* memory, std::size_t bytes) {
  require(memory != nullptr, cudaErrorInvalidValue);
  const Place where = place(memory);
  require(where.kind != Kind::nothing, cudaErrorInvalidValue);
  require(where.kind == Kind::pageable || bytes <= where.left, cudaErrorInvalidValue);
  return where.kind;
}

/// Ends the call where the direction is none, or is another than the pointers'.
void check_direction(cudaMemcpyKind direction, Kind to, Kind from) {
  switch (direction) {
    case cudaMemcpyDefault:
      return;
    case cudaMemcpyHostToHost:
      return require(of_host(to) && of_host(from), cudaErrorInvalidValue);
    case cudaMemcpyHostToDevice:
      return require(to != Kind::pageable && of_host(from), cudaErrorInvalidValue);
    case cudaMemcpyDeviceToHost:
      return require(of_host(to) && from != Kind::pageable, cudaErrorInvalidValue);
    case cudaMemcpyDeviceToDevice:
      return require(to != Kind::pageable && from != Kind::pageable, cudaErrorInvalidValue);
  }
  fail(cudaErrorInvalidMemcpyDirection);
}

/// Rows of bytes, adjacent or further apart.
struct Rows {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch;
  std::size_t width;
  std::size_t height;

  void copy() const {
    for (std::size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
};

void copy(Rows rows, cudaMemcpyKind direction, cudaStream_t handle, bool waits) {
  const auto stream = stream_of(handle, current_device());
  if (rows.width == 0 || rows.height == 0) return;
  require(rows.to_pitch >= rows.width && rows.from_pitch >= rows.width, cudaErrorInvalidPitchValue);
  const Kind to = checked(rows.to, (rows.height - 1) * rows.to_pitch + rows.width);
  const Kind from = checked(rows.from, (rows.height - 1) * rows.from_pitch + rows.width);
  check_direction(direction, to, from);
  if (from == Kind::pageable) {
    // Staged: the caller may change the source at once.
    auto staged = std::make_shared<std::vector<char>>(rows.width * rows.height);
    Rows{staged->data(), rows.width, rows.from, rows.from_pitch, rows.width, rows.height}.copy();
    rows.from = staged->data();
    rows.from_pitch = rows.width;
    enqueue(stream, [rows, staged] { rows.copy(); });
  } else {
    enqueue(stream, [=] { rows.copy(); });
  }
  // Memory that is not page-locked has its bytes on return, and so has memory of the host that the host has copied.
  if (to == Kind::pageable || (of_host(to) && of_host(from)) || (waits && (of_host(to) || of_host(from))))
    wait_for_stream(stream);
}

void fill(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  const auto stream = stream_of(handle, current_device());
  if (bytes == 0) return;
  const Kind kind = checked(to, bytes);
  require(kind != Kind::pageable, cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memset(to, value, bytes); });
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind direction, cudaStream_t stream) {
  return runtime_called("cudaMemcpyAsync", [&] { copy({to, bytes, from, bytes, bytes, 1}, direction, stream, false); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind direction) {
  return runtime_called("cudaMemcpy", [&] { copy({to, bytes, from, bytes, bytes, 1}, direction, nullptr, true); });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind direction, cudaStream_t stream) {
  return runtime_called("cudaMemcpy2DAsync",
                        [&] { copy({to, to_pitch, from, from_pitch, width, height}, direction, stream, false); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return runtime_called("cudaMemsetAsync", [&] { fill(to, value, bytes, stream); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return runtime_called("cudaMemset", [&] {
    fill(to, value, bytes, nullptr);
    if (bytes > 0 && of_host(place(to).kind)) wait_for_stream(stream_of(nullptr, current_device()));
  });
}
