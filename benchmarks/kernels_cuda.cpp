// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The bytes per second that kernels move on a GPU: the fused update of AdamW, and operations element by element, each
// next to a copy of equally many bytes within its memory, in turns in one run. It needs CUDA alone, so that it can be
// built on a bare machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <distx/cuda.hpp>
#include <distx/cuda/elements.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/tensor/ops/activations.hpp>

#include "timing/on_gpu.hpp"
#include "timing/samples.hpp"

namespace {

using distx::AdamW;
using distx::Buffer;
using distx::Cuda;
using distx::CudaStream;
using distx::Span;
using distx::Step;
using distx::cuda::detail::check;

/// The GPU's time between two places of a stream.
class Stopwatch {
 public:
  Stopwatch() : begin_(made()), end_(made()) {}

  template <class F>
  double seconds(const CudaStream& stream, F&& f) const {
    check(cudaEventRecord(begin_.native_handle(), stream.native_handle()), "cudaEventRecord");
    f();
    check(cudaEventRecord(end_.native_handle(), stream.native_handle()), "cudaEventRecord");
    check(cudaEventSynchronize(end_.native_handle()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.native_handle(), end_.native_handle()), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  static distx::cuda::detail::unique_event made() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return distx::cuda::detail::unique_event::from_native_handle(event);
  }

  distx::cuda::detail::unique_event begin_;
  distx::cuda::detail::unique_event end_;
};

template <class T>
struct Array {
  Buffer<T, Cuda> buffer;
  /// Values near 0.25, no two neighbours alike.
  explicit Array(std::size_t n) : buffer(n) {
    std::vector<T> values(std::min(n, std::size_t{1} << 20));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(0.25f + 1e-3f * static_cast<float>(i % 61));
    for (std::size_t i = 0; i < n; i += values.size()) {
      const std::size_t count = std::min(n - i, values.size());
      copy(distx::CudaStreamRef(), buffer.span().subspan(i, count), Span<const T>(values).first(count));
    }
    distx::CudaStreamRef().synchronize();
  }
  /// The elements but the last, or but the first.
  [[nodiscard]] Span<T, Cuda> cut(std::size_t from) const { return buffer.span().subspan(from, buffer.size() - 1); }
  [[nodiscard]] Span<const T, Cuda> cut_in(std::size_t from) const { return Span<const T, Cuda>(cut(from)); }
};

struct Subject {
  std::string name;
  std::size_t bytes;  ///< that are read or written of each element
  std::function<void()> pass;
  std::vector<double> seconds{}, of_copy{};
};

void measure(const CudaStream& stream, std::size_t elements, int rounds) {
  using distx::bfloat16, distx::float16;
  const Array<float> weight(elements), gradient(elements), mean(elements), square(elements);
  const Array<bfloat16> low(elements), low_gradient(elements);
  const Array<float16> half(elements);
  const Buffer<std::byte, Cuda> from(14 * elements), to(14 * elements);
  distx::DeviceStep device_step(AdamW{}, 1e-3);
  const Buffer<double, Cuda> largest(1);
  Step step{.learning_rate = 1e-3, .number = 0};
  const auto all = [](auto& array) { return array.buffer.span(); };
  const auto read = []<class T>(const Array<T>& array) { return Span<const T, Cuda>(array.buffer); };
  const auto masters = [&](std::size_t at_master, std::size_t at_low, std::size_t count) {
    const distx::detail::UpdatePiece<Cuda, AdamW, float, bfloat16, bfloat16> piece{
        AdamW{}.coefficients<float>(step),
        all(weight).subspan(at_master, count),
        read(low_gradient).subspan(at_low, count),
        {all(mean).subspan(0, count), all(square).subspan(0, count)},
        all(low).subspan(at_low, count)};
    distx::detail::fused_update(stream, std::span(&piece, 1));
  };
  std::vector<Subject> subjects{
      {"AdamW", 28,
       [&] {
         ++step.number;
         fused_update(stream, AdamW{}, step, all(weight), read(gradient), {all(mean), all(square)});
       }},
      {"AdamW, step on the GPU", 28,
       [&] {
         device_step.advance(stream);
         fused_update(stream, device_step, all(weight), read(gradient), {all(mean), all(square)});
       }},
      {"AdamW, states aligned", 28,
       [&] {  // as of a shard that begins anywhere
         ++step.number;
         fused_update(stream, AdamW{}, step, weight.cut(1), gradient.cut_in(1), {mean.cut(0), square.cut(0)});
       }},
      {"AdamW, cut anywhere", 28,
       [&] {
         ++step.number;
         fused_update(stream, AdamW{}, step, weight.cut(1), gradient.cut_in(0), {mean.cut(1), square.cut(0)});
       }},
      {"AdamW, bf16, masters", 28, [&] { ++step.number, masters(0, 0, elements); }},
      {"AdamW, bf16, cut", 28, [&] { ++step.number, masters(0, 1, elements - 1); }},
      {"fill", 4, [&] { fill(stream, all(gradient), 0.25f); }},
      {"f32 to bf16", 6, [&] { cast(stream, all(low), read(gradient)); }},
      {"f32 to f16", 6, [&] { cast(stream, all(half), read(gradient)); }},
      {"bf16 to f32", 6, [&] { cast(stream, all(gradient), read(low)); }},
      {"bf16 to f32, cut", 6, [&] { cast(stream, gradient.cut(0), low.cut_in(1)); }},
      {"scale", 8, [&] { scale(stream, all(gradient), 1.0000001); }},
      {"add", 12, [&] { add(stream, all(weight), read(gradient)); }},
      {"add, cut", 12, [&] { add(stream, weight.cut(0), gradient.cut_in(1)); }},
      {"mix", 12, [&] { mix(stream, all(weight), read(gradient), 0.999); }},
      {"gelu", 8,
       [&] { distx::for_elements(stream, distx::detail::elements::Gelu<float>{}, all(weight), read(gradient)); }},
      {"largest magnitude", 4, [&] { largest_magnitude(stream, read(gradient), largest.span()); }},
  };
  const Stopwatch watch;
  const std::size_t passes = std::clamp<std::size_t>((std::size_t{64} << 20) / elements, 3, 64);
  for (int round = 0; round <= rounds; ++round)
    for (std::size_t turn = 0; turn < subjects.size(); ++turn) {
      Subject& subject = subjects[(turn + static_cast<std::size_t>(round)) % subjects.size()];
      const auto timed = [&](auto&& pass) {
        return watch.seconds(stream, [&] {
          for (std::size_t i = 0; i < passes; ++i) pass();
        }) / static_cast<double>(passes);
      };
      const std::size_t half_bytes = subject.bytes * elements / 2;  // a copy moves each byte twice
      const double of_copy = timed(
          [&] { copy(stream, to.span().first(half_bytes), Span<const std::byte, Cuda>(from).first(half_bytes)); });
      const double seconds = timed(subject.pass);
      if (round == 0) continue;  // it warms up
      subject.seconds.push_back(seconds);
      subject.of_copy.push_back(of_copy);
    }
  for (const auto& subject : subjects) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < subject.seconds.size(); ++i) ratios.push_back(subject.of_copy[i] / subject.seconds[i]);
    const double seconds = timing::median(subject.seconds);
    std::printf("%10zu  %-24s %9.4f %8.1f  %9.3f\n", elements, subject.name.c_str(), 1e3 * seconds,
                1e-9 * static_cast<double>(subject.bytes * elements) / seconds, timing::median(ratios));
  }
  std::fflush(stdout);
}

int run(const std::vector<std::size_t>& sizes, int rounds) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, distx::cuda::current_device()), "cudaGetDeviceProperties");
  std::printf("on %s; medians of %d rounds\n", properties.name, rounds);
  std::printf("%10s  %-24s %9s %8s  %9s\n", "elements", "kernel", "ms", "GB/s", "over copy");
  const CudaStream stream;
  for (const std::size_t size : sizes) measure(stream, size, rounds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  int rounds = 21;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
      rounds = std::max(1, std::atoi(argv[++i]));
    else if (const long long size = std::atoll(argv[i]); size >= 8)
      sizes.push_back(static_cast<std::size_t>(size));
    else {
      std::printf("%s [--rounds N] [ELEMENTS…]: kernels beside a copy of as many bytes\n", argv[0]);
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 1;
    }
  }
  if (sizes.empty()) sizes = {std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{256} << 20};
  return timing::on_gpu([&] { return run(sizes, rounds); });
}
