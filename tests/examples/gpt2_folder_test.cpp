// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "models/gpt2_folder.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <distx/optim/adamw.hpp>
#include <distx/threads.hpp>
#include <distx/training.hpp>

#include "common/timed_training.hpp"
#include "temporary_folder.hpp"

using namespace examples;

namespace gpt2_folder_test {

namespace {

using Tensors = std::vector<distx::checkpoint::SafetensorsInput>;

const GptShape shape{.vocabulary = 300, .context = 6, .width = 8, .layers = 2, .heads = 2, .epsilon = 0.01};

/// Returns number i of tensor k, which every type of floating point has exactly.
float number(std::size_t k, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 37 + k * 101) % 201) - 100) / 128;
}

/// The folder of a GPT-2 that a test may damage.
class Model {
 public:
  explicit Model(const std::string& prefix = "transformer.") : config_(Gpt2Config(shape).json("float32")) {
    for_each_gpt2_tensor(shape, [&](const Gpt2Tensor& tensor) {
      std::size_t size = 1;
      for (const auto extent : tensor.shape) size *= extent;
      auto& values = values_.emplace_back(size);
      for (std::size_t i = 0; i < size; ++i) values[i] = number(values_.size() - 1, i);
      tensors.push_back({prefix + tensor.name, "F32", tensor.shape, {}});
      return true;
    });
    for (std::size_t k = 0; k < tensors.size(); ++k) tensors[k].bytes = std::as_bytes(std::span(values_[k]));
  }
  /// Writes the folder.
  const std::filesystem::path& path() {
    folder_.write("config.json", config_.dump());
    distx::checkpoint::write_safetensors(folder_.path() / "model.safetensors", tensors);
    return folder_.path();
  }
  /// Changes a field of the configuration, and returns the folder.
  const std::filesystem::path& with(const std::string& field, const nlohmann::json& value) {
    if (value == "absent")
      config_.erase(field);
    else
      config_[field] = value;
    return path();
  }
  [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }

  Tensors tensors;

 private:
  TemporaryFolder folder_;
  nlohmann::json config_;
  std::vector<std::vector<float>> values_;
};

/// Returns the message of the CheckpointError with which reading a folder fails, or "".
std::string message(const std::filesystem::path& path) {
  try {
    const Gpt2Folder folder(path);
  } catch (const distx::CheckpointError& error) {
    return error.message();
  }
  return "";
}
void check_contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(contains(text, part));
}

/// Calls f(comm, model, training) on each rank with the loaded folder.
template <class Weight, class... Policies, class F>
void on_ranks(int ranks, int stage, const std::filesystem::path& path, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::AnyCommunicator<> comm{distx::ThreadCommunicator(connector, 20s)};
    const Gpt2Folder folder(path);
    BasicGpt<Weight> model(folder.config().shape(), 1);
    using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...>;
    TimedTraining<Weight> training(
        Training(comm, model.parameters(), distx::AdamW{}, {.bucket_bytes = 1000, .stage = stage}));
    folder.load(model, training);
    f(comm, model, training);
  });
}

// The logits of tokens 0, 1, 150 and 299 after each of the `tokens`, and the loss of the `targets`. transformers 5.23
// computed them in double precision: the parameters of GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=6,
// n_embd=8, n_layer=2, n_head=2, layer_norm_epsilon=0.01)) were set to ((i * 37 + k * 101) % 201 - 100) / 128, with the
// index k of the parameter in the order of for_each_gpt2_tensor and the row-major index i, then model.eval().double().
const std::vector<Token> tokens{299, 0, 150, 7, 256}, targets{0, 150, 7, 256, 1};
const std::size_t columns[] = {0, 1, 150, 299};
const double reference[][4] = {{-1.72491449, 1.4558498, -0.258539186, 0.478472156},
                               {-1.86690622, 1.06365741, 0.0218200822, -0.397307904},
                               {-1.96157486, 1.40579057, -0.489665128, 0.336726308},
                               {-2.14284572, 1.39545336, -0.771231118, 0.5775099},
                               {-2.10345879, 1.41646961, -0.781800544, 0.591362614}};
constexpr double reference_loss = 6.28368663;

template <class Weight>
void check_logits(BasicGpt<Weight>& model, TimedTraining<Weight>& training) {
  const auto scope = training.evaluate();
  const auto& logits = model.logits(tokens, tokens.size(), training);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    for (std::size_t j = 0; j < std::size(columns); ++j)
      CHECK(std::abs(static_cast<double>(logits(static_cast<Eigen::Index>(columns[j]), static_cast<Eigen::Index>(i))) -
                     reference[i][j]) < 1e-5);
  CHECK(std::abs(static_cast<double>(model.forward(tokens, targets, tokens.size(), training)) - reference_loss) < 1e-5);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a GPT-2 of a Hugging Face folder has the logits and the loss of transformers") {
  for (const char* const prefix : {"transformer.", ""}) {
    Model written(prefix);
    const auto path = written.path();
    for (const int ranks : {1, 2})
      for (int stage = 0; stage < 4; ++stage) {
        CAPTURE(ranks);
        CAPTURE(stage);
        on_ranks<float>(ranks, stage, path, [](auto&, auto& model, auto& training) { check_logits(model, training); });
      }
    // In bfloat16, which has these weights exactly.
    on_ranks<distx::bfloat16, distx::Precision<distx::bfloat16>>(
        2, 3, path, [](auto&, auto& model, auto& training) { check_logits(model, training); });
  }
}

