// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every handle type closes exactly once; which errors and what memory calls leave to others; and which GPU a rank gets.
// Counted by what stands in for CUDA.
#include <distx/cuda/detail/blas_handle.hpp>
#include <distx/cuda/fixed_point.hpp>
#include <distx/cuda/fused_update.hpp>
#include <distx/cuda/pick_device.hpp>
#include <distx/cuda/upload.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/threads.hpp>

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "cuda/gate.hpp"
#include "cuda/placed.hpp"
#include "standin/aborts.hpp"
#include "standin/standin.hpp"

namespace {

/// Destroyed streams count until their work is complete.
void wait_for(const standin::Live& wanted) {
  static_cast<void>(cudaDeviceSynchronize());
  CHECK(standin::live() == wanted);
}

/// `make` gives what CUDA gives; `count` how many of them are alive.
template <class Unique>
void check(const std::function<typename Unique::handle_type()>& make,
           const std::function<std::size_t(const standin::Live&)>& count) {
  const auto before = standin::live();
  const auto more = [&] { return count(standin::live()) - count(before); };
  {
    Unique empty;
    CHECK(!empty);
    empty.reset();
    Unique first = Unique::from_native_handle(make());
    CHECK(more() == 1);
    Unique second = std::move(first);
    CHECK(!first);  // NOLINT: moved from
    CHECK(second);
    CHECK(more() == 1);
    first = Unique::from_native_handle(make());
    CHECK(more() == 2);
    first = std::move(second);  // closes its own
    CHECK(more() == 1);
    Unique& self = first;
    first = std::move(self);
    CHECK(more() == 1);
    const auto released = first.release();
    CHECK(!first);
    CHECK(more() == 1);
    first.reset(released);
  }
  CHECK(more() == 0);
  wait_for(before);
}

}  // namespace

TEST_CASE("every handle is closed once") {
  using namespace distx::cuda::detail;
  check<unique_stream>(
      [] {
        cudaStream_t stream = nullptr;
        CHECK(cudaStreamCreate(&stream) == cudaSuccess);
        return stream;
      },
      [](const standin::Live& live) { return live.streams; });
  check<unique_event>(
      [] {
        cudaEvent_t event = nullptr;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
        return event;
      },
      [](const standin::Live& live) { return live.events; });
  check<unique_pinned>(
      [] {
        void* memory = nullptr;
        CHECK(cudaMallocHost(&memory, 100) == cudaSuccess);
        return memory;
      },
      [](const standin::Live& live) { return live.host_allocations; });
  check<unique_device_memory>(
      [] {
        void* memory = nullptr;
        CHECK(cudaMalloc(&memory, 100) == cudaSuccess);
        return DeviceMemory{memory};
      },
      [](const standin::Live& live) { return live.device_allocations; });
  check<unique_blas>(
      [] {
        blas_traits::handle_type owned;
        CHECK(cublasCreate(&owned.handle) == CUBLAS_STATUS_SUCCESS);
        return owned;
      },
      [](const standin::Live& live) { return live.cublas_handles; });
}

TEST_CASE("operations that return a number leak nothing, even when they fail") {
  const distx::CudaStream stream;
  const Placed<float> values(wave<float>(1000));
  static_cast<void>(sum_of_squares(stream, values.span()));
  stream.synchronize();
  const auto before = standin::live();
  static_cast<void>(sum_of_squares(stream, values.span()));
  standin::fail_next("cudaMemcpyAsync", cudaErrorUnknown);
  CHECK_THROWS_WITH_AS(static_cast<void>(sum_of_squares(stream, values.span())), doctest::Contains("cudaMemcpyAsync: "),
                       distx::Error);
  wait_for(before);
}

TEST_CASE("queries of streams and events keep the last error of other code") {
  const distx::CudaStream stream;
  const distx::CudaEvent event;
  test::Gate gate(stream);
  event.record(stream);
  standin::keeps_not_ready(false);  // else CUDA itself writes over it
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, std::size_t{1} << 60) == cudaErrorMemoryAllocation);
  CHECK(!stream.done());
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(!event.done());
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  standin::keeps_not_ready(true);
}

TEST_CASE("a failed allocation is retried after streams have freed their memory") {
  const distx::CudaStream stream;
  test::Gate gate(stream);
  { const distx::Buffer<int, distx::Cuda> behind_the_gate(1, distx::uninitialized, stream); }
  const std::size_t before = standin::calls("cudaDeviceSynchronize");
  const std::jthread opens([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && standin::calls("cudaDeviceSynchronize") == before) std::this_thread::yield();
    gate.open();
  });
  standin::fail_next("cudaMalloc", cudaErrorMemoryAllocation);
  const distx::Buffer<int, distx::Cuda> buffer(1, distx::uninitialized);
  CHECK(stream.done());
  gate.open();
}

