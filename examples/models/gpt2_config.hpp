// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <distx/core/error.hpp>

#include "gpt.hpp"

namespace examples {

/// The `config.json` of a Hugging Face folder with a GPT-2, and the shape that it describes.
///
/// Only fields that change what the model computes are read; those for which Gpt has no counterpart are rejected unless
/// they have their usual values. Dropout is not applied.
class Gpt2Config {
 public:
  /// @throws distx::CheckpointError for a file that cannot be read or is not JSON, and for fields that are absent,
  ///   invalid or not supported
  static Gpt2Config read(const std::filesystem::path& folder) {
    const auto path = folder / "config.json";
    std::ifstream file(path, std::ios::binary);
    std::error_code ignored;
    if (!file || std::filesystem::is_directory(path, ignored))
      throw distx::CheckpointError("'" + path.string() + "' cannot be opened: use a folder of Hugging Face");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object())
      throw distx::CheckpointError("'" + path.string() + "' is not a JSON object: use a folder that is complete");
    return Gpt2Config(path.string(), std::move(json));
  }
  /// Describes a model of that shape.
  explicit Gpt2Config(const GptShape& shape)
      : shape_(shape),
        json_{{"model_type", "gpt2"},
              {"architectures", {"GPT2LMHeadModel"}},
              {"activation_function", "gelu_new"},
              {"vocab_size", shape.vocabulary},
              {"n_positions", shape.context},
              {"n_embd", shape.width},
              {"n_layer", shape.layers},
              {"n_head", shape.heads},
              {"n_inner", nullptr},
              {"layer_norm_epsilon", shape.epsilon},
              {"tie_word_embeddings", true},
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr}} {}

  [[nodiscard]] const GptShape& shape() const { return shape_; }
  /// Returns the JSON with another type of the weights.
  /// @param type  such as "float32"
  [[nodiscard]] nlohmann::json json(const std::string& type) const {
    auto changed = json_;
    changed[json_.contains("dtype") ? "dtype" : "torch_dtype"] = type;
    return changed;
  }

 private:
  Gpt2Config(const std::string& path, nlohmann::json json) : json_(std::move(json)) {
    demand(path, "model_type", nullptr, {"gpt2"});
    shape_ = {count(path, "vocab_size"), count(path, "n_positions"), count(path, "n_embd"), count(path, "n_layer"),
              count(path, "n_head")};
    demand(path, "activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
    demand(path, "n_inner", nullptr, {nullptr, 4 * shape_.width});
    demand(path, "scale_attn_weights", true, {true});
    demand(path, "scale_attn_by_inverse_layer_idx", false, {false});
    demand(path, "add_cross_attention", false, {false});
    demand(path, "tie_word_embeddings", true, {true});
    demand(path, "pruned_heads", nullptr, {nullptr, nlohmann::json::object()});
    demand(path, "quantization_config", nullptr, {nullptr});
    const auto epsilon = json_.value("layer_norm_epsilon", nlohmann::json(shape_.epsilon));
    if (!epsilon.is_number() || !(epsilon.get<double>() > 0) || !(epsilon.get<double>() < 1))
      fail(path, "layer_norm_epsilon", epsilon, "must be a number above 0 and below 1");
    shape_.epsilon = epsilon.get<double>();
    if (shape_.width % shape_.heads != 0)
      fail(path, "n_embd", shape_.width, "must be divisible by n_head " + std::to_string(shape_.heads));
  }

  [[noreturn]] static void fail(const std::string& path, const std::string& field, const nlohmann::json& value,
                                const std::string& what) {
    throw distx::CheckpointError("'" + path + "' has " + field + " " +
                                 value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ": " + what);
  }
  /// Throws unless the field, or else its usual value, is one of these.
  void demand(const std::string& path, const char* field, const nlohmann::json& usual,
              const std::vector<nlohmann::json>& supported) const {
    const auto value = json_.contains(field) ? json_.at(field) : usual;
    std::string list;
    for (const auto& each : supported) {
      if (value == each) return;
      list += (list.empty() ? "" : " or ") + each.dump();
    }
    fail(path, field, value, "train_gpt supports only " + list);
  }
  [[nodiscard]] std::size_t count(const std::string& path, const char* field) const {
    constexpr std::size_t most = 1U << 31;
    const auto value = json_.value(field, nlohmann::json());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > most)
      fail(path, field, value, "must be a whole number from 1 to " + std::to_string(most));
    return value.get<std::size_t>();
  }

  GptShape shape_;
  nlohmann::json json_;
};

}  // namespace examples
