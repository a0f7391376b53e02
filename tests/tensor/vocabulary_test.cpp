// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/tensor/ops/cross_entropy.hpp>
#include <distx/tensor/ops/embedding.hpp>

#include <cmath>

#include "cases.hpp"

namespace vocabulary_test {

using cases::Whole;

namespace {

constexpr std::size_t batch = 2, length = 3, rows = batch * length, vocabulary = 7, width = 5;

Whole names() {
  Whole ids({batch, length});
  ids.values = {6, 0, 3, 3, 5, 1};
  return ids;
}
/// The same tensor with integers as elements. No layout of ids is Partial.
template <class X>
auto integers(const X& x) {
  distx::DistTensor<int, distx::detail::rank_of<X>, distx::detail::mesh_of<X>, distx::detail::layout_of<X>> ids(
      x.mesh(), x.extents());
  std::transform(x.local().begin(), x.local().end(), ids.local().begin(),
                 [](double id) { return static_cast<int>(id); });
  return ids;
}

const Whole ids = names(), table = Whole::numbers({vocabulary, width}, 1),
            logits = Whole::numbers({batch, length, vocabulary}, 2), slope = Whole::numbers({batch, length}, 3);

struct Rows {
  Whole losses{{batch, length}}, log_sums{{batch, length}}, gradient{{batch, length, vocabulary}};
};
Rows cross_entropies() {
  Rows all;
  for (std::size_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits.values[row * vocabulary + i]);
    const auto target = static_cast<std::size_t>(ids.values[row]);
    all.log_sums.values[row] = std::log(sum);
    all.losses.values[row] = std::log(sum) - logits.values[row * vocabulary + target];
    for (std::size_t i = 0; i < vocabulary; ++i)
      all.gradient.values[row * vocabulary + i] =
          slope.values[row] * (std::exp(logits.values[row * vocabulary + i]) / sum - (i == target ? 1 : 0));
  }
  return all;
}

}  // namespace

TEST_CASE("embedding returns the selected rows, and its gradient adds them up, in every supported layout") {
  Whole taken({batch, length, width});
  for (std::size_t i = 0; i < rows * width; ++i)
    taken.values[i] = table.values[static_cast<std::size_t>(ids.values[i / width]) * width + i % width];
  CHECK(cases::check<distx::rules::Embedding, 2, 2>({ids, table}, taken, 0, [](const auto& a, const auto& b) {
          return distx::ops::embedding(integers(a), b);
        }) == "");

  const Whole gradient = Whole::numbers({batch, length, width}, 4);
  Whole added({vocabulary, width});
  for (std::size_t i = 0; i < rows * width; ++i)
    added.values[static_cast<std::size_t>(ids.values[i / width]) * width + i % width] += gradient.values[i];
  CHECK(cases::check<distx::rules::EmbeddingBackward, 2, 2, 3>(
            {table, ids, gradient}, added, 0, [](const auto& a, const auto& b, const auto& g) {
              return distx::ops::embedding_backward(a, integers(b), g);
            }) == "");
}

TEST_CASE("cross_entropy and its gradient equal their formulas in every supported layout") {
  const auto expected = cross_entropies();
  CHECK(cases::check<distx::rules::CrossEntropy, 3, 2>(
            {logits, ids}, expected.losses, 1e-14,
            [](const auto& a, const auto& b) { return distx::ops::cross_entropy(a, integers(b)).losses; }) == "");
  CHECK(cases::check<distx::rules::CrossEntropyBackward, 3, 2, 2, 2>(
            {logits, ids, expected.log_sums, slope}, expected.gradient, 1e-14,
            [](const auto& a, const auto& b, const auto& sums, const auto& g) {
              return distx::ops::cross_entropy_backward(a, integers(b), sums, g);
            }) == "");
}

TEST_CASE("cross_entropy reduces three numbers per row over the vocabulary's axis and never moves the logits") {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(3, 20s), [](distx::ThreadConnector& connector) {
    distx::Metered<distx::ThreadCommunicator> comm(distx::ThreadCommunicator(connector, 20s));
    const cases::Grid grid(comm, {1, 3});
    const auto x = cases::lay<double, 3, distx::Layout<distx::Shard<2, cases::Rows>>>(grid, logits);
    const auto targets = integers(cases::lay<double, 2, distx::Layout<>>(grid, ids));
    const auto before = comm.ledger();
    const auto forward = distx::ops::cross_entropy(x, targets);
    const auto after_forward = comm.ledger() - before;
    CHECK(after_forward.total() == after_forward["all_reduce"]);
    CHECK(after_forward.total().calls == 2);
    CHECK(after_forward.total().payload_bytes == 3 * rows * sizeof(double));
    (void)distx::ops::cross_entropy_backward(x, targets, forward.log_sums, forward.losses);
    CHECK((comm.ledger() - before) == after_forward);
  });
}

TEST_CASE("embedding rejects an id outside the vocabulary") {
  cases::on_grid({1, 1}, [](const cases::Grid& grid) {
    const auto t = cases::lay<double, 2, distx::Layout<>>(grid, table);
    auto wrong = ids;
    wrong.values[4] = vocabulary;
    CHECK_THROWS_AS((void)distx::ops::embedding(integers(cases::lay<double, 2, distx::Layout<>>(grid, wrong)), t),
                    distx::DataError);
  });
}

}  // namespace vocabulary_test
