// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Typed tensors: creation, description, gathering, printing and the errors of their operations.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "distx/tensor/ops/activations.hpp"
#include "distx/tensor/ops/arithmetic.hpp"
#include "distx/tensor/ops/matmul.hpp"
#include "meshes.hpp"

namespace {

using meshes::agrees;
using meshes::Comm;
using meshes::Data;
using meshes::five_by_seven;
using meshes::Layout;
using meshes::Mesh;
using meshes::Model;
using meshes::Partial;
using meshes::Shard;

/// A user's own type, with as much as the functions ask for.
struct Mine {
  using value_type = float;
  using space = distx::Host;
  using mesh_type = Mesh;
  using layout_type = Layout<Shard<1, Model>>;

  static constexpr std::size_t rank() { return 2; }
  [[nodiscard]] const Mesh& mesh() const { return *where; }
  [[nodiscard]] distx::Extents<2> extents() const { return all; }
  [[nodiscard]] const std::vector<float>& local() const { return values; }

  const Mesh* where;
  distx::Extents<2> all;
  std::vector<float> values;
};
static_assert(distx::DistributedTensor<Mine>);
static_assert(!distx::DistributedTensor<distx::Tensor<float, 2>>);
using Tensor = distx::DistTensor<float, 2, Mesh, Layout<Shard<0, Data>>>;
static_assert(distx::DistributedTensor<Tensor> && distx::DistributedTensor<Tensor::const_ref_type>);
static_assert(!std::copyable<Tensor> && std::movable<Tensor>);

/// Calls f for layouts of all kinds.
template <class F>
void for_layouts(F&& f) {
  f(std::type_identity<Layout<>>{});
  f(std::type_identity<Layout<Shard<0, Data>>>{});
  f(std::type_identity<Layout<Shard<1, Data>, Shard<0, Model>>>{});
  f(std::type_identity<Layout<Shard<1, Data>, Shard<1, Model>>>{});
}

TEST_CASE("gather returns what distribute and scatter were given, for every layout") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm& comm) {
      const auto all = meshes::whole(five_by_seven);
      for_layouts([&]<class L>(std::type_identity<L>) {
        const std::uint64_t before = comm.ledger().total().calls;
        const auto x = distx::distribute<L>(mesh, all);
        CHECK(comm.ledger().total().calls == before);
        CHECK(agrees(x, all));
        CHECK(x.local().size() == distx::volume(x.local_extents()));
        for (int root = 0; root < mesh.size(); ++root) {
          const auto before_gather = comm.ledger().total();
          auto again = distx::gather(x, root);
          auto moved = comm.ledger().total();
          moved -= before_gather;
          if (mesh.rank() == root) {
            CHECK(std::equal(again.values().begin(), again.values().end(), all.values().begin(), all.values().end()));
            CHECK(moved.received_bytes == (all.values().size() - x.local().size()) * sizeof(float));
          } else {
            CHECK(again.values().empty());
            // The extents come from the root as well.
            again = distx::Tensor<float, 2>({1, 1});
          }
          CHECK(agrees(distx::scatter<L>(mesh, again, root), all));
        }
      });
    });
}

TEST_CASE("local_extents, offset and local describe each rank's part, empty parts included") {
  meshes::on_mesh({2, 3}, [](const Mesh& mesh, Comm&) {
    auto x = distx::zeros<float, Shard<0, Data>, Shard<1, Model>>(mesh, {5, 7});
    const auto data = static_cast<std::size_t>(mesh.coordinate<Data>());
    const auto model = static_cast<std::size_t>(mesh.coordinate<Model>());
    CHECK(x.extents() == five_by_seven);
    CHECK(x.offset() == distx::Extents<2>{data * 2, model * 7 / 3});
    CHECK(x.local_extents() == distx::Extents<2>{2 + data, (model + 1) * 7 / 3 - model * 7 / 3});
    x.view()(1, 1) = 5;
    CHECK(x.local()[x.local_extents()[1] + 1] == 5);
    const auto copy = x.clone();
    x.view()(1, 1) = 6;
    CHECK(copy.view()(1, 1) == 5);
    const auto ref = x.ref();
    ref.view()(0, 0) = 7;
    CHECK(x.local()[0] == 7);
    const distx::Tensor<int, 0> number(distx::Extents<0>{});
    CHECK(number.values().size() == 1);
  });
}

