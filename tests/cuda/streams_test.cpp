// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Streams, events and buffers.
#include <distx/cuda/buffer.hpp>

#include <optional>
#include <thread>
#include <utility>

#include "cuda/gate.hpp"
#include "cuda/placed.hpp"

namespace {

using distx::Buffer;
using distx::Cuda;
using distx::CudaEvent;
using distx::CudaStream;
using distx::CudaStreamRef;
using distx::Span;
using distx::cuda::PinnedBuffer;
using test::Gate;

}  // namespace

TEST_CASE("operations run in the stream's order and do not block the host") {
  const CudaStream stream;
  const Placed<float> values(std::vector<float>(1000, 1)), other(std::vector<float>(1000, 2));
  const PinnedBuffer<float> host(1000);
  Gate gate(stream);
  fill(stream, values.span(), 3.0f);
  scale(stream, values.span(), 0.5);
  add(stream, values.span(), other.in());
  copy(stream, host.span(), values.in());
  CHECK(!stream.done());
  CHECK(cudaGetLastError() == cudaSuccess);  // a query leaves no error
  CHECK(host[999] == 0);
  gate.open();
  stream.synchronize();
  CHECK(stream.done());
  CHECK(host[0] == 3.5f);
  CHECK(host[999] == 3.5f);
}

TEST_CASE("a stream waits for another's event and for nothing else") {
  const CudaStream first, second;
  const CudaEvent event;
  const Placed<float> values(std::vector<float>(100, 1));
  const PinnedBuffer<float> early(100), late(100);
  CHECK(event.done());  // never recorded
  Gate gate(first);
  fill(first, values.span(), 2.0f);
  event.record(first);
  CHECK(!event.done());
  CHECK(cudaGetLastError() == cudaSuccess);
  copy(second, early.span(), values.in());
  second.synchronize();
  CHECK(early[99] == 1);
  second.wait(event);
  copy(second, late.span(), values.in());
  CHECK(!second.done());
  gate.open();
  second.synchronize();
  CHECK(event.done());
  CHECK(late[99] == 2);
}

