// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/cuda/upload.hpp>
#include <distx/training.hpp>

#include <numeric>
#include <set>
#include <thread>

#include "cuda/gate.hpp"

namespace {

using distx::Cuda;
using distx::CudaStream;
using distx::Span;
using distx::cuda::PinnedBuffer;
using test::Gate;

std::vector<float> values_of(CudaStream& stream, Span<const float, Cuda> there) {
  const PinnedBuffer<float> here(there.size());
  copy(stream, here.span(), there);
  stream.synchronize();
  return {here.begin(), here.end()};
}

void count_from(float first, Span<float> values) { std::iota(values.begin(), values.end(), first); }

}  // namespace

TEST_CASE("a loader's workers fill page-locked batches, and the consumer's stream waits for their copies") {
  const distx::cuda::Uploader uploader;
  const distx::DistributedSampler sampler(64, 1, 2, {.batch_size = 4, .seed = 3});
  const auto expected = sampler.epoch(5);
  for (const std::size_t workers : {0u, 1u, 3u}) {
    CAPTURE(workers);
    const distx::DataLoader loader(sampler,
                                   [&](std::span<const std::size_t> samples) {
                                     return uploader.upload<float>(samples.size(), [&](Span<float> to) {
                                       for (std::size_t i = 0; i < to.size(); ++i)
                                         to[i] = static_cast<float>(samples[i]);
                                     });
                                   },
                                   {.workers = workers});
    CudaStream stream;
    std::size_t taken = 0;
    for (auto& batch : loader.epoch(5)) {
      REQUIRE(batch.size() == 4);
      for (const float value : values_of(stream, batch.on(stream)))
        CHECK(value == static_cast<float>(expected[taken++]));
    }
    CHECK(taken == expected.size());
  }
}

TEST_CASE("uploading does not wait for the consumer's stream, and memory is used again after its work") {
  const distx::cuda::Uploader uploader;
  CudaStream stream;
  const PinnedBuffer<float> results(20 * 100);
  std::set<const float*> pinned;
  {
    Gate gate(stream);  // nothing that the consumer enqueues runs
    for (std::size_t i = 0; i < 20; ++i) {
      auto batch = uploader.upload<float>(100, [&](Span<float> to) {
        pinned.insert(to.data());
        count_from(static_cast<float>(1000 * i), to);
      });
      copy(stream, results.span().subspan(100 * i, 100), Span<const float, Cuda>(batch.on(stream)));
    }
    CHECK(!stream.done());
    gate.open();
  }
  stream.synchronize();
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(results[100 * i] == static_cast<float>(1000 * i));
    CHECK(results[100 * i + 99] == static_cast<float>(1000 * i + 99));
  }
  CHECK(pinned.size() <= 20);
}

TEST_CASE("page-locked memory is used again") {
  const distx::cuda::Uploader uploader;
  CudaStream stream;
  std::set<const float*> pinned;
  for (std::size_t i = 0; i < 20; ++i) {
    auto batch = uploader.upload<float>(1000, [&](Span<float> to) {
      pinned.insert(to.data());
      count_from(static_cast<float>(i), to);
    });
    CHECK(values_of(stream, batch.on(stream))[999] == static_cast<float>(i + 999));
  }
  CHECK(pinned.size() == 1);
}

TEST_CASE("uploaded elements outlive their uploader, may be moved, and need not be used") {
  CudaStream stream;
  std::optional<distx::cuda::Uploaded<float>> batch;
  {
    const distx::cuda::Uploader uploader;
    const auto upload = [&](float first) {
      return uploader.upload<float>(10, [&](Span<float> to) { count_from(first, to); });
    };
    static_cast<void>(upload(1));
    batch = upload(2);
    batch = upload(3);
    CHECK(uploader.upload<float>(0, [](Span<float>) {}).on(stream).empty());
    CHECK_THROWS_AS(static_cast<void>(uploader.upload<float>(10, [](Span<float>) { throw 7; })), int);
  }
  auto moved = std::move(*batch);
  batch.reset();
  CHECK(values_of(stream, moved.on(stream)) == std::vector<float>{3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
}

TEST_CASE("threads upload to the GPU of the uploader, and keep their own current") {
  const distx::cuda::Uploader uploader;
  CudaStream stream;
  std::vector<distx::cuda::Uploaded<float>> batches(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < batches.size(); ++i)
      threads.emplace_back([&, i] {
        batches[i] = uploader.upload<float>(50, [&](Span<float> to) { count_from(static_cast<float>(i), to); });
      });
  }
  for (std::size_t i = 0; i < batches.size(); ++i)
    CHECK(values_of(stream, batches[i].on(stream))[49] == static_cast<float>(i + 49));
}