TEST_CASE("a GPT-2 that is saved has the tensors and the configuration of the folder that it was loaded from") {
  Model written;
  const auto path = written.with("eos_token_id", 299);
  const distx::checkpoint::SafetensorsFile before(path / "model.safetensors");
  for (const int ranks : {1, 2})
    for (int stage = 0; stage < 4; ++stage) {
      const TemporaryFolder folder;
      const auto saved = folder.path() / "new" / "model";
      on_ranks<float>(ranks, stage, path, [&](auto& comm, auto& model, auto& training) {
        const Gpt2Output output(saved);
        if (comm.rank() == 0) output.prepare();
        output.write(comm, model, training, Gpt2Folder(path).config());
      });
      CHECK(nlohmann::json::parse(bytes_of(saved / "config.json")) ==
            nlohmann::json::parse(bytes_of(path / "config.json")));
      const distx::checkpoint::SafetensorsFile after(saved / "model.safetensors");
      CHECK(after.metadata().at("format") == "pt");
      REQUIRE(after.tensors().size() == before.tensors().size());
      for (const auto& tensor : before.tensors()) {
        CAPTURE(tensor.name);
        const auto* const found = after.find(tensor.name);
        REQUIRE(found != nullptr);
        CHECK(found->type == tensor.type);
        CHECK(found->shape == tensor.shape);
        CHECK(std::ranges::equal(after.bytes(*found), before.bytes(tensor)));
      }
      CHECK(message(saved) == "");
    }
}

TEST_CASE("a GPT-2 in bfloat16 is saved in bfloat16") {
  Model written;
  const auto path = written.path();
  const TemporaryFolder folder;
  on_ranks<distx::bfloat16, distx::Precision<distx::bfloat16>>(
      2, 3, path, [&](auto& comm, auto& model, auto& training) {
        Gpt2Output(folder.path()).write(comm, model, training, Gpt2Folder(path).config());
      });
  const distx::checkpoint::SafetensorsFile saved(folder.path() / "model.safetensors");
  CHECK(saved.find("transformer.wte.weight")->type == "BF16");
  CHECK(Gpt2Folder(folder.path()).config().json("x")["torch_dtype"] == "x");
  CHECK(nlohmann::json::parse(bytes_of(folder.path() / "config.json"))["torch_dtype"] == "bfloat16");
  on_ranks<float>(1, 0, folder.path(), [](auto&, auto& model, auto& training) { check_logits(model, training); });
}

TEST_CASE("a tokenizer is copied next to the model that is saved") {
  Model written;
  const auto path = written.path();
  written.folder().write("tokenizer.json", "{}");
  written.folder().write("merges.txt", "a b");
  written.folder().write("other.json", "3");
  const TemporaryFolder folder;
  on_ranks<float>(2, 0, path, [&](auto& comm, auto& model, auto& training) {
    const Gpt2Folder from(path);
    Gpt2Output(folder.path()).write(comm, model, training, from.config(), from.path());
  });
  CHECK(bytes_of(folder.path() / "tokenizer.json") == "{}");
  CHECK(bytes_of(folder.path() / "merges.txt") == "a b");
  CHECK(!std::filesystem::exists(folder.path() / "other.json"));
}

TEST_CASE("a folder that has a model is not overwritten") {
  Model written;
  const auto path = written.path();
  try {
    Gpt2Output(path).prepare();
    FAIL("prepare has returned");
  } catch (const distx::CheckpointError& error) {
    check_contains(error.message(), "config.json' exists: give --save-model another folder");
  }
}