TEST_CASE("zeros, full, generate and random give the same values in every layout") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm&) {
      const auto all = distx::random<float>(mesh, five_by_seven, 17);
      const auto indices =
          distx::generate<float>(mesh, five_by_seven, [](const auto& i) { return meshes::element(i[0] * 7 + i[1]); });
      CHECK(agrees(indices, meshes::whole(five_by_seven)));
      for_layouts([&]<class L>(std::type_identity<L>) {
        const auto x = distx::random<float, L>(mesh, five_by_seven, 17);
        const auto same = distx::redistribute<L>(all);
        CHECK(std::equal(x.local().begin(), x.local().end(), same.local().begin(), same.local().end()));
        const auto threes = distx::full<float, L>(mesh, {5, 7}, 3), ones = distx::ones<float, L>(mesh, {5, 7});
        for (const float value : threes.local()) CHECK(value == 3);
        for (const float value : ones.local()) CHECK(value == 1);
      });
      float least = 1, most = 0, sum = 0;
      const auto many = distx::random<float>(mesh, {1000}, 3);
      for (const float value : many.local()) {
        least = std::min(least, value);
        most = std::max(most, value);
        sum += value;
      }
      CHECK(least >= 0);
      CHECK(least < 0.02F);
      CHECK(most > 0.98F);
      CHECK(most < 1);
      CHECK(std::abs(sum / 1000 - 0.5F) < 0.05F);
      const auto low = distx::random<float>(mesh, {50}, 3, -2, -1), other = distx::random<float>(mesh, {50}, 4, -2, -1);
      for (const float value : low.local()) CHECK((value >= -2 && value < -1));
      CHECK(low.local()[0] != other.local()[0]);
    });
}

TEST_CASE("from_local copies or takes this rank's part, and a user's own type is a distributed tensor") {
  meshes::on_mesh({1, 3}, [](const Mesh& mesh, Comm&) {
    const auto all = meshes::whole(five_by_seven);
    const auto x = distx::distribute<Shard<1, Model>>(mesh, all);
    std::vector<float> part(x.local().begin(), x.local().end());
    CHECK(agrees(distx::from_local<Shard<1, Model>>(mesh, {5, 7}, part), all));
    distx::Buffer<float> buffer(part.size());
    std::copy(part.begin(), part.end(), buffer.begin());
    const float* const memory = buffer.data();
    const auto taken = distx::from_local<Shard<1, Model>>(mesh, five_by_seven, std::move(buffer));
    CHECK(taken.local().data() == memory);
    CHECK(agrees(taken, all));
    const distx::DistTensorRef<float, 2, Mesh, Layout<Shard<1, Model>>> borrowed(mesh, five_by_seven, part);
    CHECK(borrowed.local().data() == part.data());
    CHECK(agrees(distx::redistribute<>(borrowed), all));
    const Mine mine{&mesh, five_by_seven, part};
    CHECK(agrees(distx::redistribute<Shard<0, Model>>(mine), all));
    part.pop_back();
    const auto words =
        meshes::message_thrown([&] { (void)distx::from_local<Shard<1, Model>>(mesh, five_by_seven, part); });
    CHECK(words.find("this rank's part of 5 x 7 is 5 x ") != std::string::npos);
  });
}

TEST_CASE("functions that create tensors accept a memory space, and kernels may take its stream") {
  meshes::on_mesh({2, 1}, [](const Mesh& mesh, Comm&) {
    const auto x = distx::random<float, distx::Host, Shard<0, Data>>(mesh, five_by_seven, 5);
    const auto same = distx::random<float, Shard<0, Data>>(mesh, five_by_seven, 5);
    static_assert(std::same_as<decltype(x), decltype(same)>);
    const auto y = distx::to_space<distx::Host>(x);
    CHECK(std::equal(x.local().begin(), x.local().end(), y.local().begin(), y.local().end()));
    const auto all = distx::gather<distx::Host>(x, 0);
    CHECK(all.values().size() == (mesh.rank() == 0 ? 35 : 0));
    const auto twice = distx::rules::apply<distx::rules::Elementwise>(x, [](distx::HostStream, auto in, auto out) {
      for (std::size_t i = 0; i < in.values().size(); ++i) out.values()[i] = 2 * in.values()[i];
    });
    CHECK(twice.local()[3] == 2 * x.local()[3]);
    CHECK(meshes::message_thrown([&] {
            (void)distx::Tensor<float, 1>(distx::Extents<1>{2}, distx::Buffer<float>(3));
          }).find("got 3 values, extents 2 need 2") != std::string::npos);
  });
}

