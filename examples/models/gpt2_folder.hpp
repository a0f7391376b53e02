// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <set>

#include <distx/checkpoint.hpp>

#include "../common/json_file.hpp"
#include "gpt2_config.hpp"

namespace examples {

/// A weight of a Gpt, and the tensor of a Hugging Face folder that it is.
struct Gpt2Tensor {
  std::string weight;                ///< its name in the Gpt
  std::string name;                  ///< in the folder, without a prefix
  std::vector<std::uint64_t> shape;  ///< in the folder
  bool transposed = false;           ///< a matrix of the folder's `Conv1D`: inputs × outputs
};

/// Calls f with each Gpt2Tensor, in the order of the Gpt's parameters, until it returns false.
template <class F>
void for_each_gpt2_tensor(const GptShape& shape, F&& f) {
  const std::uint64_t width = shape.width;
  bool more = f({"embedding.tokens", "wte.weight", {shape.vocabulary, width}}) &&
              f({"embedding.positions", "wpe.weight", {shape.context, width}});
  const auto norm = [&](const std::string& weight, const std::string& name) {
    more = more && f({weight + ".scale", name + ".weight", {width}}) && f({weight + ".shift", name + ".bias", {width}});
  };
  const auto linear = [&](const std::string& weight, const std::string& name, std::uint64_t inputs,
                          std::uint64_t outputs) {
    more = more && f({weight + ".weight", name + ".weight", {inputs, outputs}, true}) &&
           f({weight + ".bias", name + ".bias", {outputs}});
  };
  for (std::size_t i = 0; more && i < shape.layers; ++i) {
    const std::string block = "block" + std::to_string(i), h = "h." + std::to_string(i);
    norm(block + ".norm1", h + ".ln_1");
    linear(block + ".projections", h + ".attn.c_attn", width, 3 * width);
    linear(block + ".output", h + ".attn.c_proj", width, width);
    norm(block + ".norm2", h + ".ln_2");
    linear(block + ".wide", h + ".mlp.c_fc", width, 4 * width);
    linear(block + ".narrow", h + ".mlp.c_proj", 4 * width, width);
  }
  norm("norm", "ln_f");
}

/// A Hugging Face folder with a GPT-2 that `transformers` has saved: `config.json`, and `model.safetensors` or its
/// index. Names may begin with `transformer.` or not; the head is tied to the tokens' vectors.
class Gpt2Folder {
 public:
  /// Reads the configuration and the headers of the files.
  /// @throws distx::CheckpointError that names file and field or tensor: for files that are absent or damaged, a
  ///   configuration that is not supported, and tensors that are absent, of other shapes or types, or more than a GPT-2
  ///   has
  explicit Gpt2Folder(std::filesystem::path path) : path_(std::move(path)), config_(Gpt2Config::read(path_)) {
    Files files;
    std::map<std::string, Found> tensors;
    for (const auto& name : file_names()) {
      const auto& file = *files.emplace_back(std::make_unique<distx::checkpoint::SafetensorsFile>(path_ / name));
      for (const auto& tensor : file.tensors()) tensors[tensor.name] = {&file, &tensor, (path_ / name).string()};
    }
    const std::string prefix = tensors.contains("transformer.wte.weight") ? "transformer." : "";
    std::vector<std::string> wrong;
    std::set<std::string> used;
    for_each_gpt2_tensor(config_.shape(), [&](const Gpt2Tensor& wanted) {
      const std::string name = prefix + wanted.name;
      used.insert(name);
      const auto found = tensors.find(name);
      const std::string needed = "a floating-point tensor " + nlohmann::json(wanted.shape).dump();
      if (found == tensors.end())
        wrong.push_back("'" + name + "', " + needed + ", is absent");
      else if (found->second.tensor->shape != wanted.shape || !is_float(found->second.tensor->type))
        wrong.push_back(found->second.text() + " must be " + needed);
      sources_[wanted.weight] = name;
      if (wanted.transposed) transposed_.insert(wanted.weight);
      return wrong.size() < 20;
    });
    for (const auto& [name, found] : tensors) {
      if (used.contains(name) || wrong.size() >= 20) continue;
      if (name == "lm_head.weight")
        check_head(found, tensors, prefix, wrong);
      else if (!is_mask(name))
        wrong.push_back(found.text() + " is not a weight of a GPT-2 with " + std::to_string(config_.shape().layers) +
                        " layers");
    }
    if (wrong.empty()) return;
    std::string text;
    for (const auto& each : wrong) text += (text.empty() ? "" : "; ") + each;
    throw distx::CheckpointError("the files of '" + path_.string() +
                                 "' do not have the GPT-2 of its config.json: " + text);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const Gpt2Config& config() const { return config_; }

  /// Loads the weights of a Gpt or MeshGpt of this shape. Collective.
  /// @throws distx::CheckpointError
  template <class Model, class Training>
  void load(const Model&, Training& training) const {
    training.load_weights(
        path_,
        {.rename = [&](const std::string& name) { return sources_.at(name); },
         .transposed = [&](const std::string& name) { return !Model::inputs_first && transposed_.contains(name); },
         .ignore_others = true});
  }

 private:
  using Files = std::vector<std::unique_ptr<distx::checkpoint::SafetensorsFile>>;
  struct Found {
    const distx::checkpoint::SafetensorsFile* file = nullptr;
    const distx::checkpoint::SafetensorsTensor* tensor = nullptr;
    std::string path;

    [[nodiscard]] std::string text() const {
      return "'" + tensor->name + "', " + tensor->type + " " + nlohmann::json(tensor->shape).dump() + " in '" + path +
             "',";
    }
  };

  [[nodiscard]] std::set<std::string> file_names() const {
    const auto index = path_ / "model.safetensors.index.json";
    std::ifstream file(index, std::ios::binary);
    if (!file) return {"model.safetensors"};
    std::set<std::string> names;
    try {
      const auto json = nlohmann::json::parse(file);
      for (const auto& entry : json.at("weight_map").items()) names.insert(entry.value().get<std::string>());
    } catch (const nlohmann::json::exception&) {
      throw distx::CheckpointError("'" + index.string() +
                                   "' is not the JSON of an index with a weight_map: use files that are complete");
    }
    return names;
  }
  [[nodiscard]] static bool is_float(const std::string& type) {
    return type == "F32" || type == "F16" || type == "BF16" || type == "F64";
  }
  /// Returns whether these are the constants of attention that old files have.
  [[nodiscard]] static bool is_mask(const std::string& name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  /// A head in the files must be the tokens' vectors again.
  static void check_head(const Found& head, const std::map<std::string, Found>& tensors, const std::string& prefix,
                         std::vector<std::string>& wrong) {
    const auto found = tensors.find(prefix + "wte.weight");
    if (found == tensors.end()) return;
    const auto theirs = head.file->bytes(*head.tensor), mine = found->second.file->bytes(*found->second.tensor);
    if (head.tensor->type != found->second.tensor->type || head.tensor->shape != found->second.tensor->shape ||
        std::memcmp(theirs.data(), mine.data(), mine.size()) != 0)
      wrong.push_back(head.text() + " differs from '" + found->first + "', to which a GPT-2 ties it");
  }

  std::filesystem::path path_;
  Gpt2Config config_;
  std::map<std::string, std::string> sources_;  // the names of the weights in the folder, with the prefix
  std::set<std::string> transposed_;
};

/// A folder that a Gpt is saved to, as `transformers` loads it: `config.json` and `model.safetensors`.
class Gpt2Output {
 public:
  /// @param path  empty: nothing is saved
  explicit Gpt2Output(std::filesystem::path path) : path_(std::move(path)) {}

  [[nodiscard]] bool given() const { return !path_.empty(); }
  /// Makes the folder and checks, before a long computation, that it can be written.
  /// @throws distx::Error if it has a model already or cannot be written
  void prepare() const {
    if (!given()) return;
    for (const char* const name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
      if (std::error_code ignored; std::filesystem::exists(path_ / name, ignored))
        throw distx::CheckpointError("'" + (path_ / name).string() + "' exists: give --save-model another folder");
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    if (error)
      throw distx::CheckpointError("cannot create '" + path_.string() + "' (" + error.message() +
                                       "): give --save-model a folder that you can write to",
                                   {}, error.value());
    config_file().check_writable();
  }
  /// Saves the weights in the training's type; rank 0 writes, and has the whole model in memory. Collective.
  /// @param tokenizer  a folder whose files of a tokenizer are copied; empty: none
  /// @throws distx::CheckpointError at rank 0 if the files cannot be written
  template <class Model, class Training>
  void write(distx::AnyCommunicator<>& comm, const Model& model, Training& training, const Gpt2Config& config,
             const std::filesystem::path& tokenizer = {}) const {
    if (!given()) return;
    const auto scope = training.evaluate();
    const bool writes = comm.rank() == 0;
    std::map<std::string, std::vector<std::byte>> whole;
    std::size_t element = 0;  // its bytes
    for_each_whole_weight(model, training, [&](const std::string& name, const auto& values) {
      element = sizeof(values[0]);
      const auto bytes = std::as_bytes(values);
      if (writes) whole[name].assign(bytes.begin(), bytes.end());
    });
    if (!writes) return;
    const bool short_weights = element == 2;
    std::vector<distx::checkpoint::SafetensorsInput> tensors;
    for_each_gpt2_tensor(config.shape(), [&](const Gpt2Tensor& tensor) {
      auto& bytes = whole.at(tensor.weight);
      if (tensor.transposed && !Model::inputs_first)
        bytes = transposed(bytes, static_cast<std::size_t>(tensor.shape[0]), element);
      tensors.push_back({"transformer." + tensor.name, short_weights ? "BF16" : "F32", tensor.shape, bytes});
      return true;
    });
    distx::checkpoint::write_safetensors(path_ / "model.safetensors", tensors, {{"format", "pt"}});
    for (const char* const name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
                                   "special_tokens_map.json", "added_tokens.json", "generation_config.json"})
      if (std::error_code absent; !tokenizer.empty() && std::filesystem::exists(tokenizer / name, absent))
        std::filesystem::copy_file(tokenizer / name, path_ / name, std::filesystem::copy_options::skip_existing);
    config_file().write(config.json(short_weights ? "bfloat16" : "float32").dump(2) + '\n');
  }

 private:
  /// Returns a matrix of outputs × inputs as one of inputs × outputs.
  [[nodiscard]] static std::vector<std::byte> transposed(const std::vector<std::byte>& matrix, std::size_t inputs,
                                                         std::size_t element) {
    std::vector<std::byte> result(matrix.size());
    const std::size_t outputs = matrix.size() / element / inputs;
    for (std::size_t in = 0; in < inputs; ++in)
      for (std::size_t out = 0; out < outputs; ++out)
        std::memcpy(&result[(in * outputs + out) * element], &matrix[(out * inputs + in) * element], element);
    return result;
  }
  [[nodiscard]] OutputFile config_file() const { return {"--save-model", path_ / "config.json"}; }

  std::filesystem::path path_;
};

}  // namespace examples
