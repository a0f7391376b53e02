// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions on events.
#include <atomic>
#include <chrono>
#include <map>

#include "standin/capture.hpp"
#include "standin/device.hpp"
#include "standin/runtime.hpp"

namespace standin {

namespace {

using Clock = std::chrono::steady_clock;

/// The state that the last cudaEventRecord of an event has recorded.
struct Record {
  Point point;
  std::atomic<Clock::rep> time{0};
  std::shared_ptr<Capture> capture;  ///< where it was recorded on a stream that was being captured
  std::set<std::size_t> nodes;
};

struct Event {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Record> last;
};

struct Events {
  std::mutex mutex;
  std::map<cudaEvent_t, Event> alive;
  std::uintptr_t number = 0;

  /// The event of a handle. @pre the lock is held
  Event& of(cudaEvent_t handle) {
    const auto found = alive.find(handle);
    if (found != alive.end()) return found->second;
    const auto address = reinterpret_cast<std::uintptr_t>(handle);
    forbid_destroyed("event", address > first && address <= first + 16 * number);
    fail(cudaErrorInvalidResourceHandle);
  }

  static constexpr std::uintptr_t first = 0xE0000000;
};

Events& all() {
  static auto* events = new Events;
  return *events;
}

Event event_of(cudaEvent_t handle) {
  const std::lock_guard lock(all().mutex);
  return all().of(handle);
}

/// The nodes that an event of a captured stream stands for; false where the stream is not being captured.
bool recorded_in_capture(Record& record, const Stream& stream) {
  const std::lock_guard lock(capture_mutex());
  record.capture = capture_of(stream);
  if (record.capture == nullptr) return false;
  record.nodes = record.capture->branches.at(&stream).after;
  return true;
}

}  // namespace

std::size_t live_events() {
  const std::lock_guard lock(all().mutex);
  return all().alive.size();
}

}  // namespace standin

using namespace standin;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return runtime_called("cudaEventCreateWithFlags", [&] {
    require(handle != nullptr, cudaErrorInvalidValue);
    require((flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}) == 0, cudaErrorInvalidValue);
    const int device = current_device();
    const std::lock_guard lock(all().mutex);
    *handle = reinterpret_cast<cudaEvent_t>(Events::first + 16 * ++all().number);
    all().alive[*handle] = {device, (flags & cudaEventDisableTiming) == 0, nullptr};
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return runtime_called("cudaEventDestroy", [&] {
    const std::lock_guard lock(all().mutex);
    static_cast<void>(all().of(handle));
    all().alive.erase(handle);
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  return runtime_called("cudaEventRecord", [&] {
    require(flags == cudaEventRecordDefault, cudaErrorInvalidValue);
    const int device = event_of(handle).device;
    const auto stream = stream_of(stream_handle, current_device());
    require(stream->device == device, cudaErrorInvalidResourceHandle);
    auto record = std::make_shared<Record>();
    if (!recorded_in_capture(*record, *stream))
      record->point = enqueue(stream, [record] { record->time = Clock::now().time_since_epoch().count(); });
    const std::lock_guard lock(all().mutex);
    all().of(handle).last = std::move(record);
  });
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return cudaEventRecordWithFlags(handle, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return runtime_called("cudaEventQuery", [&] {
    const auto last = event_of(handle).last;
    require(last == nullptr || last->capture == nullptr, cudaErrorCapturedEvent);
    forbid_while_capturing();
    if (last == nullptr) return;
    require(last->point.reached(), cudaErrorNotReady);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return runtime_called("cudaEventSynchronize", [&] {
    const auto last = event_of(handle).last;
    if (last == nullptr) return;
    require(last->capture == nullptr, cudaErrorCapturedEvent);
    static_cast<void>(counted(host_wait));
    last->point.wait();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return runtime_called("cudaEventElapsedTime", [&] {
    require(milliseconds != nullptr, cudaErrorInvalidValue);
    const Event first = event_of(begin);
    const Event second = event_of(end);
    require(first.timed && second.timed && first.device == second.device, cudaErrorInvalidResourceHandle);
    require(first.last != nullptr && second.last != nullptr, cudaErrorInvalidResourceHandle);
    require(first.last->point.reached() && second.last->point.reached(), cudaErrorNotReady);
    const Clock::duration elapsed(second.last->time - first.last->time);
    *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
  return runtime_called("cudaStreamWaitEvent", [&] {
    require(flags == cudaEventWaitDefault, cudaErrorInvalidValue);
    const auto last = event_of(handle).last;
    const auto stream = stream_of(stream_handle, current_device());
    if (last == nullptr) return;
    if (last->capture == nullptr) {
      const std::lock_guard lock(capture_mutex());
      // Work enqueued before a capture does not belong to it.
      if (capture_of(*stream) != nullptr) fail(cudaErrorStreamCaptureIsolation);
    } else {
      const std::lock_guard lock(capture_mutex());
      join(last->capture, stream, last->nodes);
      return;
    }
    enqueue(stream, [] {}, {last->point});
  });
}
