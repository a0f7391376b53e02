// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions on streams, and the order among streams.
#include "standin/runtime.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "standin/capture.hpp"
#include "standin/device.hpp"

namespace standin {

namespace {

/// A GPU's streams. The mutex is held while work is enqueued, so that their waiting for one another has no cycle.
struct Streams {
  std::mutex mutex;
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> others;

  // Streams that were destroyed and have come to their end are nobody's any more.
  void prune() {
    std::erase_if(others, [](const auto& stream) { return stream->drained(); });
  }
};

Streams& streams_of(int device) {
  static auto* streams = new std::array<Streams, most_devices>;
  return (*streams)[static_cast<std::size_t>(device)];
}

/// Handles are numbers that are given out once, so that a destroyed stream's is known as such.
struct Handles {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::set<cudaStream_t> given;
  unsigned number = 0;
};

Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

unsigned next_number() {
  const std::lock_guard lock(handles().mutex);
  return ++handles().number;
}

std::shared_ptr<Stream> legacy_of(int device) {
  const unsigned number = next_number();
  Streams& streams = streams_of(device);
  const std::lock_guard lock(streams.mutex);
  if (streams.legacy == nullptr) streams.legacy = std::make_shared<Stream>(device, Stream::Kind::legacy, number);
  return streams.legacy;
}

std::shared_ptr<Stream> new_stream(int device, Stream::Kind kind, int priority) {
  auto stream = std::make_shared<Stream>(device, kind, next_number(), priority);
  Streams& streams = streams_of(device);
  const std::lock_guard lock(streams.mutex);
  streams.prune();
  streams.others.push_back(stream);
  return stream;
}

/// A thread's own default streams.
struct OfThread {
  std::map<int, std::shared_ptr<Stream>> streams;

  OfThread() = default;
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;
  ~OfThread() {
    for (const auto& [device, stream] : streams) stream->close();
  }
};

std::shared_ptr<Stream> thread_stream_of(int device) {
  static thread_local OfThread own;
  auto& stream = own.streams[device];
  if (stream == nullptr) stream = new_stream(device, Stream::Kind::blocking, 0);
  return stream;
}

/// The points that work on a stream waits for without being told to.
std::vector<Point> implied(Streams& streams, const Stream& stream) {
  std::vector<Point> after;
  if (stream.kind == Stream::Kind::blocking && streams.legacy != nullptr) after.push_back(streams.legacy->now());
  if (stream.kind == Stream::Kind::legacy)
    for (const auto& other : streams.others)
      if (other->kind == Stream::Kind::blocking) after.push_back(other->now());
  return after;
}

}  // namespace

std::shared_ptr<Stream> stream_of(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy) return legacy_of(device);
  if (handle == cudaStreamPerThread) return thread_stream_of(device);
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().streams.find(handle);
  if (found != handles().streams.end()) return found->second;
  forbid_destroyed("stream", handles().given.contains(handle));
  fail(cudaErrorInvalidResourceHandle);
}

Point enqueue(const std::shared_ptr<Stream>& stream, Work work, std::vector<Point> after) {
  {
    const std::lock_guard lock(capture_mutex());
    if (const auto capture = capture_of(*stream)) {
      require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
      Capture::Branch& branch = capture->branches.at(stream.get());
      capture->nodes.push_back({std::move(work), stream.get(), branch.after});
      branch.after = {capture->nodes.size() - 1};
      return {};
    }
  }
  // The legacy default stream would wait for streams that are being captured, and so cannot be used meanwhile.
  require(stream->kind != Stream::Kind::legacy || !capturing_on(stream->device), cudaErrorStreamCaptureImplicit);
  Streams& streams = streams_of(stream->device);
  const std::lock_guard lock(streams.mutex);
  for (Point& point : implied(streams, *stream)) after.push_back(std::move(point));
  return stream->enqueue(std::move(work), std::move(after));
}

void wait_for_stream(const std::shared_ptr<Stream>& stream) {
  static_cast<void>(counted(host_wait));
  std::vector<Point> points{stream->now()};
  {
    Streams& streams = streams_of(stream->device);
    const std::lock_guard lock(streams.mutex);
    if (stream->kind == Stream::Kind::legacy)
      for (Point& point : implied(streams, *stream)) points.push_back(std::move(point));
  }
  for (const Point& point : points) point.wait();
}

bool ready(const std::shared_ptr<Stream>& stream) {
  Streams& streams = streams_of(stream->device);
  const std::lock_guard lock(streams.mutex);
  if (!stream->now().reached()) return false;
  return stream->kind != Stream::Kind::legacy ||
         std::ranges::all_of(implied(streams, *stream), [](const Point& point) { return point.reached(); });
}

void wait_for_device(int device) {
  static_cast<void>(counted(host_wait));
  std::vector<Point> points;
  {
    Streams& streams = streams_of(device);
    const std::lock_guard lock(streams.mutex);
    if (streams.legacy != nullptr) points.push_back(streams.legacy->now());
    for (const auto& stream : streams.others) points.push_back(stream->now());
  }
  for (const Point& point : points) point.wait();
}

std::size_t live_streams() {
  std::size_t live = 0;
  for (std::size_t device = 0; device < most_devices; ++device) {
    Streams& streams = streams_of(static_cast<int>(device));
    std::vector<std::shared_ptr<Stream>> others;
    {
      const std::lock_guard lock(streams.mutex);
      others = streams.others;
    }
    for (const auto& stream : others) stream->let_drain();
    const std::lock_guard lock(streams.mutex);
    streams.prune();
    live += streams.others.size();
  }
  return live;
}

namespace {

bool is_default(cudaStream_t handle) {
  return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

/// Waiting for a stream that is being captured spoils the capture.
void forbid_in_capture(const Stream& stream) {
  const std::lock_guard lock(capture_mutex());
  if (const auto capture = capture_of(stream)) {
    capture->invalid = true;
    fail(cudaErrorStreamCaptureUnsupported);
  }
}

}  // namespace

}  // namespace standin

using namespace standin;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return runtime_called("cudaStreamCreateWithPriority", [&] {
    require(handle != nullptr && (flags == cudaStreamDefault || flags == cudaStreamNonBlocking), cudaErrorInvalidValue);
    const auto kind = flags == cudaStreamNonBlocking ? Stream::Kind::free : Stream::Kind::blocking;
    auto stream = new_stream(current_device(), kind, std::clamp(priority, greatest_priority, 0));
    const std::lock_guard lock(handles().mutex);
    *handle = reinterpret_cast<cudaStream_t>(std::uintptr_t{0x57000000} + 16 * ++handles().number);
    handles().streams[*handle] = std::move(stream);
    handles().given.insert(*handle);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return runtime_called("cudaStreamDestroy", [&] {
    require(!is_default(handle), cudaErrorInvalidResourceHandle);
    const auto stream = stream_of(handle, 0);
    forbid_in_capture(*stream);
    const std::lock_guard lock(handles().mutex);
    require(handles().streams.erase(handle) == 1, cudaErrorInvalidResourceHandle);
    stream->close();
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return runtime_called("cudaStreamSynchronize", [&] {
    const auto stream = stream_of(handle, current_device());
    forbid_in_capture(*stream);
    wait_for_stream(stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return runtime_called("cudaStreamQuery", [&] {
    const auto stream = stream_of(handle, current_device());
    forbid_in_capture(*stream);
    forbid_while_capturing();
    require(ready(stream), cudaErrorNotReady);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return runtime_called("cudaLaunchHostFunc", [&] {
    require(function != nullptr, cudaErrorInvalidValue);
    enqueue(stream_of(handle, current_device()), [=] { function(data); });
  });
}
