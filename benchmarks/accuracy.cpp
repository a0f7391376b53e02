// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Applies one operation to the floats that accuracy.py wrote, and writes the result: accuracy OPERATION ROWS COLUMNS
// FOLDER
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <distx/tensor.hpp>
#include <distx/tensor/ops.hpp>
#include <distx/threads.hpp>

#include "../examples/models/activation.hpp"
#include "../examples/models/softmax_cross_entropy.hpp"

namespace {

struct Model {};
namespace ops = distx::ops;

template <class T>
std::vector<T> read(const std::string& name, std::size_t count) {
  std::vector<T> values(count);
  std::ifstream file(name, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));  // NOLINT
  if (!file) throw distx::DataError(name + " is too short; run this program by accuracy.py");
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::puts("skipped: run by accuracy.py");
    return 77;
  }
  const std::string op = argv[1], folder = std::string(argv[4]) + "/";
  const std::size_t rows = std::stoul(argv[2]), columns = std::stoul(argv[3]);
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  const distx::Mesh<Model> mesh(comm, {1});
  const auto values = read<float>(folder + "x", rows * columns);
  const auto tensor = [&](const char* name) {
    return distx::from_local(mesh, {rows, columns}, read<float>(folder + name, rows * columns));
  };
  const auto of_columns = [&](const char* name) {
    return distx::from_local(mesh, {columns}, read<float>(folder + name, columns));
  };
  const auto of_rows = [&](const char* name) {
    return distx::from_local(mesh, {rows}, read<float>(folder + name, rows));
  };
  const auto write = [&](const float* from, std::size_t count) {
    std::ofstream(folder + "result", std::ios::binary)
        .write(reinterpret_cast<const char*>(from), static_cast<std::streamsize>(count * sizeof(float)));  // NOLINT
  };
  const auto keep = [&](const auto& result) { write(result.local().data(), result.local().size()); };
  const auto targets = [&] { return distx::from_local(mesh, {rows}, read<std::int64_t>(folder + "targets", rows)); };
  if (op == "layer_norm") {
    keep(ops::layer_norm(tensor("x"), of_columns("w"), of_columns("b")));
  } else if (op == "layer_norm_backward") {
    keep(ops::layer_norm_backward(tensor("x"), of_columns("w"), tensor("g")).input);
  } else if (op == "softmax") {
    keep(ops::softmax(tensor("x")));
  } else if (op == "softmax_backward") {
    keep(ops::softmax_backward(ops::softmax(tensor("x")), tensor("g")));
  } else if (op == "cross_entropy") {
    keep(ops::cross_entropy(tensor("x"), targets()).losses);
  } else if (op == "cross_entropy_backward") {
    const auto x = tensor("x");
    const auto ids = targets();
    keep(ops::cross_entropy_backward(x, ids, ops::cross_entropy(x, ids).log_sums, of_rows("g")));
  } else if (op == "sum_rows") {
    keep(ops::sum_rows(tensor("x")));
  } else if (op == "sum_over") {
    keep(ops::sum_over<1>(tensor("x")));
  } else if (op == "mean_over") {
    keep(ops::mean_over<1>(tensor("x")));
  } else if (op == "gelu") {
    keep(ops::gelu(tensor("x")));
  } else if (op == "gelu_backward") {
    keep(ops::gelu_backward(tensor("x"), tensor("g")));
  } else if (op == "attention" || op == "attention_backward") {  // rows: tokens; columns: queries, keys and values
    const std::size_t size = columns / 3;
    const auto x = distx::from_local(mesh, {1, rows, 3, 1, size}, values);
    if (op == "attention")
      keep(ops::causal_attention(x));
    else
      keep(ops::causal_attention_backward(
          x, distx::from_local(mesh, {1, rows, 1, size}, read<float>(folder + "g", rows * size))));
  } else {  // of the examples
    using Matrix = examples::Matrix<float>;
    Matrix x =
        Eigen::Map<const Matrix>(values.data(), static_cast<Eigen::Index>(columns), static_cast<Eigen::Index>(rows));
    if (op == "tanh of the examples") {
      examples::activate<float>(x);
      write(x.data(), values.size());
    } else if (op == "loss of the examples") {
      Matrix gradient;
      const auto labels = read<std::int64_t>(folder + "targets", rows);
      const float loss = examples::softmax_cross_entropy<float>(x, labels, gradient);
      write(&loss, 1);
    } else {
      throw distx::InvalidArgument("there is no operation '" + op + "'; see accuracy.py", {.operation = "accuracy"});
    }
  }
}