TEST_CASE("a configuration that is not supported is rejected with the field and its value") {
  const auto with = [](const char* field, const nlohmann::json& value) { return message(Model().with(field, value)); };
  CHECK(with("n_inner", 32) == "");
  CHECK(with("scale_attn_weights", "absent") == "");
  CHECK(with("activation_function", "absent") == "");
  CHECK(with("resid_pdrop", 0.1) == "");
  check_contains(with("model_type", "gpt_neo"),
                 "config.json' has model_type \"gpt_neo\": train_gpt supports only \"gpt2\"");
  check_contains(with("model_type", "absent"), "has model_type null");
  check_contains(with("activation_function", "relu"),
                 "has activation_function \"relu\": train_gpt supports only \"gelu_new\" or \"gelu_pytorch_tanh\"");
  check_contains(with("n_inner", 33), "has n_inner 33: train_gpt supports only null or 32");
  check_contains(with("scale_attn_weights", false), "has scale_attn_weights false: train_gpt supports only true");
  check_contains(with("scale_attn_by_inverse_layer_idx", true), "has scale_attn_by_inverse_layer_idx true");
  check_contains(with("add_cross_attention", true), "has add_cross_attention true");
  check_contains(with("tie_word_embeddings", false), "has tie_word_embeddings false");
  check_contains(with("pruned_heads", {{"0", {1}}}), "has pruned_heads {\"0\":[1]}");
  check_contains(with("quantization_config", {{"bits", 4}}), "has quantization_config");
  check_contains(with("layer_norm_epsilon", 0), "has layer_norm_epsilon 0: must be a number above 0 and below 1");
  check_contains(with("layer_norm_epsilon", "1e-5"), "has layer_norm_epsilon \"1e-5\"");
  check_contains(with("n_embd", "absent"), "has n_embd null: must be a whole number");
  check_contains(with("vocab_size", -1), "has vocab_size -1: must be a whole number");
  check_contains(with("n_head", 0), "has n_head 0: must be a whole number");
  check_contains(with("n_layer", 2.5), "has n_layer 2.5: must be a whole number");
  check_contains(with("n_positions", 1e300), "has n_positions 1e+300: must be a whole number");
  check_contains(with("n_head", 3), "has n_embd 8: must be divisible by n_head 3");
}

TEST_CASE("a folder without a model is rejected with the name of the file") {
  const TemporaryFolder folder;
  check_contains(message(folder.path()), "config.json' cannot be opened");
  for (const char* const text : {"", "{", "[]", "3", "{\"a\": \"\xff\"}"}) {
    folder.write("config.json", text);
    check_contains(message(folder.path()), "config.json' is not a JSON object");
  }
  folder.write("config.json", Gpt2Config(shape).json("float32").dump());
  check_contains(message(folder.path()), "model.safetensors' (No such file");
  folder.write("model.safetensors", "short");
  check_contains(message(folder.path()), "model.safetensors' has 5 bytes");
  for (const char* const text : {"", "[]", R"({"weight_map": 3})", R"({"weight_map": {"a": 3}})"}) {
    folder.write("model.safetensors.index.json", text);
    check_contains(message(folder.path()), "model.safetensors.index.json' is not the JSON of an index");
  }
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "part.safetensors"}})");
  check_contains(message(folder.path()), "part.safetensors' (No such file");
}

TEST_CASE("tensors that are absent, of other shapes or types, or more than a GPT-2 has are rejected with their file") {
  const auto changed = [](auto&& change) {
    Model model;
    change(model.tensors);
    return message(model.path());
  };
  check_contains(changed([](Tensors& all) { all.erase(all.begin() + 4); }),
                 "'transformer.h.0.attn.c_attn.weight', a floating-point tensor [8,24], is absent");
  const auto swapped = changed([](Tensors& all) {
    std::swap(all[4].shape[0], all[4].shape[1]);
    std::swap(all[0].shape[0], all[0].shape[1]);
  });
  check_contains(swapped, "'transformer.h.0.attn.c_attn.weight', F32 [24,8] in '");
  check_contains(swapped, "model.safetensors', must be a floating-point tensor [8,24]");
  check_contains(swapped, "'transformer.wte.weight', F32 [8,300] in '");
  check_contains(changed([](Tensors& all) { all[5].type = "I32"; }),
                 "'transformer.h.0.attn.c_attn.bias', I32 [24] in '");
  check_contains(changed([](Tensors& all) { all[5].name = "score.weight"; }),
                 "is not a weight of a GPT-2 with 2 layers");
  check_contains(message(Model().with("n_layer", 3)),
                 "'transformer.h.2.ln_1.weight', a floating-point tensor [8], is absent");
  check_contains(message(Model().with("n_layer", 1U << 31)), "is absent");
  check_contains(message(Model().with("n_layer", 1)), "is not a weight of a GPT-2 with 1 layers");
  check_contains(message(Model().with("n_embd", 1U << 31)), "must be a floating-point tensor [300,2147483648]");
}

TEST_CASE("the masks of old files are ignored, and a head must be the tokens' vectors") {
  const std::vector<std::uint8_t> mask(36);
  const auto add = [&](Model& model, const char* name, const char* type, std::span<const std::byte> bytes,
                       std::vector<std::uint64_t> extents) {
    model.tensors.push_back({name, type, std::move(extents), bytes});
    return message(model.path());
  };
  {
    Model model;
    CHECK(add(model, "transformer.h.0.attn.bias", "BOOL", std::as_bytes(std::span(mask)), {1, 1, 6, 6}) == "");
  }
  {
    Model model;
    CHECK(add(model, "lm_head.weight", "F32", model.tensors[0].bytes, {300, 8}) == "");
  }
  std::vector<float> other(2400);
  for (const std::uint64_t rows : {300U, 8U}) {
    Model model;
    check_contains(add(model, "lm_head.weight", "F32", std::as_bytes(std::span(other)), {rows, 2400 / rows}),
                   "differs from 'transformer.wte.weight', to which a GPT-2 ties it");
  }
}

}  // namespace gpt2_folder_test
