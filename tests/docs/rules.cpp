// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints the page docs/rules.md from the rules themselves: what each takes on one axis of the mesh.
#include <distx/tensor/ops/causal_attention.hpp>
#include <distx/tensor/ops/contract.hpp>
#include <distx/tensor/ops/rules.hpp>
#include <distx/tensor/ops/trailing.hpp>

#include <iostream>
#include <string>
#include <vector>

#include "tensor/legal.hpp"

namespace {

std::string words(const distx::AxisPlace& place) {
  if (place.is_shard()) return "`Shard<" + std::to_string(place.dim) + ">`";
  if (place.is_max()) return "`Partial` with `Max`";
  return place.is_partial() ? "`Partial`" : "replicated";
}

/// One row for each combination that the rule takes; all others do not compile.
template <class Rule, std::size_t... Ranks>
void table(const std::string& title, const std::vector<std::string>& operands) {
  using All = cases::Legal<Rule, Ranks...>;
  std::cout << "\n## " << title << "\n\n|";
  std::string line = "|";
  for (const auto& operand : operands) {
    std::cout << ' ' << operand << " |";
    line += "---|";
  }
  std::cout << " result |\n" << line << "---|\n";
  for (const std::size_t code : All::codes) {
    std::cout << '|';
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::cout << ' ' << words(All::place(code, I)) << " |"), ...);
      std::cout << ' ' << words(Rule::on(All::place(code, I)...)) << " |\n";
    }(std::make_index_sequence<sizeof...(Ranks)>());
  }
}

}  // namespace

int main() {
  std::cout << R"(# The rules of the operations

What each operation on distributed tensors takes without communication, on one axis of the mesh, and how its result lies
on that axis. The axes do not depend on one another: an operation compiles if each axis of the mesh has a row here. What
has no row does not compile, and the compiler says which operand must be redistributed to what. What is linear takes a
`Partial`.

The tables are for operands with the dimensions given; with more, the rules are alike. Each rule is a small trait in
`distx/tensor/ops/rules.hpp`, or beside the operation, and a test holds this page to it.
)";
  table<distx::Elementwise, 2>("relu, gelu, map: x (m, n)", {"x"});
  table<distx::LinearElementwise, 2>("scale: x (m, n)", {"x"});
  table<distx::Zip, 2, 2>("zip: x (m, n), y (m, n)", {"x", "y"});
  table<distx::Add, 2, 2>("add, subtract: x (m, n), y (m, n)", {"x", "y"});
  table<distx::Multiply, 2, 2>("multiply: x (m, n), y (m, n)", {"x", "y"});
  table<distx::ElementwiseBackward, 2, 2>("relu_backward, gelu_backward: x (m, n), gradient (m, n)", {"x", "gradient"});
  table<distx::AddBias, 2, 1>("add_bias: x (m, n), b (n)", {"x", "b"});
  table<distx::SumRows, 2>("sum_rows: x (m, n)", {"x"});
  table<distx::Matmul, 2, 2>("matmul(x, w): x (m, k), w (k, n)", {"x", "w"});
  table<distx::MatmulTransposed, 2, 2>("matmul(x, transposed(w)): x (m, k), w (n, k)", {"x", "w"});
  table<distx::TransposedMatmul, 2, 2>("matmul(transposed(x), y): x (k, m), y (k, n)", {"x", "y"});
  table<distx::SumOver<1>, 3>("sum_over<1>, mean_over<1>: x (m, n, k)", {"x"});
  table<distx::MaxOver<1>, 3>("max_over<1>: x (m, n, k)", {"x"});
  table<distx::SumOverBackward<1>, 3, 2>("sum_over_backward<1>, mean_over_backward<1>: x (m, n, k), gradient (m, k)",
                                         {"x", "gradient"});
  table<distx::MaxOverBackward<1>, 3, 2, 2>("max_over_backward<1>: x (m, n, k), its greatest (m, k), gradient (m, k)",
                                            {"x", "greatest", "gradient"});
  table<distx::Rowwise, 2>("softmax: x (m, n)", {"x"});
  table<distx::RowwiseBackward, 2, 2>("softmax_backward: y (m, n), gradient (m, n)", {"y", "gradient"});
  table<distx::Transpose<2, 0, 1>, 3>("transpose<2, 0, 1>: x (m, n, k)", {"x"});
  table<distx::LayerNorm, 2, 1, 1>("layer_norm: x (m, n), gain (n), bias (n)", {"x", "gain", "bias"});
  table<distx::LayerNormBackward, 2, 1, 2>("layer_norm_backward, of x: x (m, n), gain (n), gradient (m, n)",
                                           {"x", "gain", "gradient"});
  table<distx::LayerNormGain, 2, 2>("layer_norm_backward, of the gain: x (m, n), gradient (m, n)", {"x", "gradient"});
  table<distx::Embedding, 1, 2>("embedding: ids (m), table (v, n)", {"ids", "table"});
  table<distx::EmbeddingBackward, 2, 1, 2>("embedding_backward: table (v, n), ids (m), gradient (m, n)",
                                           {"table", "ids", "gradient"});
  table<distx::CrossEntropy, 2, 1>("cross_entropy: logits (m, v), targets (m)", {"logits", "targets"});
  table<distx::CrossEntropyBackward, 2, 1, 1, 1>(
      "cross_entropy_backward: logits (m, v), targets (m), log_sums (m), gradient (m)",
      {"logits", "targets", "log_sums", "gradient"});
  table<distx::Contract<1>, 3, 3>("contract<1>: x (m, l, k), w (k, n, p)", {"x", "w"});
  table<distx::ContractInput<1>, 4, 3>("contract_input<1>: gradient (m, l, n, p), w (k, n, p)", {"gradient", "w"});
  table<distx::ContractWeight<1>, 3, 4>("contract_weight<1>: x (m, l, k), gradient (m, l, n, p)", {"x", "gradient"});
  table<distx::AddTrailing, 3, 2>("add_trailing: x (m, n, p), b (n, p)", {"x", "b"});
  table<distx::SumLeading<2>, 3>("sum_leading<2>: x (m, n, p)", {"x"});
  table<distx::CausalAttention, 5>("causal_attention: queries, keys and values (m, l, 3, heads, n)", {"x"});
  table<distx::CausalAttentionBackward, 5, 4>(
      "causal_attention_backward: queries, keys and values (m, l, 3, heads, n), gradient (m, l, heads, n)",
      {"x", "gradient"});
  std::cout << R"(
`cross_entropy` alone communicates: where an axis shards the vocabulary, three numbers of each row are reduced over it.
)";
}
