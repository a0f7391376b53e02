// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/parallel/layers/embedding.hpp>
#include <distx/parallel/layers/transformer_block.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include <map>

#include "message_thrown.hpp"
#include "toy.hpp"

namespace layers_test {

namespace {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
template <bool SequenceParallel>
using Split = distx::layers::TensorParallel<Grid, Data, Model, SequenceParallel>;

// Neither the heads, the inner width nor the tokens are divided by 2 or 3 without remainder.
constexpr std::size_t batch = 2, length = 5, heads = 5, width = 20, inner = 7;

/// The same number for the same place on every rank.
template <std::size_t Rank>
double number(const std::array<std::size_t, Rank>& index, double seed) {
  double at = seed;
  for (const auto i : index) at = 1.7 * at + static_cast<double>(i);
  return 0.4 * std::sin(at);
}
struct At {
  double seed;
  template <std::size_t Rank>
  double operator()(const std::array<std::size_t, Rank>& index) const {
    return number(index, seed);
  }
};
struct Initial {
  At projections{1}, output{2}, wide{3}, narrow{4};
};

template <class S>
struct Mlp {
  using split = S;
  distx::layers::ParallelMlp<double, S> layer;
  explicit Mlp(const Grid& mesh) : layer("mlp", mesh, width, inner, At{3}, At{4}) {}
};
template <class S>
struct Attention {
  using split = S;
  distx::layers::ParallelAttention<double, S> layer;
  explicit Attention(const Grid& mesh) : layer("attention", mesh, width, heads, At{1}, At{2}) {}
};
template <class S>
struct Block {
  using split = S;
  distx::layers::TransformerBlock<double, S> layer;
  explicit Block(const Grid& mesh) : layer("block", mesh, width, heads, Initial()) {}
};

template <class S>
struct Joined {
  using split = S;
  distx::layers::ParallelAttentionMlpBlock<double, S> layer;
  explicit Joined(const Grid& mesh) : layer("block", mesh, width, heads, Initial()) {}
};

/// The whole results of one step with a layer, and the communication of one rank.
struct Outcome {
  std::map<std::string, std::vector<double>> values;  // of the result, the gradient of the stream, the new weights
  distx::observe::Ledger forward, backward;
};

template <class L>
Outcome step(const std::array<int, 2>& shape) {
  Outcome found;
  toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
    distx::Metered<distx::ThreadCommunicator> metered(comm.share());
    const Grid mesh(metered, shape);
    L model(mesh);
    distx::TensorParameterList<> list;
    model.layer.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<1>> training(mesh, list, distx::SGD{},
                                                       {.bucket_bytes = distx::unlimited, .overlap = false});
    using Stream = typename L::split::residual;
    const distx::Extents<3> extents{batch, length, width};
    const auto x = distx::generate<double, Stream>(mesh, extents, At{5});
    // The loss is the mean over this rank's batches, so that each has as much more weight as there are ranks.
    const auto slope = distx::generate<double, Stream>(
        mesh, extents, [&](const auto& index) { return number(index, 6) * mesh.template size<Data>(); });

    const auto before = metered.ledger();
    auto [y, kept] = model.layer.forward(x.clone(), training);
    const auto between = metered.ledger();
    const auto gradient = model.layer.backward(std::move(kept), slope, training);
    const auto after = metered.ledger();
    training.step({.learning_rate = 0.1});

    std::map<std::string, std::vector<double>> values;
    const auto note = [&](const std::string& name, const auto& tensor) {
      const auto whole = distx::gather(tensor, 0);
      values[name].assign(whole.values().begin(), whole.values().end());
    };
    note("result", y);
    note("gradient", gradient);
    for (auto& value : values["gradient"]) value /= shape[0];
    model.layer.for_each_parameter([&](const auto& parameter) { note(parameter.name(), parameter); });
    if (comm.rank() == 0) found = {values, between - before, after - between};
  });
  return found;
}

template <class L>
void check_values(const std::array<int, 2>& shape, const Outcome& expected) {
  INFO(shape[0], " x ", shape[1]);
  const auto found = step<L>(shape);
  REQUIRE(found.values.size() == expected.values.size());
  for (const auto& [name, values] : expected.values) {
    INFO(name);
    const auto& mine = found.values.at(name);
    REQUIRE(mine.size() == values.size());
    double most = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) most = std::max(most, std::abs(mine[i] - values[i]));
    CHECK(most < 1e-12);
  }
}