TEST_CASE("print writes on the root only") {
  meshes::on_mesh({2, 2}, [](const Mesh& mesh, Comm&) {
    std::ostringstream out;
    distx::print(out,
                 distx::generate<int, Shard<1, Data>>(mesh, {2, 3}, [](const auto& i) { return 10 * i[0] + i[1]; }), 3);
    if (mesh.rank() == 3)
      CHECK(out.str() == "int32, 2 x 3, Shard<1, Data> on Data 2 x Model 2\n[[0, 1, 2],\n [10, 11, 12]]\n");
    else
      CHECK(out.str().empty());
    std::ostringstream scalar;
    distx::print(scalar, distx::Tensor<float, 0>(distx::Extents<0>{}));
    CHECK(scalar.str() == "0\n");
  });
}

TEST_CASE("print shows the first and last three indices of the long dimensions of a large tensor") {
  const auto printed = [](const auto& x) {
    std::ostringstream out;
    distx::print(out, x);
    return out.str();
  };
  std::vector<int> numbers(7007);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::span<const int> all(numbers);
  CHECK(printed(distx::TensorRef<const int, 1>(all.first(1001), {1001})) == "[0, 1, 2, ..., 998, 999, 1000]\n");
  const std::string thousand = printed(distx::TensorRef<const int, 1>(all.first(1000), {1000}));
  CHECK(std::count(thousand.begin(), thousand.end(), ',') == 999);
  CHECK(printed(distx::TensorRef<const int, 2>(all, {1001, 7})) ==
        "[[0, 1, 2, ..., 4, 5, 6],\n [7, 8, 9, ..., 11, 12, 13],\n [14, 15, 16, ..., 18, 19, 20],\n ...,\n"
        " [6986, 6987, 6988, ..., 6990, 6991, 6992],\n [6993, 6994, 6995, ..., 6997, 6998, 6999],\n"
        " [7000, 7001, 7002, ..., 7004, 7005, 7006]]\n");
  CHECK(printed(distx::TensorRef<const int, 2>(all.first(1002), {501, 2})).find("[4, 5],\n ...,\n [996, 997]") !=
        std::string::npos);
}

TEST_CASE("a size error names the operation that was called, the rank, and the caller's line") {
  meshes::on_mesh({2, 2}, [](const Mesh& mesh, Comm&) {
    const auto x = distx::ones<float>(mesh, {4, 5});
    const auto y = distx::ones<float>(mesh, {6, 3});
    const auto found = [&](const std::string& thrown, const std::string& operation, std::uint_least32_t line) {
      for (const std::string& part : {operation + " on rank " + std::to_string(mesh.rank()) + " of 4: ",
                                      std::string("4 x 5 and 6 x 3"), "[dist_tensor_test.cpp:" + std::to_string(line)})
        if (thrown.find(part) == std::string::npos) return false;
      return true;
    };
    const auto here = [](std::source_location location = std::source_location::current()) { return location.line(); };
    CHECK(found(meshes::message_thrown([&] { (void)distx::ops::matmul(x, y); }), "matmul", here()));
    CHECK(found(meshes::message_thrown([&] { (void)distx::ops::subtract(x, y); }), "subtract", here()));
    CHECK(found(meshes::message_thrown([&] { (void)distx::ops::relu_backward(x, y); }), "relu_backward", here()));
    CHECK_THROWS_AS((void)distx::ops::add(x, y), distx::InvalidArgument);
    const Mesh other(mesh.communicator(), {2, 2});
    CHECK(meshes::message_thrown([&] {
            (void)distx::ops::add(x, distx::ones<float>(other, {4, 5}));
          }).find("construct them from the same Mesh") != std::string::npos);
  });
}

}  // namespace
