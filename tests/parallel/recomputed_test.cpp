// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/layers/recomputed.hpp>
#include <distx/parallel/layers/transformer_block.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include <functional>

#include "allocations.hpp"
#include "toy.hpp"

namespace recomputed_test {

namespace {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
template <bool SequenceParallel>
using Split = distx::layers::TensorParallel<Grid, Data, Model, SequenceParallel>;

// Every tensor of a block has at least 1 KiB on each of 4 ranks, which distinguishes it from other allocations.
constexpr std::size_t batch = 4, length = 8, heads = 4, width = 32, blocks = 3;

struct At {
  double seed;
  template <std::size_t Rank>
  float operator()(const std::array<std::size_t, Rank>& index) const {
    double at = seed;
    for (const auto i : index) at = 1.7 * at + static_cast<double>(i);
    return static_cast<float>(0.4 * std::sin(at));
  }
};
struct Initial {
  At projections{1}, output{2}, wide{3}, narrow{4};
};

/// A block that says when its forward pass ends and its backward pass begins.
template <class Block>
struct Watched : Block {
  using Block::Block;
  template <class X, class Training>
  auto forward(X x, Training& training) const {
    auto result = Block::forward(std::move(x), training);
    if (at_edge) at_edge();
    return result;
  }
  template <class Kept, class G, class Training>
  auto backward(Kept kept, const G& gradient, Training& training) const {
    if (at_edge) at_edge();
    return Block::backward(std::move(kept), gradient, training);
  }
  inline static thread_local std::function<void()> at_edge;
};
template <class S>
using Kept = Watched<distx::layers::TransformerBlock<float, S>>;
template <class S>
using Recomputed = distx::layers::Recomputed<Kept<S>>;
template <class S>
using Joined = distx::layers::ParallelAttentionMlpBlock<float, S>;

template <class Block>
std::vector<Block> stack(const Grid& mesh) {
  std::vector<Block> all;
  for (std::size_t i = 0; i < blocks; ++i) all.emplace_back("block" + std::to_string(i), mesh, width, heads, Initial());
  return all;
}
template <class Block>
distx::TensorParameterList<> weights_of(const std::vector<Block>& all) {
  distx::TensorParameterList<> list;
  for (const auto& block : all) block.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
  return list;
}

template <class S>
using Stream = typename S::template tensor<float, 3, typename S::residual>;
template <class S>
Stream<S> stream(const Grid& mesh, double seed) {
  return distx::generate<float, typename S::residual>(mesh, {batch, length, width}, At{seed});
}

/// Returns what the backward pass takes of each block.
template <class Block, class S, class Training>
auto forward(const std::vector<Block>& all, Stream<S>& x, Training& training) {
  std::vector<decltype(all[0].forward(std::move(x), training).activations)> kept;
  for (const auto& block : all) {
    auto [output, activations] = block.forward(std::move(x), training);
    x = std::move(output);
    kept.push_back(std::move(activations));
  }
  return kept;
}
template <class Block, class Kept, class G, class Training>
void backward(const std::vector<Block>& all, Kept kept, G gradient, Training& training) {
  for (std::size_t i = all.size(); i-- > 0; kept.pop_back())
    gradient = all[i].backward(std::move(kept[i]), gradient, training);
}

using Words = std::vector<std::vector<float>>;

/// Returns the weights after three steps of two micro-batches each, as rank 0 has them.
/// @param in_flight  whether both micro-batches run forward before the first one runs backward
template <class S, template <class> class Block, int Stage>
Words weights_after(const std::array<int, 2>& shape, bool in_flight) {
  Words found;
  toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, shape);
    const auto all = stack<Block<S>>(mesh);
    distx::MeshParallel<Data, distx::ZeRO<Stage>, distx::Accumulate<distx::Sharded>> training(
        mesh, weights_of(all), distx::SGD{}, {.bucket_bytes = 4096});
    for (int step = 0; step < 3; ++step) {
      const auto go_back = [&](std::size_t i, auto kept) {
        const auto part = training.micro_batch({.index = i, .count = 2});
        backward(all, std::move(kept), stream<S>(mesh, 11 + step + 100 * static_cast<double>(i)), training);
      };
      auto first = stream<S>(mesh, 5 + step), second = stream<S>(mesh, 8 + step);
      auto of_first = forward<Block<S>, S>(all, first, training);
      if (in_flight) {
        auto of_second = forward<Block<S>, S>(all, second, training);
        go_back(0, std::move(of_first));
        go_back(1, std::move(of_second));
      } else {
        go_back(0, std::move(of_first));
        go_back(1, forward<Block<S>, S>(all, second, training));
      }
      training.step({.learning_rate = 0.1});
    }
    training.for_each_full_weight([&](const std::string&, const auto& whole) {
      const auto* const values = static_cast<const float*>(whole.data());
      if (comm.rank() == 0) found.emplace_back(values, values + whole.size());
    });
  });
  return found;
}

