// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Compares the time of operations on distributed tensors that need no communication with the time of the same Eigen
// expressions on this rank's part, in turns on one core. Both allocate their result.
#include <malloc.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <distx/eigen.hpp>
#include <distx/tensor.hpp>
#include <distx/tensor/ops.hpp>
#include <distx/threads.hpp>

#include "timing/samples.hpp"

namespace {

struct Model {};
using Matrix = distx::eigen::RowMajor<float>;

struct Pair {
  std::string name;
  std::function<void()> distx, eigen;
};

/// Keeps the compiler from removing a computation.
template <class T>
void keep(const T* value) {
  asm volatile("" : : "r"(value) : "memory");  // NOLINT
}

double seconds_of(const std::function<void()>& f, int calls) {
  const auto begin = timing::clock::now();
  for (int i = 0; i < calls; ++i) f();
  return timing::since(begin) / calls;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t rows = 512, columns = 512;
  int rounds = 101;
  double limit = 0;
  CLI::App app("What an operation on a distributed tensor costs over the same Eigen expression");
  app.add_option("--rows", rows, "of each matrix")->capture_default_str();
  app.add_option("--columns", columns, "of each matrix")->capture_default_str();
  app.add_option("--rounds", rounds, "of turns")->capture_default_str();
  app.add_option("--limit", limit, "the status is 1 where a ratio is above this; 0 for none")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  // Freed memory stays with the process; otherwise some calls would wait for new pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  const distx::Mesh<Model> mesh(comm, {1});
  const auto x = distx::random<float, distx::Shard<1, Model>>(mesh, {rows, columns}, 1, -1, 1);
  const auto y = distx::random<float, distx::Shard<1, Model>>(mesh, {rows, columns}, 2, -1, 1);
  const auto w = distx::random<float, distx::Shard<0, Model>>(mesh, {columns, columns}, 3, -1, 1);
  const Matrix a = distx::eigen::map(x), b = distx::eigen::map(y), c = distx::eigen::map(w);

  const std::vector<Pair> pairs = {
      {"relu",
       [&] {
         const auto r = distx::ops::relu(x);
         keep(r.local().data());
       },
       [&] {
         const Matrix r = a.cwiseMax(0.0F);
         keep(r.data());
       }},
      {"add",
       [&] {
         const auto r = distx::ops::add(x, y);
         keep(r.local().data());
       },
       [&] {
         const Matrix r = a + b;
         keep(r.data());
       }},
      {"multiply",
       [&] {
         const auto r = distx::ops::multiply(x, y);
         keep(r.local().data());
       },
       [&] {
         const Matrix r = a.cwiseProduct(b);
         keep(r.data());
       }},
      {"matmul",
       [&] {
         const auto r = distx::ops::matmul(x, w, distx::eigen::product);
         keep(r.local().data());
       },
       [&] {
         const Matrix r = a * c;
         keep(r.data());
       }},
  };
  bool within = true;
  fmt::print("{} x {} floats, median of {} rounds\n", rows, columns, rounds);
  for (const auto& [name, ours, eigens] : pairs) {
    const int calls = std::max(1, static_cast<int>(2e-3 / std::max(1e-9, seconds_of(ours, 3))));
    std::vector<double> distx_seconds, eigen_seconds, ratios;
    for (int round = 0; round < rounds; ++round) {
      // In turns, and each first every other time.
      if (round % 2 == 0) distx_seconds.push_back(seconds_of(ours, calls));
      eigen_seconds.push_back(seconds_of(eigens, calls));
      if (round % 2 != 0) distx_seconds.push_back(seconds_of(ours, calls));
      ratios.push_back(distx_seconds.back() / eigen_seconds.back());
    }
    const double ratio = timing::median(ratios);
    fmt::print("{:10} distx {:10.2f} us   Eigen {:10.2f} us   ratio {:.3f}\n", name,
               1e6 * timing::median(distx_seconds), 1e6 * timing::median(eigen_seconds), ratio);
    within = within && (limit == 0 || ratio <= limit);
  }
  return within ? 0 : 1;
}
