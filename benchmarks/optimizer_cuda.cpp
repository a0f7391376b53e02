// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The bytes per second that the fused update of AdamW moves on a GPU, next to those of a copy within its memory, in
// turns in one run. It needs CUDA alone, so that it can be built on a bare machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <distx/cuda.hpp>
#include <distx/optim/adamw.hpp>

namespace {

using distx::AdamW;
using distx::Buffer;
using distx::Cuda;
using distx::CudaStream;
using distx::Span;
using distx::Step;
using distx::cuda::detail::check;

constexpr std::size_t update_bytes = 28;  // of each parameter: four floats read, three written

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

struct Model {
  Buffer<float, Cuda> weight, gradient, mean, square;

  explicit Model(std::size_t n) : weight(n), gradient(n), mean(n), square(n) {
    fill(distx::CudaStreamRef(), gradient.span(), 0.25f);
    distx::CudaStreamRef().synchronize();
  }
  template <class... OptimizerAndStep>
  void update(const CudaStream& stream, const OptimizerAndStep&... step) const {
    fused_update(stream, step..., weight.span(), Span<const float, Cuda>(gradient), {mean.span(), square.span()});
  }
  /// The same, one element after a boundary of vectors.
  void update_unaligned(const CudaStream& stream, const Step& step) const {
    const std::size_t n = weight.size() - 1;
    fused_update(stream, AdamW{}, step, weight.span().subspan(1, n), Span<const float, Cuda>(gradient).subspan(0, n),
                 {mean.span().subspan(1, n), square.span().first(n)});
  }
};

struct Subject {
  std::string name;
  std::function<void()> pass;
  std::vector<double> seconds{};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const CudaStream& stream, std::size_t elements, int rounds) {
  const Model model(elements);
  const std::size_t half = elements * update_bytes / 2;  // a copy moves each byte twice
  const Buffer<std::byte, Cuda> from(half), to(half);
  distx::DeviceStep device_step(AdamW{}, 1e-3);
  Step step{.learning_rate = 1e-3, .number = 0};
  std::vector<Subject> subjects{
      {"copy", [&] { copy(stream, to.span(), Span<const std::byte, Cuda>(from)); }},
      {"AdamW", [&] { ++step.number, model.update(stream, AdamW{}, step); }},
      {"AdamW, step on the GPU", [&] { device_step.advance(stream), model.update(stream, device_step); }},
      {"AdamW, cut anywhere", [&] { ++step.number, model.update_unaligned(stream, step); }},
  };
  const Stopwatch watch;
  const std::size_t passes = std::clamp<std::size_t>((std::size_t{64} << 20) / elements, 3, 64);
  for (int round = 0; round <= rounds; ++round)
    for (std::size_t turn = 0; turn < subjects.size(); ++turn) {
      Subject& subject = subjects[(turn + static_cast<std::size_t>(round)) % subjects.size()];
      const double seconds = watch.seconds(stream, [&] {
        for (std::size_t pass = 0; pass < passes; ++pass) subject.pass();
      });
      if (round > 0) subject.seconds.push_back(seconds / static_cast<double>(passes));  // the first one warms up
    }
  for (const auto& subject : subjects) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < subject.seconds.size(); ++i)
      ratios.push_back(subjects[0].seconds[i] / subject.seconds[i]);
    const double seconds = median(subject.seconds);
    std::printf("%10zu  %-24s %9.4f %8.1f  %9.3f\n", elements, subject.name.c_str(), 1e3 * seconds,
                1e-9 * static_cast<double>(update_bytes * elements) / seconds, median(ratios));
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  int rounds = 21;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
      rounds = std::max(1, std::atoi(argv[++i]));
    else if (const long long size = std::atoll(argv[i]); size >= 8)
      sizes.push_back(static_cast<std::size_t>(size));
    else {
      std::printf("%s [--rounds N] [PARAMETERS…]: the fused update of AdamW beside a copy as large\n", argv[0]);
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 1;
    }
  }
  if (sizes.empty()) sizes = {std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{256} << 20};
  if (const std::string reason = distx::cuda::why_no_gpu(); !reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 77;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, distx::cuda::current_device()), "cudaGetDeviceProperties");
  std::printf("on %s; float32; medians of %d rounds\n", properties.name, rounds);
  std::printf("%10s  %-24s %9s %8s  %9s\n", "parameters", "kernel", "ms", "GB/s", "over copy");
  const CudaStream stream;
  for (const std::size_t size : sizes) measure(stream, size, rounds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
