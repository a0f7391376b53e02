// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "standin/aborts.hpp"
#include "standin/arrays.hpp"
#include "standin/standin.hpp"

using namespace standin;

namespace {

/// Streams wait so long before each operation until the scope ends.
struct Delayed {
  explicit Delayed(int microseconds) { delay(microseconds); }
  Delayed(const Delayed&) = delete;
  Delayed& operator=(const Delayed&) = delete;
  ~Delayed() { delay(-1); }
};

/// Work of a stream that lasts until it is released.
struct Gate {
  std::atomic<bool> open{false};

  void close(cudaStream_t stream) {
    REQUIRE(cudaLaunchHostFunc(
                stream,
                [](void* data) {
                  auto& gate = *static_cast<Gate*>(data);
                  gate.open.wait(false);
                },
                this) == cudaSuccess);
  }
  void release() {
    open = true;
    open.notify_all();
  }
};

void set(cudaStream_t stream, const Array<int>& array, int byte) {
  REQUIRE(cudaMemsetAsync(array.data(), byte, array.size() * sizeof(int), stream) == cudaSuccess);
}
void copy(cudaStream_t stream, const Array<int>& to, const Array<int>& from) {
  REQUIRE(cudaMemcpyAsync(to.data(), from.data(), to.size() * sizeof(int), cudaMemcpyDefault, stream) == cudaSuccess);
}
std::vector<int> bytes(std::size_t size, int byte) {
  std::vector<int> result(size);
  std::memset(result.data(), byte, size * sizeof(int));
  return result;
}

constexpr std::size_t size = 100;

}  // namespace

TEST_CASE("GPUs are counted, made current and rejected") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 8);
  CHECK(cudaSetDevice(count) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaSetDevice(3) == cudaSuccess);
  std::thread([] {
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == 0);  // each thread has its own
  }).join();
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  devices(0);
  count = 17;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 17);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 4) == cudaErrorNoDevice);
  devices(8);
  CHECK(cudaGetLastError() == cudaErrorNoDevice);
  cudaDeviceProp one{};
  cudaDeviceProp other{};
  REQUIRE(cudaGetDeviceProperties(&one, 1) == cudaSuccess);
  REQUIRE(cudaGetDeviceProperties(&other, 2) == cudaSuccess);
  CHECK(std::memcmp(&one.uuid, &other.uuid, sizeof one.uuid) != 0);
  same_uuid(2, 1);
  REQUIRE(cudaGetDeviceProperties(&other, 2) == cudaSuccess);
  CHECK(std::memcmp(&one.uuid, &other.uuid, sizeof one.uuid) == 0);
  same_uuid(2, 2);
  CHECK(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
}

TEST_CASE("a stream runs its work in order") {
  const OwnStream stream;
  const Array<int> array(size);
  const Array<int> other(size);
  for (int byte = 1; byte < 50; ++byte) {
    set(stream, array, byte);
    copy(stream, other, array);
  }
  stream.synchronize();
  CHECK(other.download() == bytes(size, 49));
}