TEST_CASE("a driver that calls a large request invalid is out of memory") {
  for (const cudaError_t code : {cudaErrorInvalidValue, cudaErrorAlreadyMapped}) {
    standin::fail_always("cudaMallocHost", code);
    CHECK_THROWS_WITH_AS(distx::cuda::PinnedBuffer<int>(1), doctest::Contains("no page-locked memory for 1 elements"),
                         distx::MemoryError);
    standin::fail_never();
  }
  standin::fail_next("cudaMallocHost", cudaErrorIllegalAddress);
  CHECK_THROWS_AS(distx::cuda::PinnedBuffer<int>(1), distx::BackendError);
}

TEST_CASE("hundreds of arrays are updated, and reduced, in one launch each") {
  const distx::CudaStream stream;
  using Piece = distx::detail::UpdatePiece<distx::Cuda, distx::AdamW, float>;
  const std::size_t each = 40, count = 300;
  const Placed<float> values(std::vector<float>(each * count, 1.0f)), first(std::vector<float>(each * count)),
      second(std::vector<float>(each * count));
  const auto coefficients = distx::AdamW{}.coefficients<float>({.learning_rate = 0.1, .number = 1});
  std::vector<Piece> pieces;
  std::vector<distx::detail::ReducedPiece<distx::Cuda>> reduced;
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = [&](const Placed<float>& all) { return all.span().subspan(i * each, each); };
    pieces.push_back({coefficients, part(values), part(values), {part(first), part(second)}});
    reduced.push_back({part(values), 0});
  }
  const auto launches = [&](auto&& f) {
    const std::size_t before = standin::calls("cudaLaunchKernelEx");
    f();
    return standin::calls("cudaLaunchKernelEx") - before;
  };
  const distx::Buffer<double, distx::Cuda> largest(1);
  const distx::Buffer<std::uint64_t, distx::Cuda> parts(2);
  CHECK(launches([&] { largest_magnitudes(stream, std::span(std::as_const(reduced)), largest.span()); }) == 1);
  CHECK(launches([&] {
          fixed_point_squares(stream, std::span(std::as_const(reduced)),
                              distx::Span<const double, distx::Cuda>(largest), parts.span());
        }) == 1);
  CHECK(launches([&] { fused_update(stream, std::span(std::as_const(pieces))); }) == 1);
  stream.synchronize();
}

TEST_CASE("pick_device gives each rank its own GPU and rejects a shared one on every rank") {
  using distx::cuda::pick_device;
  distx::spawn(3, [](auto& connector) { CHECK(pick_device(connector) == connector.rank()); });
  const int gpus = distx::cuda::device_count();
  CHECK_THROWS_WITH_AS(distx::spawn(gpus + 1, [](auto& connector) { pick_device(connector); }),
                       doctest::Contains("chose the same GPU"), distx::Error);
  distx::spawn(gpus + 1, [](auto& connector) { pick_device(connector, {.share = true}); });
  standin::same_uuid(1, 0);
  CHECK_THROWS_WITH_AS(distx::spawn(2, [](auto& connector) { pick_device(connector); }),
                       doctest::Contains("ranks 0 and 1 chose the same GPU"), distx::Error);
  standin::same_uuid(1, 1);
  standin::devices(0);
  CHECK_THROWS_WITH_AS(distx::spawn(2, [](auto& connector) { pick_device(connector); }),
                       doctest::Contains("rank 0 sees no GPU"), distx::Error);
  standin::devices(gpus);
}

TEST_CASE("uploaded elements and buffers that are destroyed after their stream end the process on the stand-in") {
  const auto destroy = [](bool stream_first) {
    const distx::cuda::Uploader uploader;
    auto batch = uploader.upload<float>(10, [](distx::Span<float>) {});
    std::optional<distx::CudaStream> stream(std::in_place);
    static_cast<void>(batch.on(*stream));
    if (stream_first) stream.reset();
    batch = {};
    return 0;
  };
  CHECK(!standin::aborts([&] { return destroy(false); }));
  CHECK(standin::aborts([&] { return destroy(true); }));
  CHECK(standin::aborts([] {
    std::optional<distx::CudaStream> stream(std::in_place);
    distx::Buffer<float, distx::Cuda> buffer(10, *stream);
    stream.reset();
    buffer = {};
    return 0;
  }));
}
