// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tensors in GPU memory: results have the bits of the host's tensors, and work is stream-ordered.
#include <doctest/doctest.h>

#include <distx/cuda_blas.hpp>
#include <distx/tensor.hpp>
#include <distx/tensor/ops/activations.hpp>
#include <distx/tensor/ops/arithmetic.hpp>
#include <distx/tensor/ops/matmul.hpp>
#include <distx/tensor/ops/softmax.hpp>

#include <mutex>
#include <sstream>

#include "../tensor/pairs.hpp"
#include "cuda/tensor_kernels.hpp"
#include "tensor_meshes.hpp"

namespace {

using distx::Cuda;
using distx::CudaStream;
using distx::CudaStreamRef;
using distx::Host;
using distx::Layout;
using distx::Partial;
using distx::Shard;
using distx::Span;
using gpu_meshes::Data;
using gpu_meshes::Gate;
using gpu_meshes::Mesh;
using gpu_meshes::Model;
using gpu_meshes::on_mesh;
using gpu_meshes::on_meshes;
using gpu_meshes::Rank;
using gpu_meshes::same;

constexpr distx::Extents<2> extents{5, 7};

distx::Tensor<float, 2> whole() {
  distx::Tensor<float, 2> made(extents);
  for (std::size_t i = 0; i < made.values().size(); ++i) made.values()[i] = static_cast<float>(i) * 0.5F - 3.0F;
  return made;
}

/// This rank's term of a sum along Model, of sixteenths, which are added without rounding.
template <class... Ps>
auto terms(const Mesh& mesh) {
  auto x = distx::random<float, Ps...>(mesh, extents, 5);
  for (float& value : x.local())
    value = static_cast<float>(static_cast<int>(value * 64) + mesh.coordinate<Model>()) / 16;
  return distx::from_local<Ps..., Partial<Model>>(mesh, extents, x.local());
}

/// Goes through pairs of layouts, every `step`th of them; says what is wrong, at most a few things.
std::size_t try_pairs(std::pair<int, int> shape, const std::vector<pairs::Sizes>& tensors, std::size_t step,
                      std::vector<std::string>& wrong) {
  std::mutex mutex;
  std::size_t all = 0;
  on_mesh(shape, [&](Rank& rank) {
    using pairs::Value;
    auto& mesh = distx::detail::in_space<Cuda>(distx::detail::state_of(rank.gpus));
    std::array<distx::calls::AnyOp, distx::detail::max_axes> ops;
    ops.fill(distx::calls::AnyOp::make<Value>(distx::sum));
    std::size_t tried = 0;
    for (const auto& sizes : tensors)
      for (const auto& from : pairs::all_layouts(2, sizes.size(), true))
        for (const auto& to : pairs::all_layouts(2, sizes.size(), false)) {
          if (++tried % step != 0) continue;
          const auto wanted = pairs::relayout(mesh.shape, sizes, from, to);
          const auto source = pairs::part(wanted.source, from, mesh.coordinates);
          const auto expected = pairs::part(wanted.target, to, mesh.coordinates);
          std::vector<Value> target(expected.size(), -1);
          const CudaStreamRef stream = rank.stream;
          const distx::Buffer<Value, Cuda> in(source.size(), distx::uninitialized, stream);
          const distx::Buffer<Value, Cuda> out(target.size(), distx::uninitialized, stream);
          distx::copy(stream, in.span(), Span<const Value>(source));
          distx::copy(stream, out.span(), Span<const Value>(target));
          {
            distx::detail::Redistribution<Cuda> work(mesh, wanted, ops, Span<const Value, Cuda>(in),
                                                     Span<Value, Cuda>(out), stream, {});
            if (tried / step % 2 == 0) {
              work.start().wait(stream);
              work.finish(stream);
            } else {
              work.run();
            }
          }
          distx::copy(stream, Span<Value>(target), out.span());
          stream.synchronize();
          if (target == expected) continue;
          const std::lock_guard lock(mutex);
          if (wrong.size() < 5)
            wrong.push_back("rank " + std::to_string(mesh.rank) + ": " + pairs::words(mesh.shape, sizes, from, to));
        }
    if (mesh.rank == 0) all = tried / step;
  });
  return all;
}

TEST_CASE("redistribute is right for every pair of layouts") {
  for (const auto& shape : gpu_meshes::shapes) {
    std::vector<std::string> wrong;
    std::size_t pairs = try_pairs(shape, {{5}, {3, 5}}, 1, wrong);
    pairs += try_pairs(shape, {{2, 3, 5}}, 7, wrong);
    MESSAGE(shape.first, " x ", shape.second, ": ", pairs, " pairs");
    for (const auto& words : wrong) FAIL_CHECK(words);
  }
}

TEST_CASE("redistribute is right for every pair of layouts without the copy kernel") {
  auto* const kernel = std::exchange(distx::cuda::detail::copy_runs_kernel, nullptr);
  std::vector<std::string> wrong;
  try_pairs({2, 1}, {{5}, {3, 5}, {2, 3, 5}}, 3, wrong);
  distx::cuda::detail::copy_runs_kernel = kernel;
  for (const auto& words : wrong) FAIL_CHECK(words);
}

TEST_CASE("tensors are made in GPU memory, and copied from the host's") {
  on_meshes([](Rank& rank) {
    const Mesh &gpus = rank.gpus, &host = rank.host;
    CHECK(same(distx::zeros<float, Cuda, Shard<0, Data>>(gpus, extents),
               distx::zeros<float, Shard<0, Data>>(host, extents)));
    CHECK(same(distx::full<int, Cuda, Shard<1, Model>>(gpus, {5, 7}, 3),
               distx::full<int, Shard<1, Model>>(host, {5, 7}, 3)));
    CHECK(same(distx::ones<double, Cuda>(gpus, {5, 7}), distx::ones<double>(host, {5, 7})));
    const auto x = distx::random<float, Cuda, Shard<1, Data>>(gpus, extents, 3);
    const auto y = distx::random<float, Shard<1, Data>>(host, extents, 3);
    CHECK(same(x, y));
    CHECK(same(x.clone(), y));
    CHECK(same(distx::to_space<Cuda>(distx::random<float, Shard<1, Data>>(gpus, extents, 3)), y));
    CHECK(same(distx::from_local<Shard<1, Data>>(gpus, extents, x.local()), y));
    CHECK(same(distx::distribute<Cuda, Shard<0, Model>>(gpus, whole()),
               distx::distribute<Shard<0, Model>>(host, whole())));
    CHECK(x.stream() == rank.stream);
  });
}

TEST_CASE("redistribute is right for every element type") {
  on_meshes([](Rank& rank) {
    const auto on_host = terms<Shard<0, Data>>(rank.host);
    const auto x = distx::to_space<Cuda>(terms<Shard<0, Data>>(rank.gpus));
    CHECK(same(distx::redistribute<>(x), distx::redistribute<>(on_host)));
    CHECK(same(distx::redistribute<Shard<1, Model>, Shard<0, Data>>(x),
               distx::redistribute<Shard<1, Model>, Shard<0, Data>>(on_host)));
    CHECK(same(distx::all_reduce<Model>(x), distx::all_reduce<Model>(on_host)));
    CHECK(same(distx::reduce_scatter<Model, 1>(x), distx::reduce_scatter<Model, 1>(on_host)));
    const auto y = distx::redistribute<Shard<1, Data>>(x);
    const auto y_host = distx::redistribute<Shard<1, Data>>(on_host);
    CHECK(same(y, y_host));
    CHECK(same(distx::all_gather<Data>(y), distx::all_gather<Data>(y_host)));
    CHECK(same(distx::all_to_all<Data, 0>(y), distx::all_to_all<Data, 0>(y_host)));
    auto mine = x.clone();
    const float* const memory = mine.local().data();
    const auto reduced = distx::redistribute<Shard<0, Data>>(std::move(mine));  // in place
    CHECK(reduced.local().data() == memory);
    CHECK(same(reduced, distx::redistribute<Shard<0, Data>>(on_host)));
    auto out = distx::zeros<float, Cuda, Shard<1, Model>>(rank.gpus, extents);
    distx::redistribute(x, out);
    CHECK(same(out, distx::redistribute<Shard<1, Model>>(on_host)));
    const auto maxima = distx::from_local<Shard<0, Data>, Partial<Model, distx::Max>>(rank.gpus, extents, x.local());
    const auto maxima_host =
        distx::from_local<Shard<0, Data>, Partial<Model, distx::Max>>(rank.host, extents, on_host.local());
    CHECK(same(distx::redistribute<Shard<1, Data>>(maxima), distx::redistribute<Shard<1, Data>>(maxima_host)));
  });
}

TEST_CASE("scatter and gather move tensors between the root and all ranks") {
  on_meshes([](Rank& rank) {
    const int root = rank.gpus.size() - 1;
    const auto x = distx::distribute<Cuda, Shard<1, Data>, Shard<0, Model>>(rank.gpus, whole());
    const auto all = distx::gather<Host>(x, root);
    const auto there = distx::gather(x, root);
    if (rank.gpus.rank() == root) {
      const auto expected = whole();
      CHECK(gpu_meshes::same_bits(all.values(), expected.values()));
    } else {
      CHECK(all.values().empty());
      CHECK(there.values().empty());
    }
    CHECK(same(distx::scatter<Shard<1, Data>, Shard<0, Model>>(rank.gpus, there, root),
               distx::distribute<Shard<1, Data>, Shard<0, Model>>(rank.host, whole())));
    std::ostringstream on_gpus, on_host;
    distx::print(on_gpus, x, root);
    distx::print(on_host, distx::distribute<Shard<1, Data>, Shard<0, Model>>(rank.host, whole()), root);
    CHECK(on_gpus.str() == on_host.str());
  });
}

TEST_CASE("collectives along a mesh axis keep the stream's order") {
  on_meshes([](Rank& rank) {
    auto& of_host = rank.host.communicator();
    const distx::Mesh<Data> line(rank.comm, {rank.gpus.size()}, rank.stream);
    const distx::Mesh<Data> host_line(of_host, {rank.gpus.size()});
    const auto compare = [&](const auto& on_gpu, const auto& on_host) {
      distx::Tensor<float, 2> here(on_gpu.extents());
      distx::copy(rank.stream, here.values(), on_gpu.values());
      rank.stream.synchronize();
      CHECK(here.extents() == on_host.extents());
      CHECK(gpu_meshes::same_bits(std::as_const(here).values(), on_host.values()));
    };
    const auto x = distx::random<float, Cuda>(line, extents, static_cast<unsigned>(line.rank()));
    const auto y = distx::random<float>(host_line, extents, static_cast<unsigned>(line.rank()));
    for (const std::size_t dim : {0U, 1U}) {
      compare(distx::all_gather(rank.comm, x.view(), dim, {}, rank.stream), distx::all_gather(of_host, y.view(), dim));
      compare(distx::reduce_scatter(rank.comm, x.view(), distx::max, dim, {}, rank.stream),
              distx::reduce_scatter(of_host, y.view(), distx::max, dim));
      compare(distx::all_to_all(rank.comm, x.view(), dim, 1 - dim, {}, rank.stream),
              distx::all_to_all(of_host, y.view(), dim, 1 - dim));
    }
  });
}

TEST_CASE("operations are enqueued without waiting, and keep their order") {
  on_meshes([](Rank& rank) {
    const auto old = terms<Shard<0, Data>>(rank.host);
    auto x = distx::to_space<Cuda>(distx::zeros<float, Shard<0, Data>, Partial<Model>>(rank.gpus, extents));
    const auto values = distx::to_space<Cuda>(terms<Shard<0, Data>>(rank.gpus));
    const auto there_and_back = [&] {
      auto y = distx::redistribute<>(x);
      const auto z = distx::redistribute<Shard<1, Data>>(distx::redistribute<Shard<1, Model>>(x));
      return std::pair(std::move(y), distx::redistribute<>(z.clone()));
    };
    static_cast<void>(there_and_back());  // making connections and loading kernels may wait for all streams
    {
      Gate gate(rank.stream);
      distx::copy(rank.stream, x.local(), values.local());  // not before the gate opens
      const auto [y, again] = there_and_back();
      CHECK_FALSE(rank.stream.done());
      gate.open();
      CHECK(same(y, distx::redistribute<>(old)));
      CHECK(same(again, distx::redistribute<>(old)));
    }
  });
}

TEST_CASE("start_redistribute runs after one stream, and another can wait for it") {
  on_meshes([](Rank& rank) {
    const auto old = terms<Shard<0, Data>>(rank.host);
    const auto values = distx::to_space<Cuda>(terms<Shard<0, Data>>(rank.gpus));
    const CudaStream side, third;
    const auto check = [&]<class L>(std::type_identity<L>) {
      auto x = distx::to_space<Cuda>(distx::zeros<float, Shard<0, Data>, Partial<Model>>(rank.gpus, extents));
      static_cast<void>(distx::start_redistribute<L>(x, side).wait());  // first calls may wait for all streams
      static_cast<void>(distx::start_redistribute<Shard<1, Data>>(values).wait());
      const auto expected = distx::redistribute<L>(old);
      distx::cuda::PinnedBuffer<float> here(
          expected.local().size());  // before the gate: allocating may wait for the GPU
      Gate gate(side);
      distx::copy(side.ref(), x.local(), values.local());
      auto pending = distx::start_redistribute<L>(x, side);
      const auto y = pending.wait(third);
      distx::copy(third.ref(), here.span(), y.local());
      // After those, since asynchronous collectives run in one order.
      auto other = distx::start_redistribute<Shard<1, Data>>(values);
      CHECK_FALSE(side.done());
      gate.open();
      CHECK(same(other.wait(), distx::redistribute<Shard<1, Data>>(old)));
      third.synchronize();
      CHECK(gpu_meshes::same_bits(Span<const float>(here), expected.local()));
      CHECK(same(y, expected));
      { auto abandoned = distx::start_redistribute<Shard<0, Model>>(x, third); }
    };
    check(std::type_identity<Layout<Shard<0, Data>>>());
    check(std::type_identity<Layout<Shard<1, Data>>>());
    check(std::type_identity<Layout<Shard<1, Data>, Shard<0, Model>>>());
    auto kept = distx::start_redistribute<Shard<0, Data>, Partial<Model>>(values, side);  // of which nothing is sent
    CHECK(same(kept.wait(), old));
  });
}

TEST_CASE("custom kernels and those of distx keep one order") {
  on_meshes([](Rank& rank) {
    const auto x = distx::random<float, Cuda, Shard<1, Data>>(rank.gpus, extents, 1);
    const auto y = distx::random<float, Cuda, Shard<1, Data>>(rank.gpus, extents, 2);
    const auto x_host = distx::random<float, Shard<1, Data>>(rank.host, extents, 1);
    const auto y_host = distx::random<float, Shard<1, Data>>(rank.host, extents, 2);
    const auto sum =
        distx::rules::apply<distx::rules::Zip>(x, y, [&](CudaStreamRef stream, auto left, auto right, auto out) {
          CHECK(stream == rank.stream);
          CHECK(out.extents() == x.local_extents());
          tensor_kernels::twice_plus(stream, left.values(), right.values(), out.values());
        });
    CHECK(same(sum, distx::ops::zip(x_host, y_host, [](float a, float b) { return 2 * a + b; })));
    CHECK(same(distx::ops::map(x, tensor_kernels::Cube{}), distx::ops::map(x_host, tensor_kernels::Cube{})));
    CHECK(same(distx::ops::relu(distx::ops::subtract(x, y)), distx::ops::relu(distx::ops::subtract(x_host, y_host))));
    CHECK(same(distx::ops::relu_backward(x, y), distx::ops::relu_backward(x_host, y_host)));
    CHECK(same(distx::ops::add(x, y), distx::ops::add(x_host, y_host)));
    CHECK(same(distx::ops::multiply(x, y), distx::ops::multiply(x_host, y_host)));
    CHECK(same(distx::ops::scale(x, 3), distx::ops::scale(x_host, 3)));
    const auto near = [&](const auto& on_gpu, const auto& on_host) {
      const auto there = distx::to_space<Host>(on_gpu);
      for (std::size_t i = 0; i < there.local().size(); ++i)
        CHECK(std::abs(there.local()[i] - on_host.local()[i]) <= 1e-6F);
    };
    near(distx::ops::gelu(x), distx::ops::gelu(x_host));
    near(distx::ops::gelu_backward(x, y), distx::ops::gelu_backward(x_host, y_host));
  });
}

TEST_CASE("matmul equals the host's up to rounding") {
  on_meshes([](Rank& rank) {
    const auto near = [&](const auto& on_gpu, const auto& on_host) {
      const auto there = distx::to_space<Host>(on_gpu);
      REQUIRE(there.extents() == on_host.extents());
      for (std::size_t i = 0; i < there.local().size(); ++i)
        CHECK(std::abs(there.local()[i] - on_host.local()[i]) <= 1e-5F);
    };
    const auto of = [&]<class... Space>(const Mesh& mesh, Space...) {
      const auto x = distx::random<float, Space..., Shard<0, Data>, Shard<1, Model>>(mesh, {5, 7}, 1);
      const auto w = distx::random<float, Space..., Shard<0, Model>>(mesh, {7, 3}, 2);
      const auto turned = distx::random<float, Space..., Shard<1, Model>>(mesh, {3, 7}, 3);
      const auto slope = distx::random<float, Space..., Shard<0, Data>>(mesh, {5, 3}, 4);
      return std::tuple(distx::redistribute<Shard<0, Data>>(distx::ops::matmul(x, w)),
                        distx::redistribute<Shard<0, Data>>(distx::ops::matmul(x, distx::ops::transposed(turned))),
                        distx::redistribute<Shard<0, Model>>(distx::ops::matmul(distx::ops::transposed(x), slope)));
    };
    const auto gpu = of(rank.gpus, Cuda{});
    const auto host = of(rank.host);
    near(std::get<0>(gpu), std::get<0>(host));
    near(std::get<1>(gpu), std::get<1>(host));
    near(std::get<2>(gpu), std::get<2>(host));
  });
}

TEST_CASE("errors name the operation and the shapes") {
  on_mesh({1, 1}, [](Rank& rank) {
    const auto x = distx::zeros<float, Cuda>(rank.gpus, extents);
    const auto says = [](const std::string& words, const char* part) {
      CHECK_MESSAGE(words.find(part) != std::string::npos, words);
    };
    says(gpu_meshes::message_thrown([&] { (void)distx::ops::map(x, [](float value) { return value + 1; }); }),
         "register a custom function there by distx::cuda::register_function");
    const auto on_host = distx::zeros<float>(rank.gpus, extents);
    says(gpu_meshes::message_thrown([&] { (void)distx::redistribute<Shard<0, Data>>(on_host); }),
         "the mesh's communicator moves cuda memory, not host memory");
    const auto on_gpu = distx::zeros<float, Cuda>(rank.host, extents);
    says(gpu_meshes::message_thrown([&] { (void)distx::redistribute<Shard<0, Data>>(on_gpu); }),
         "the mesh's communicator moves host memory, not cuda memory");
    auto small = distx::zeros<float, Cuda>(rank.gpus, {5, 6});
    says(gpu_meshes::message_thrown([&] { distx::redistribute(x, small); }),
         "the source has extents 5 x 7, the target 5 x 6");
    says(gpu_meshes::message_thrown([&] { (void)distx::from_local(rank.gpus, distx::Extents<2>{5, 6}, x.local()); }),
         "got 35 values, this rank's part of 5 x 6 is 5 x 6");
  });
}

}  // namespace