TEST_CASE("streams wait for events, and a missing wait shows in the result") {
  const OwnStream first;
  const OwnStream second;
  const OwnEvent event;
  for (const bool waits : {true, false}) {
    const Array<int> array(size);
    const Array<int> other(size);
    Gate gate;
    gate.close(first);
    set(first, array, 7);
    REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
    if (waits) REQUIRE(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
    copy(second, other, array);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    if (!waits) second.synchronize();
    gate.release();
    first.synchronize();
    second.synchronize();
    CHECK(cudaEventQuery(event) == cudaSuccess);
    CHECK(other.download() == bytes(size, waits ? 7 : 0xCB));  // the poison of what was never set
  }
}

TEST_CASE("a missing wait shows without any delay set") {
  const Delayed slow(2000);
  const OwnStream first;
  const OwnStream second;
  bool shows = false;
  for (int turn = 0; turn < 100 && !shows; ++turn) {  // at the first, unless the machine is very busy
    const Array<int> array(size);
    const Array<int> other(size);
    set(first, array, 7);
    set(first, array, 8);
    copy(second, other, array);
    first.synchronize();
    second.synchronize();
    shows = other.download() != bytes(size, 8);
  }
  CHECK(shows);
}

TEST_CASE("an event waits for work enqueued before it was recorded, and is complete if never recorded") {
  const OwnStream stream;
  const OwnEvent event;
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  Gate gate;
  gate.close(stream);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);  // what came later does not matter
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  const OwnEvent end;
  REQUIRE(cudaEventRecord(end, stream) == cudaSuccess);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, event, end) == cudaErrorNotReady);
  gate.release();
  stream.synchronize();
  CHECK(cudaEventElapsedTime(&milliseconds, event, end) == cudaSuccess);
  CHECK(milliseconds >= 0);
  const OwnEvent untimed(cudaEventDisableTiming);
  REQUIRE(cudaEventRecord(untimed, stream) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, event, untimed) == cudaErrorInvalidResourceHandle);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("the legacy default stream and blocking streams wait for one another, non-blocking ones do not") {
  for (const unsigned flags : {unsigned{cudaStreamDefault}, unsigned{cudaStreamNonBlocking}}) {
    const bool blocks = flags == cudaStreamDefault;
    const OwnStream stream(flags);
    Gate gate;
    gate.close(stream);
    const Array<int> array(size);
    REQUIRE(cudaMemsetAsync(array.data(), 5, size * sizeof(int), nullptr) == cudaSuccess);
    if (!blocks) CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(cudaStreamQuery(nullptr) == (blocks ? cudaErrorNotReady : cudaSuccess));
    gate.release();
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    Gate second;
    second.close(nullptr);
    REQUIRE(cudaMemsetAsync(array.data(), 6, size * sizeof(int), stream) == cudaSuccess);
    if (!blocks) stream.synchronize();
    linger();
    CHECK(cudaStreamQuery(stream) == (blocks ? cudaErrorNotReady : cudaSuccess));
    // Another GPU's default stream is another.
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    CHECK(cudaStreamQuery(cudaStreamLegacy) == cudaSuccess);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    second.release();
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("copies reject memory that is not a GPU's, or too short") {
  const Array<int> array(size);
  const Array<int> other(size);
  std::vector<int> host(size + 1);
  const auto copied = [](void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
    return cudaMemcpy(to, from, count * sizeof(int), kind);
  };
  CHECK(copied(array.data(), host.data(), size, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(copied(array.data(), host.data(), size + 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copied(array.data() + 1, other.data(), size, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(copied(array.data() + 1, other.data(), size - 1, cudaMemcpyDefault) == cudaSuccess);
  CHECK(copied(host.data(), host.data() + 1, size, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copied(host.data(), array.data(), size, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copied(host.data(), nullptr, size, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(copied(host.data(), array.data(), size, static_cast<cudaMemcpyKind>(7)) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemset(host.data(), 0, 4) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(array.data() + size, 0, 4, nullptr) == cudaErrorInvalidValue);
  void* gone = nullptr;
  REQUIRE(cudaMalloc(&gone, 16) == cudaSuccess);
  REQUIRE(cudaFree(gone) == cudaSuccess);
  CHECK(cudaMemcpy(gone, host.data(), 4, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaFree(gone) == cudaErrorInvalidValue);
  CHECK(cudaFree(host.data()) == cudaErrorInvalidValue);
  CHECK(cudaFree(array.data() + 1) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(array.data()) == cudaErrorInvalidValue);
  CHECK(cudaFreeAsync(array.data(), nullptr) == cudaErrorInvalidValue);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("memory is poisoned, limited, counted and fenced at its end") {
  const Live before = live();
  {
    const Array<unsigned char> array(3);
    CHECK(array.download() == std::vector<unsigned char>(3, 0xCB));
    CHECK(live().device_allocations == before.device_allocations + 1);
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
    CHECK(free == total - 3);
    memory(1000);
    void* more = nullptr;
    CHECK(cudaMalloc(&more, 998) == cudaErrorMemoryAllocation);
    CHECK(more == nullptr);
    CHECK(cudaMalloc(&more, 997) == cudaSuccess);
    CHECK(cudaFree(more) == cudaSuccess);
    memory(std::size_t{4} << 30);
  }
  CHECK(live() == before);
  [[maybe_unused]] const std::size_t overruns_before = overruns();
#if !defined(__SANITIZE_ADDRESS__)
  {
    const Array<unsigned char> array(3);
    const OwnStream stream;
    REQUIRE(
        cudaLaunchHostFunc(stream, [](void* end) { *static_cast<char*>(end) = 1; }, array.data() + 3) == cudaSuccess);
    stream.synchronize();
  }
  CHECK(overruns() == overruns_before + 1);
#endif
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("stream-ordered memory is set and freed in that order") {
  const OwnStream stream;
  const OwnStream other;
  Gate gate;
  gate.close(stream);
  void* memory = nullptr;
  REQUIRE(cudaMallocAsync(&memory, 8, stream) == cudaSuccess);
  // Written too early: before the stream has come to the allocation.
  REQUIRE(cudaMemsetAsync(memory, 1, 8, other) == cudaSuccess);
  other.synchronize();
  gate.release();
  unsigned char found = 0;
  REQUIRE(cudaMemcpyAsync(&found, memory, 1, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(found == 0xCB);
  CHECK(cudaFreeAsync(memory, stream) == cudaSuccess);
  CHECK(cudaFreeAsync(memory, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(memory, 1, 8, stream) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
  stream.synchronize();
}

TEST_CASE("pageable host memory is staged, page-locked memory is not") {
  const OwnStream stream;
  const Array<int> array(1);
  void* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, sizeof(int)) == cudaSuccess);
  auto* number = static_cast<int*>(pinned);
  *number = 1;
  int pageable = 1;
  Gate gate;
  gate.close(stream);
  REQUIRE(cudaMemcpyAsync(array.data(), &pageable, sizeof(int), cudaMemcpyDefault, stream) == cudaSuccess);
  pageable = 2;
  gate.release();
  stream.synchronize();
  CHECK(array.download().front() == 1);
  Gate second;
  second.close(stream);
  REQUIRE(cudaMemcpyAsync(array.data(), number, sizeof(int), cudaMemcpyDefault, stream) == cudaSuccess);
  *number = 2;
  second.release();
  stream.synchronize();
  CHECK(array.download().front() == 2);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue);
  REQUIRE(cudaHostRegister(&pageable, sizeof pageable, 0) == cudaSuccess);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, &pageable) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(cudaHostUnregister(&pageable) == cudaSuccess);
  REQUIRE(cudaPointerGetAttributes(&attributes, &pageable) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("host code cannot access a GPU's memory") {
  if (!guards_memory()) return;
  const Array<int> array(1);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, [](int) { std::_Exit(3); });
    *static_cast<volatile int*>(array.data()) = 1;
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 3);
}

TEST_CASE("handles that are none and those of another GPU are rejected") {
  const OwnStream stream;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(nullptr, stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event, reinterpret_cast<cudaStream_t>(event)) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGraphLaunch(nullptr, stream) == cudaErrorInvalidValue);
  CHECK(cudaGraphDestroy(nullptr) == cudaErrorInvalidValue);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a use of a destroyed stream, event, graph or memory pool ends the process, also where errors are ignored") {
  const OwnStream stream;
  const Live before = live();
  cudaStream_t gone = nullptr;
  cudaEvent_t event = nullptr, gone_event = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  cudaMemPool_t pool = nullptr;
  void* memory = nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  REQUIRE(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
  REQUIRE(cudaMallocFromPoolAsync(&memory, 4, pool, stream) == cudaSuccess);
  REQUIRE(cudaStreamCreate(&gone) == cudaSuccess);
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  REQUIRE(cudaEventCreate(&gone_event) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(gone, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(gone, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&instance, graph, 0) == cudaSuccess);
  stream.synchronize();
  CHECK(!aborts([&] { return cudaEventRecord(event, gone); }));
  REQUIRE(cudaStreamDestroy(gone) == cudaSuccess);
  REQUIRE(cudaEventDestroy(gone_event) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(instance) == cudaSuccess);
  REQUIRE(cudaMemPoolDestroy(pool) == cudaSuccess);
  CHECK(aborts([&] { return cudaStreamDestroy(gone); }));
  CHECK(aborts([&] { return cudaStreamSynchronize(gone); }));
  CHECK(aborts([&] { return cudaStreamQuery(gone); }));
  CHECK(aborts([&] { return cudaEventRecord(event, gone); }));
  CHECK(aborts([&] { return cudaStreamWaitEvent(gone, event, 0); }));
  CHECK(aborts([&] { return cudaLaunchHostFunc(gone, [](void*) {}, nullptr); }));
  CHECK(aborts([&] { return cudaFreeAsync(memory, gone); }));
  CHECK(aborts([&] { return cudaMemsetAsync(memory, 0, 4, gone); }));
  CHECK(aborts([&] { return cudaEventRecord(gone_event, stream); }));
  CHECK(aborts([&] { return cudaEventQuery(gone_event); }));
  CHECK(aborts([&] { return cudaStreamWaitEvent(stream, gone_event, 0); }));
  CHECK(aborts([&] { return cudaEventDestroy(gone_event); }));
  CHECK(aborts([&] { return cudaGraphInstantiate(&instance, graph, 0); }));
  CHECK(aborts([&] { return cudaGraphDestroy(graph); }));
  CHECK(aborts([&] { return cudaGraphLaunch(instance, stream); }));
  CHECK(aborts([&] { return cudaGraphExecDestroy(instance); }));
  CHECK(aborts([&] { return cudaMallocFromPoolAsync(&memory, 4, pool, stream); }));
  CHECK(aborts([&] { return cudaMemPoolTrimTo(pool, 0); }));
  CHECK(aborts([&] { return cudaMemPoolDestroy(pool); }));
  REQUIRE(cudaFreeAsync(memory, stream) == cudaSuccess);  // memory outlives its pool
  stream.synchronize();
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  while (live().streams > before.streams) std::this_thread::yield();
  CHECK(live() == before);
}

TEST_CASE("a destroyed stream completes its work") {
  const Array<int> array(size);
  Gate gate;
  {
    const OwnStream stream;
    gate.close(stream);
    set(stream, array, 3);
  }
  const std::size_t streams = live().streams;
  CHECK(streams > 0);
  gate.release();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(array.download() == bytes(size, 3));
  CHECK(live().streams == streams - 1);
}

TEST_CASE("calls are counted and fail on request") {
  const std::size_t before = calls("cudaMalloc");
  fail_next("cudaMalloc", cudaErrorMemoryAllocation, 1);
  void* first = nullptr;
  void* second = nullptr;
  CHECK(cudaMalloc(&first, 4) == cudaSuccess);
  CHECK(cudaMalloc(&second, 4) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&second, 4) == cudaSuccess);
  CHECK(calls("cudaMalloc") == before + 3);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
  fail_always("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  fail_never();
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a captured step runs at each launch, in the captured order") {
  const Live before = live();
  {
    const OwnStream stream;
    const OwnStream side;
    const OwnEvent fork(cudaEventDisableTiming);
    const OwnEvent joined(cudaEventDisableTiming);
    const Array<int> array(size);
    const Array<int> other(size);
    set(stream, array, 1);
    set(stream, other, 0);
    stream.synchronize();
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    REQUIRE(cudaEventRecord(fork, stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(side, fork, 0) == cudaSuccess);
    copy(side, other, array);
    REQUIRE(cudaEventRecord(joined, side) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(stream, joined, 0) == cudaSuccess);
    set(stream, array, 2);
    void* memory = nullptr;
    CHECK(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaEventQuery(joined) == cudaErrorCapturedEvent);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    stream.synchronize();
    CHECK(array.download() == bytes(size, 1));  // capturing runs nothing
    cudaGraphExec_t instance = nullptr;
    REQUIRE(cudaGraphInstantiate(&instance, graph, 0) == cudaSuccess);
    const Delayed slow(500);
    REQUIRE(cudaGraphLaunch(instance, stream) == cudaSuccess);
    stream.synchronize();
    CHECK(other.download() == bytes(size, 1));
    CHECK(array.download() == bytes(size, 2));
    REQUIRE(cudaGraphLaunch(instance, stream) == cudaSuccess);
    stream.synchronize();
    CHECK(other.download() == bytes(size, 2));
    CHECK(cudaGraphExecDestroy(instance) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  while (live().streams > before.streams) std::this_thread::yield();
  CHECK(live() == before);
}

TEST_CASE(
    "memory that a capture allocates and frees is the graph's, at each launch, and must be freed to be launched "
    "again") {
  const OwnStream stream;
  const Array<int> array(size);
  cudaMemPool_t pool = nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  REQUIRE(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
  const Live before = live();
  void* outside = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&outside, 4, pool, stream) == cudaSuccess);
  for (const bool frees : {true, false}) {
    CAPTURE(frees);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    void* memory = nullptr;
    REQUIRE(cudaMallocFromPoolAsync(&memory, size * sizeof(int), pool, stream) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(array.data(), memory, size * sizeof(int), cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(memory, 1, size * sizeof(int), stream) == cudaSuccess);
    if (frees) CHECK(cudaFreeAsync(memory, stream) == cudaSuccess);
    CHECK(cudaFreeAsync(outside, stream) == cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    cudaGraphExec_t instance = nullptr;
    REQUIRE(cudaGraphInstantiate(&instance, graph, 0) == cudaSuccess);
    for (int launch = 0; launch < 2; ++launch) {
      CHECK((cudaGraphLaunch(instance, stream) == cudaSuccess) == (frees || launch == 0));
      stream.synchronize();
      CHECK(array.download() == std::vector<int>(size, static_cast<int>(0xCBCBCBCB)));  // new again
    }
    CHECK(cudaGraphExecDestroy(instance) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  CHECK(cudaFreeAsync(outside, stream) == cudaSuccess);
  stream.synchronize();
  while (live().streams > before.streams) std::this_thread::yield();
  CHECK(live() == before);
  CHECK(cudaMemPoolDestroy(pool) == cudaSuccess);
}

TEST_CASE("queries are refused while a stream is captured in the global mode, unless the thread's mode is relaxed") {
  const OwnStream captured, other;
  const OwnEvent event;
  CHECK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamQuery(other) == cudaErrorStreamCaptureUnsupported);
  auto mode = cudaStreamCaptureModeRelaxed;
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cudaStreamQuery(other) == cudaSuccess);
  CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
  CHECK(mode == cudaStreamCaptureModeRelaxed);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("a call that a capture does not allow invalidates it") {
  const OwnStream stream;
  const OwnStream side;
  const OwnEvent fork(cudaEventDisableTiming);
  const Array<int> array(size);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaEventRecord(fork, stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(side, fork, 0) == cudaSuccess);
  set(side, array, 1);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaMemsetAsync(array.data(), 1, 4, stream) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  set(stream, array, 4);
  stream.synchronize();
  CHECK(array.download() == bytes(size, 4));
  static_cast<void>(cudaGetLastError());
}
