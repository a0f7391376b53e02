// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of each operation on the tensors of one rank and of each optimizer's update, by shape: a line each with the
// median in ns a call of CPU time. Run it in two checkouts to compare them: `operations [PART OF A NAME]...`.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <distx/distx.hpp>
#include <distx/optim/two_pass_optimizer.hpp>
#include <distx/tensor/ops.hpp>

namespace {

namespace ops = distx::ops;

struct Model {};
using Mesh = distx::Mesh<Model>;
using Lengths = std::initializer_list<std::size_t>;

double now() { return 1e9 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class Table {
 public:
  explicit Table(std::vector<std::string_view> parts) : parts_(std::move(parts)) {}

  /// Prints the median of 7 blocks of calls that take about 2 ms each.
  template <class F>
  void row(const std::string& name, const F& call) const {
    const auto is_in = [&](std::string_view part) { return name.find(part) != std::string::npos; };
    if (!parts_.empty() && std::ranges::none_of(parts_, is_in)) return;
    const auto block = [&](std::size_t calls) {
      const double begin = now();
      for (std::size_t i = 0; i < calls; ++i) {
        [[maybe_unused]] const auto result = call();
        asm volatile("" ::"r"(&result) : "memory");  // it is used
      }
      return now() - begin;
    };
    std::size_t calls = 1;
    while (block(calls) < 2e6) calls *= 2;
    std::vector<double> times(7);
    for (double& time : times) time = block(calls) / static_cast<double>(calls);
    std::ranges::nth_element(times, times.begin() + 3);
    std::printf("%-40s %12.1f\n", name.c_str(), times[3]);
  }

 private:
  std::vector<std::string_view> parts_;
};

/// Numbers of both signs, in no order.
float noise(std::size_t i) { return static_cast<float>((i * 2'654'435'761U) % 2'001) / 1'000 - 1; }

template <class T, std::size_t Rank>
auto tensor(const Mesh& mesh, const distx::Extents<Rank>& extents) {
  std::size_t count = 1;
  for (const std::size_t extent : extents) count *= extent;
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(noise(i));
  return distx::from_local(mesh, extents, values);
}

template <class T>
void of_rows(const Table& table, const Mesh& mesh, const char* type, std::size_t rows, std::size_t n) {
  const auto name = [&](const char* operation) {
    return std::string(operation) + " " + type + " " + std::to_string(rows) + "x" + std::to_string(n);
  };
  const auto x = tensor<T>(mesh, distx::Extents<2>{rows, n});
  const auto weight = tensor<T>(mesh, distx::Extents<1>{n}), slope = tensor<T>(mesh, distx::Extents<1>{rows});
  std::vector<int> ids(rows);
  for (std::size_t i = 0; i < rows; ++i) ids[i] = static_cast<int>(i * 7 % n);
  const auto targets = distx::from_local(mesh, distx::Extents<1>{rows}, ids);
  const auto y = ops::softmax(x);
  const auto loss = ops::cross_entropy(x, targets);
  const auto most = ops::max_over<1>(x);
  table.row(name("softmax"), [&] { return ops::softmax(x); });
  table.row(name("softmax_backward"), [&] { return ops::softmax_backward(y, x); });
  table.row(name("layer_norm"), [&] { return ops::layer_norm(x, weight, weight); });
  table.row(name("layer_norm_backward"), [&] { return ops::layer_norm_backward(x, weight, x); });
  table.row(name("cross_entropy"), [&] { return ops::cross_entropy(x, targets); });
  table.row(name("cross_entropy_backward"),
            [&] { return ops::cross_entropy_backward(x, targets, loss.log_sums, slope); });
  table.row(name("gelu"), [&] { return ops::gelu(x); });
  table.row(name("gelu_backward"), [&] { return ops::gelu_backward(x, x); });
  table.row(name("sum_over<0>"), [&] { return ops::sum_over<0>(x); });
  table.row(name("sum_over<1>"), [&] { return ops::sum_over<1>(x); });
  table.row(name("mean_over<1>"), [&] { return ops::mean_over<1>(x); });
  table.row(name("max_over<0>"), [&] { return ops::max_over<0>(x); });
  table.row(name("max_over<1>"), [&] { return ops::max_over<1>(x); });
  table.row(name("sum_over_backward<1>"), [&] { return ops::sum_over_backward<1>(x, slope); });
  table.row(name("max_over_backward<1>"), [&] { return ops::max_over_backward<1>(x, most, slope); });
}

template <class Optimizer>
void of_optimizer(const Table& table, const char* type, const Optimizer& optimizer, std::size_t n) {
  const std::string name = std::string(type) + " " + std::to_string(n);
  const distx::Step step{.learning_rate = 1e-6, .number = 100};
  distx::Buffer<float> weight(n), gradient(n), direction(n);
  std::array<distx::Buffer<float>, Optimizer::states> states;
  std::array<distx::Span<float>, Optimizer::states> state;
  for (std::size_t i = 0; i < n; ++i) weight[i] = noise(i), gradient[i] = noise(i + n);
  for (std::size_t s = 0; s < Optimizer::states; ++s) states[s] = distx::Buffer<float>(n), state[s] = states[s].span();
  const distx::HostStream stream;
  const distx::Span<const float> slopes(gradient.span());
  if constexpr (distx::ElementwiseOptimizer<Optimizer>) {
    table.row(name, [&] { return distx::fused_update(stream, optimizer, step, weight.span(), slopes, state), 0; });
  } else {
    const auto to = direction.span();
    table.row(name + " direction",
              [&] { return distx::fused_direction(stream, optimizer, step, weight.span(), slopes, to, state), 0; });
    table.row(name + " apply", [&] { return distx::fused_apply(stream, optimizer, step, 1, weight.span(), to), 0; });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Table table({argv + 1, argv + argc});
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  const Mesh mesh(comm, {1});
  for (const std::size_t n : Lengths{2, 3, 4, 7, 8, 10, 16, 23, 32, 64, 71, 128, 1024})
    of_rows<float>(table, mesh, "float", 16'384 / n, n);
  for (const std::size_t n : Lengths{4, 16, 64}) of_rows<double>(table, mesh, "double", 16'384 / n, n);
  for (const std::size_t rows : Lengths{1, 8}) of_rows<float>(table, mesh, "float", rows, 16);
  of_rows<float>(table, mesh, "float", 64, 1'000);
  for (const std::size_t n : Lengths{64, 256, 1'024}) {
    const auto x = tensor<float>(mesh, distx::Extents<2>{n, n});
    table.row("matmul float " + std::to_string(n), [&] { return ops::matmul(x, x); });
    table.row("matmul of a transpose float " + std::to_string(n), [&] { return ops::matmul(x, ops::transposed(x)); });
  }
  for (const std::size_t n : Lengths{100, 1'000, 65'536, 1'000'000}) {
    of_optimizer(table, "AdamW", distx::AdamW{}, n);
    of_optimizer(table, "SGD", distx::SGD{.momentum = 0.9}, n);
    of_optimizer(table, "LAMB", distx::LAMB{}, n);
    of_optimizer(table, "Muon", distx::Muon{}, n);
  }
}