TEST_CASE("streams and events may be asked for while another thread captures") {
  const CudaStream captured, other;
  const distx::CudaEvent event;
  event.record(other);
  distx::cuda::detail::check(cudaStreamBeginCapture(captured.native_handle(), cudaStreamCaptureModeGlobal),
                             "cudaStreamBeginCapture");
  std::thread([&] {
    distx::cuda::set_device(0);
    while (!event.done()) std::this_thread::yield();
    while (!other.done()) std::this_thread::yield();
  }).join();
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(captured.native_handle(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("streams and events of the user are referenced, adopted and released") {
  cudaStream_t raw = nullptr;
  REQUIRE(cudaStreamCreate(&raw) == cudaSuccess);
  const CudaStreamRef borrowed = CudaStreamRef::from_native_handle(raw);
  CHECK(borrowed.native_handle() == raw);
  CHECK(borrowed == CudaStreamRef(raw));
  CHECK(CudaStreamRef() != borrowed);
  borrowed.synchronize();
  CHECK(borrowed.done());
  CudaStream owned = CudaStream::from_native_handle(raw);
  CHECK(owned.ref() == borrowed);
  CudaStream moved = std::move(owned);
  CHECK(moved.native_handle() == raw);
  CHECK(moved.release() == raw);
  CHECK(cudaStreamDestroy(raw) == cudaSuccess);

  CudaEvent event;
  const cudaEvent_t released = event.release();
  CHECK(event.native_handle() == nullptr);
  const CudaEvent again = CudaEvent::from_native_handle(released);
  again.record({});
  again.synchronize();
  CHECK(again.done());
}

TEST_CASE("buffers are zero, move, and throw MemoryError when memory is exhausted") {
  const CudaStream stream;
  const Buffer<int, Cuda> zeros(1001), ordered(1001, stream);
  for (const auto* buffer : {&zeros, &ordered}) {
    std::vector<int> host(1001, 7);
    copy(stream, Span<int>(host), Span<const int, Cuda>(*buffer));
    stream.synchronize();
    CHECK(host == std::vector<int>(1001));
  }
  Buffer<float, Cuda> first(10, distx::uninitialized, stream);
  float* const address = first.data();
  Buffer<float, Cuda> second(std::move(first));
  CHECK(second.data() == address);
  CHECK(second.size() == 10);
  CHECK(first.data() == nullptr);  // NOLINT: moved from
  CHECK(first.size() == 0);        // NOLINT
  first = std::move(second);
  CHECK(first.data() == address);
  CHECK(Buffer<float, Cuda>().span().empty());
  CHECK(Buffer<float, Cuda>(0).data() == nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(address) % distx::alignment_bytes == 0);

  CHECK_THROWS_WITH_AS((Buffer<double, Cuda>(std::size_t{1} << 60, distx::uninitialized)),
                       doctest::Contains("no GPU memory for 1152921504606846976 elements of 8 bytes"),
                       distx::MemoryError);
  CHECK_THROWS_AS((Buffer<double, Cuda>(std::size_t{1} << 62, distx::uninitialized)), distx::MemoryError);
  CHECK_THROWS_WITH_AS(PinnedBuffer<double>(std::size_t{1} << 60), doctest::Contains("no page-locked memory"),
                       distx::MemoryError);
  CHECK(cudaGetLastError() == cudaSuccess);  // a reported error is not reported again
  const PinnedBuffer<int> pinned(5);
  for (const int value : pinned) CHECK(value == 0);
}

TEST_CASE("memory of stream-ordered buffers is kept until it is released on request") {
  constexpr std::size_t bytes = 64 << 20;
  const CudaStream stream;
  const auto reserved = [&] {
    stream.synchronize();
    std::uint64_t held = 0;
    const cudaMemPool_t pool = distx::cuda::detail::Pools::all().of(distx::cuda::current_device());
    REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &held) == cudaSuccess);
    return held;
  };
  distx::cuda::release_unused_memory();
  const auto before = reserved();
  { const Buffer<std::byte, Cuda> buffer(bytes, distx::uninitialized, stream); }
  CHECK(reserved() >= before + bytes);
  distx::cuda::release_unused_memory();
  CHECK(reserved() < before + bytes);
}

TEST_CASE("a buffer is freed on its own GPU's default stream, whichever GPU is current") {
  if (distx::cuda::device_count() < 2) {
    MESSAGE("left out: there is one GPU");
    return;
  }
  const PinnedBuffer<int> host(1);
  const distx::cuda::DeviceGuard one(1);
  for (const CudaStreamRef stream : {CudaStreamRef(), CudaStreamRef(cudaStreamLegacy)}) {
    std::optional<Buffer<int, Cuda>> buffer(std::in_place, 1, stream);
    stream.synchronize();
    host[0] = 7;
    Gate gate{stream};
    copy(stream, host.span(), Span<const int, Cuda>(buffer->span()));
    {
      const distx::cuda::DeviceGuard zero(0);
      buffer.reset();
      stream.synchronize();
    }
    gate.open();
    stream.synchronize();
    CHECK(host[0] == 0);
  }
}

TEST_CASE("DeviceGuard restores the previous GPU") {
  const int before = distx::cuda::current_device();
  {
    const distx::cuda::DeviceGuard guard(distx::cuda::device_count() - 1);
    CHECK(distx::cuda::current_device() == distx::cuda::device_count() - 1);
    CHECK_THROWS_AS(distx::cuda::DeviceGuard{distx::cuda::device_count()}, distx::Error);
    CHECK(distx::cuda::current_device() == distx::cuda::device_count() - 1);
  }
  CHECK(distx::cuda::current_device() == before);
  CHECK(distx::cuda::why_no_gpu().empty());
}