template <class S, int Stage>
void check_bits(const std::array<int, 2>& shape) {
  INFO("stage ", Stage, " on ", shape[0], " x ", shape[1]);
  const auto expected = weights_after<S, Kept, Stage>(shape, false);
  REQUIRE(expected.size() == blocks * 12);
  CHECK(weights_after<S, Kept, Stage>(shape, true) == expected);
  CHECK(weights_after<S, Recomputed, Stage>(shape, false) == expected);
  CHECK(weights_after<S, Recomputed, Stage>(shape, true) == expected);
}

/// The largest activations by the ledger, and the largest allocations when a block's forward pass ended or its backward
/// pass began, without its output or gradient.
struct Peak {
  std::uint64_t ledger = 0;
  long allocated = 0;
  std::uint64_t left = 0;  ///< by the ledger, after the pass
};
template <class S, template <class> class Block>
Peak peak_of(const std::array<int, 2>& shape) {
  Peak found;
  toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, shape);
    const auto all = stack<Block<S>>(mesh);
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, weights_of(all), distx::SGD{});
    auto x = stream<S>(mesh, 5);
    const auto slope = stream<S>(mesh, 11);
    const auto own = static_cast<long>(sizeof(float) * slope.local().size());
    const auto tensors = [] { return test::held.bytes - 64 * test::held.blocks; };  // a Buffer aligns in 64 bytes
    long before = 0, most = 0;
    Kept<S>::at_edge = [&] { most = std::max(most, tensors() - before - own); };
    before = tensors() - own;  // x is the first activation
    auto kept = forward<Block<S>, S>(all, x, training);
    static_cast<void>(Stream<S>(std::move(x)));  // the output
    backward(all, std::move(kept), slope.clone(), training);
    Kept<S>::at_edge = nullptr;
    training.step({.learning_rate = 0.1});
    const auto memory = training.memory();
    if (comm.rank() == 0) found = {memory.activations.peak, most, memory.activations.held};
  });
  return found;
}

}  // namespace

TEST_CASE("micro-batches in flight and recomputed blocks give the same bits, at every stage and on a mesh") {
  check_bits<Split<false>, 0>({2, 1});
  check_bits<Split<false>, 1>({2, 1});
  check_bits<Split<false>, 2>({2, 1});
  check_bits<Split<false>, 3>({2, 1});
  check_bits<Split<false>, 1>({1, 2});
  check_bits<Split<true>, 3>({2, 2});
}

TEST_CASE("the ledger counts the activations that are allocated, and a recomputed block keeps its input only") {
  constexpr std::uint64_t tokens = batch * length * sizeof(float);
  const auto kept = peak_of<Split<false>, Kept>({1, 1});
  CHECK(kept.ledger == blocks * tokens * 16 * width);
  CHECK(kept.left == 0);
  const auto recomputed = peak_of<Split<false>, Recomputed>({1, 1});
  CHECK(recomputed.ledger == blocks * tokens * width + tokens * 16 * width);
  CHECK(recomputed.left == 0);
  // On two ranks of the model axis, tokens are whole, and so are the inputs of the norms unless they are sharded.
  CHECK(peak_of<Split<false>, Kept>({1, 2}).ledger == blocks * tokens * (4 + 6) * width);
  CHECK(peak_of<Split<true>, Kept>({1, 2}).ledger == blocks * tokens * (1 + 2 + 6) * width);
  CHECK(peak_of<Split<false>, Recomputed>({1, 2}).ledger == blocks * tokens * width + tokens * (4 + 6) * width);
#if DISTX_TESTS_SANITIZED
  MESSAGE("not compared with what is allocated, because a sanitizer has replaced the allocations");
#else
  CHECK(kept.allocated == static_cast<long>(kept.ledger));
  CHECK(recomputed.allocated == static_cast<long>(recomputed.ledger));
#endif
}

}  // namespace recomputed_test
