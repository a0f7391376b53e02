// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints the page docs/rules.md from the rules themselves: one table per operation, for one axis of the mesh.
#include <distx/tensor/ops/causal_attention.hpp>
#include <distx/tensor/ops/contract.hpp>
#include <distx/tensor/ops/rules.hpp>
#include <distx/tensor/ops/trailing.hpp>

#include <iostream>
#include <string>
#include <vector>

#include "tensor/legal.hpp"

namespace {

std::string words(const distx::rules::AxisPlacement& place) {
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
  std::cout << R"(# Rules of the operations

For each operation on distributed tensors, the placements of its operands on one axis of the mesh that need no
communication, and the placement of its result on that axis. The axes are independent: an operation compiles if each of
them has a row here. Other placements do not compile, and the error says which operand to redistribute. Operations that
are linear in an operand accept it as `Partial`.

The tables show operands with the dimensions given; with more dimensions the rules are analogous. Each rule is a struct
in namespace `distx::rules`, in `distx/tensor/ops/rules.hpp` or in the header of its operation. The tests generate this
page from the rules.
)";
  table<distx::rules::Elementwise, 2>("relu, gelu, map: x (m, n)", {"x"});
  table<distx::rules::LinearElementwise, 2>("scale, dropout: x (m, n)", {"x"});
  table<distx::rules::Zip, 2, 2>("zip: x (m, n), y (m, n)", {"x", "y"});
  table<distx::rules::Add, 2, 2>("add, subtract: x (m, n), y (m, n)", {"x", "y"});
  table<distx::rules::Multiply, 2, 2>("multiply: x (m, n), y (m, n)", {"x", "y"});
  table<distx::rules::ElementwiseBackward, 2, 2>("relu_backward, gelu_backward: x (m, n), gradient (m, n)",
                                                 {"x", "gradient"});
  table<distx::rules::AddBias, 2, 1>("add_bias: x (m, n), b (n)", {"x", "b"});
  table<distx::rules::SumRows, 2>("sum_rows: x (m, n)", {"x"});
  table<distx::rules::Matmul, 2, 2>("matmul(x, w): x (m, k), w (k, n)", {"x", "w"});
  table<distx::rules::MatmulTransposed, 2, 2>("matmul(x, transposed(w)): x (m, k), w (n, k)", {"x", "w"});
  table<distx::rules::TransposedMatmul, 2, 2>("matmul(transposed(x), y): x (k, m), y (k, n)", {"x", "y"});
  table<distx::rules::SumOver<1>, 3>("sum_over<1>, mean_over<1>: x (m, n, k)", {"x"});
  table<distx::rules::MaxOver<1>, 3>("max_over<1>: x (m, n, k)", {"x"});
  table<distx::rules::SumOverBackward<1>, 3, 2>(
      "sum_over_backward<1>, mean_over_backward<1>: x (m, n, k), gradient (m, k)", {"x", "gradient"});
  table<distx::rules::MaxOverBackward<1>, 3, 2, 2>(
      "max_over_backward<1>: x (m, n, k), its maximum (m, k), gradient (m, k)", {"x", "maximum", "gradient"});
  table<distx::rules::Rowwise, 2>("softmax: x (m, n)", {"x"});
  table<distx::rules::RowwiseBackward, 2, 2>("softmax_backward: y (m, n), gradient (m, n)", {"y", "gradient"});
  table<distx::rules::Transpose<2, 0, 1>, 3>("transpose<2, 0, 1>: x (m, n, k)", {"x"});
  table<distx::rules::LayerNorm, 2, 1, 1>("layer_norm: x (m, n), weight (n), bias (n)", {"x", "weight", "bias"});
  table<distx::rules::LayerNormBackward, 2, 1, 2>("layer_norm_backward, of x: x (m, n), weight (n), gradient (m, n)",
                                                  {"x", "weight", "gradient"});
  table<distx::rules::LayerNormWeight, 2, 2>("layer_norm_backward, of the weight: x (m, n), gradient (m, n)",
                                             {"x", "gradient"});
  table<distx::rules::Embedding, 1, 2>("embedding: ids (m), table (v, n)", {"ids", "table"});
  table<distx::rules::EmbeddingBackward, 2, 1, 2>("embedding_backward: table (v, n), ids (m), gradient (m, n)",
                                                  {"table", "ids", "gradient"});
  table<distx::rules::CrossEntropy, 2, 1>("cross_entropy: logits (m, v), targets (m)", {"logits", "targets"});
  table<distx::rules::CrossEntropyBackward, 2, 1, 1, 1>(
      "cross_entropy_backward: logits (m, v), targets (m), log_sums (m), gradient (m)",
      {"logits", "targets", "log_sums", "gradient"});
  table<distx::rules::Contract<1>, 3, 3>("contract<1>: x (m, l, k), w (k, n, p)", {"x", "w"});
  table<distx::rules::ContractInput<1>, 4, 3>("contract_input<1>: gradient (m, l, n, p), w (k, n, p)",
                                              {"gradient", "w"});
  table<distx::rules::ContractWeight<1>, 3, 4>("contract_weight<1>: x (m, l, k), gradient (m, l, n, p)",
                                               {"x", "gradient"});
  table<distx::rules::AddTrailing, 3, 2>("add_trailing: x (m, n, p), b (n, p)", {"x", "b"});
  table<distx::rules::SumLeading<2>, 3>("sum_leading<2>: x (m, n, p)", {"x"});
  table<distx::rules::CausalAttention, 5>("causal_attention: queries, keys and values (m, l, 3, heads, n)", {"x"});
  table<distx::rules::CausalAttentionBackward, 5, 4>(
      "causal_attention_backward: queries, keys and values (m, l, 3, heads, n), gradient (m, l, heads, n)",
      {"x", "gradient"});
  std::cout << R"(
Only `cross_entropy` communicates: where an axis shards the vocabulary, three numbers of each row are reduced over it.
)";
}