template <template <class> class L>
void check_all(int branches, int replicated) {
  const auto alone = step<L<Split<false>>>({1, 1});
  CHECK(alone.forward.total().calls + alone.backward.total().calls == 0);
  for (const auto shape : {std::array{1, 2}, {2, 1}, {2, 2}, {1, 3}, {2, 3}, {1, 7}}) {
    check_values<L<Split<false>>>(shape, alone);
    check_values<L<Split<true>>>(shape, alone);
  }
  const auto calls = [](const distx::observe::Ledger& ledger, const char* name) {
    return static_cast<int>(ledger[name].calls);
  };
  for (const int ranks : {2, 3}) {
    const auto whole = step<L<Split<false>>>({1, ranks});
    for (const auto& ledger : {whole.forward, whole.backward}) {
      CHECK(calls(ledger, "all_reduce") == branches);
      CHECK(ledger.total().calls == ledger["all_reduce"].calls);
      CHECK(ledger["all_reduce"].payload_bytes == static_cast<std::size_t>(branches) * batch * length * width * 8);
    }
    const auto shared = step<L<Split<true>>>({1, ranks});
    for (const auto& ledger : {shared.forward, shared.backward}) {
      CHECK(calls(ledger, "all_gather") == branches);
      CHECK(calls(ledger, "reduce_scatter") == branches);
    }
    CHECK(shared.forward.total().calls == 2U * static_cast<unsigned>(branches));
    // What `ready` reduces: the gradients of the weights that the ranks with shared-out tokens all have.
    CHECK(calls(shared.backward, "all_reduce") == replicated);
    CHECK(shared.backward.total().calls == static_cast<unsigned>(2 * branches + replicated));
  }
}

/// Returns the message of a second backward pass with the same activations.
template <class L>
std::string refusal() {
  std::string words;
  toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 1});
    L model(mesh);
    distx::TensorParameterList<> list;
    model.layer.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, list, distx::SGD{});
    const auto x = distx::generate<double, typename L::split::residual>(mesh, {batch, length, width}, At{5});
    auto kept = model.layer.forward(x.clone(), training).activations;
    { const auto used = std::move(kept); }
    try {
      (void)model.layer.backward(std::move(kept), x, training);  // NOLINT(bugprone-use-after-move): an error
    } catch (const distx::InvalidState& error) {
      words = error.what();
    }
    // Nothing was ready, so that a correct pass follows.
    auto again = model.layer.forward(x.clone(), training).activations;
    static_cast<void>(model.layer.backward(std::move(again), x, training));
    training.step({.learning_rate = 0.1});
  });
  return words;
}
}  // namespace

TEST_CASE("a ParallelMlp equals the unsharded MLP, with one all-reduce forward and one backward") {
  check_all<Mlp>(1, 1);
}
TEST_CASE("a ParallelAttention equals the unsharded attention, with one all-reduce forward and one backward") {
  check_all<Attention>(1, 1);
}
TEST_CASE("an embedding refuses sequences that are longer than its context, on every rank, also in a ring's order") {
  struct Context {};
  using Mesh = distx::Mesh<Data, Context, Model>;
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Mesh mesh(comm, {1, 2, 1});
    const auto words = [&]<class Axis>(std::type_identity<Axis>) {
      using S = distx::layers::TensorParallel<Mesh, Data, Model, false, distx::Host, Axis>;
      const distx::layers::ParallelEmbedding<double, S> layer("embedding", mesh, 9, 8, 4, At{1}, At{2}, 1);
      distx::TensorParameterList<> list;
      layer.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
      distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, list, distx::SGD{});
      const auto ids = distx::zeros<int, typename S::tokens>(mesh, {1, 12});
      const auto thrown = test::message_thrown<distx::InvalidArgument>([&] { (void)layer.forward(ids, training); });
      const auto fit = distx::zeros<int, typename S::tokens>(mesh, {1, 8});
      CHECK(layer.forward(fit, training).extent(1) == 8);
      return thrown;
    };
    for (const auto& each :
         {words(std::type_identity<Context>()), words(std::type_identity<distx::layers::Ring<Context>>())})
      CHECK_MESSAGE(
          each.find("invalid length 12 of sequences: must not exceed the context 8 of 'embedding.positions'") !=
              std::string::npos,
          each);
  });
}

TEST_CASE("a TransformerBlock equals the unsharded block, with one all-reduce per branch forward and backward") {
  check_all<Block>(2, 6);
}
TEST_CASE("a ParallelAttentionMlpBlock communicates once forward and once backward") { check_all<Joined>(1, 4); }
TEST_CASE("activations serve one backward pass") {
  for (const auto& words :
       {refusal<Mlp<Split<false>>>(), refusal<Attention<Split<false>>>(), refusal<Block<Split<false>>>()})
    CHECK(words.find("call forward once for each backward") != std::string::npos);
}

}  // namespace layers_test
