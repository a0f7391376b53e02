// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/optim/sgd.hpp>

#include <fstream>

#include "model.hpp"

using distx::checkpoint::load_weights;
using distx::checkpoint::WeightOptions;
using model::Any;
using model::Folder;
using model::on_ranks;
using model::Trainer;

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

/// Returns all weights of a training, whole.
template <class Training>
std::map<std::string, Bytes> weights_of(Training& training) {
  std::map<std::string, Bytes> weights;
  training.for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> values) {
    weights[name].assign(values.bytes(), values.bytes() + values.size_bytes());
  });
  return weights;
}

/// Saves a training of 3 ranks.
/// @return the folder of the checkpoint
fs::path save(const Folder& folder, std::map<std::string, Bytes>& weights) {
  on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    trainer.step(1);
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    auto whole = weights_of(trainer.training());
    if (comm.rank() == 0) weights = std::move(whole);
  });
  return *distx::checkpoint::latest(folder.path());
}

/// Two matrices, a vector and a buffer, of T.
template <class T>
struct Small {
  static constexpr std::size_t rows = 3, columns = 5;

  template <class Training, class C>
  static std::map<std::string, Bytes> load(C& comm, int stage, const fs::path& path, const WeightOptions& options) {
    std::vector<distx::Parameter<T>> parameters;
    parameters.emplace_back("a.weight", rows * columns, distx::ParameterOptions{.rows = rows});
    parameters.emplace_back("a.bias", rows);
    parameters.emplace_back("b.weight", rows * columns, distx::ParameterOptions{.rows = columns});
    Training training(comm, parameters, distx::AdamW{}, {.stage = stage});
    load_weights(path, training, options);
    auto weights = weights_of(training);
    for (const auto& array : training.state().arrays)
      if (array.name.ends_with("master"))
        weights[array.name].assign(array.values.bytes(), array.values.bytes() + array.values.size_bytes());
    return weights;
  }
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}
template <class T>
std::vector<T> numbers(std::size_t count, float first) {
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(first + 0.3f * static_cast<float>(i)));
  return values;
}

struct Given {
  std::string name, type;
  std::vector<std::uint64_t> shape;
  Bytes bytes;
};
void write(const fs::path& path, const std::vector<Given>& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  std::vector<distx::checkpoint::SafetensorsInput> inputs;
  for (const auto& each : tensors) inputs.push_back({each.name, each.type, each.shape, each.bytes});
  distx::checkpoint::write_safetensors(path, inputs, metadata);
}
void write_text(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

/// Returns the message with which loading into a Small fails on 2 ranks, or "".
std::string message(const fs::path& path, const WeightOptions& options = {}) {
  std::string messages[2];
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    try {
      Small<float>::load<Any>(comm, 3, path, options);
    } catch (const distx::CheckpointError& error) {
      messages[comm.rank()] = error.message();
    }
  });
  CHECK(messages[0] == messages[1]);
  return messages[0];
}
void check_contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("load_weights loads a consolidated file and a checkpoint into any number of ranks at any stage") {
  const Folder folder;
  std::map<std::string, Bytes> saved;
  const auto checkpoint = save(folder, saved);
  fs::create_directory(folder.path() / "model");
  const auto file = folder.path() / "model" / "model.safetensors";
  distx::checkpoint::consolidate(checkpoint, file);
  for (const auto& path : {checkpoint, file, folder.path() / "model"})
    for (const int ranks : {1, 2, 4})
      for (int stage = 0; stage < 4; ++stage) {
        CAPTURE(path);
        CAPTURE(ranks);
        CAPTURE(stage);
        on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          Trainer<> trainer(comm, distx::AdamW{}, {.bucket_bytes = 1000, .stage = stage}, 2);
          trainer.step(5);
          const auto updates = trainer.training().state().counters.updates;
          load_weights(path, trainer.training());
          const bool same = weights_of(trainer.training()) == saved;
          CHECK(same);
          CHECK(trainer.training().state().counters.updates == updates);
          trainer.step(6);
        });
      }
}

TEST_CASE("load_weights rejects damaged and incomplete checkpoints, and single shards") {
  const Folder folder;
  std::map<std::string, Bytes> saved;
  const auto checkpoint = save(folder, saved);
  fs::path shard;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.path().filename().string().starts_with("shard-00002")) shard = entry.path();
  check_contains(message(shard), "is a part of a checkpoint without its checkpoint.json");
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  const auto damaged = message(checkpoint, {.rename = [](const std::string&) { return ""; }, .ignore_others = true});
  check_contains(damaged, "does not have its checksum");
  fs::remove(checkpoint / "checkpoint.json");
  check_contains(message(checkpoint), "is a part of a checkpoint without its checkpoint.json");
}

TEST_CASE_TEMPLATE("load_weights renames, transposes and converts", T, float, distx::float16, distx::bfloat16) {
  const Folder folder;
  const auto a = numbers<float>(15, 1.1f), bias = numbers<float>(3, -4);
  const auto b = numbers<distx::bfloat16>(15, 0.7f);
  write(folder.path() / "x.safetensors",
        {{"net.a.weight", "F32", {5, 3}, bytes_of(a)}, {"net.a.bias", "F32", {3, 1}, bytes_of(bias)}});
  write(folder.path() / "y.safetensors",
        {{"net.b.weight", "BF16", {5, 1, 3}, bytes_of(b)}, {"net.mask", "BOOL", {1}, Bytes(1)}});
  write_text(folder.path() / "model.safetensors.index.json",
             R"({"metadata": {}, "weight_map": {"net.a.weight": "x.safetensors", "net.a.bias": "x.safetensors",
                 "net.b.weight": "y.safetensors", "net.mask": "y.safetensors"}})");
  std::vector<T> a_wanted(15), bias_wanted, b_wanted;
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t column = 0; column < 5; ++column) a_wanted[row * 5 + column] = static_cast<T>(a[column * 3 + row]);
  for (const float value : bias) bias_wanted.push_back(static_cast<T>(value));
  for (const auto value : b) b_wanted.push_back(static_cast<T>(static_cast<float>(value)));
  const std::map<std::string, Bytes> wanted{
      {"a.weight", bytes_of(a_wanted)}, {"a.bias", bytes_of(bias_wanted)}, {"b.weight", bytes_of(b_wanted)}};
  const WeightOptions options{.rename = [](const std::string& name) { return "net." + name; },
                              .transposed = [](const std::string& name) { return name == "a.weight"; },
                              .ignore_others = true};
  for (const int ranks : {1, 2, 3})
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        const bool same = Small<T>::template load<Any>(comm, stage, folder.path(), options) == wanted;
        CHECK(same);
      });
    }
  if constexpr (sizeof(T) == 2)
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      using Precise = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<T>>;
      const auto weights = Small<T>::template load<Precise>(comm, 1, folder.path(), options);
      const bool rounded = weights.at("a.bias") == wanted.at("a.bias");
      CHECK(rounded);
      const bool exact = weights.at("optim.state.a.bias.master") == bytes_of(bias);
      CHECK(exact);
    });
}

/// Returns the bytes of each float array, by the name of its weight: of the weights, or of their masters.
template <class Training>
std::map<std::string, Bytes> floats_of(Training& training) {
  std::map<std::string, Bytes> floats;
  for (const auto& array : training.state().arrays) {
    const std::string_view prefix = "optim.state.", master = ".master";
    std::string name = array.name;
    if (name.ends_with(master))
      name = name.substr(prefix.size(), name.size() - prefix.size() - master.size());
    else if (name.starts_with(prefix) || array.values.type() != distx::ElementType::f32)
      continue;
    floats[name].assign(array.values.bytes(), array.values.bytes() + array.values.size_bytes());
  }
  return floats;
}

TEST_CASE("load_weights gives master weights the values of the file, and the next step starts from them") {
  using distx::bfloat16;
  using Precise = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<bfloat16>>;
  const Folder folder;
  const auto path = folder.path() / "x.safetensors";
  const auto values = numbers<float>(91, 1.1f);  // which bfloat16 rounds
  write(path, {{"a.weight", "F32", {7, 13}, bytes_of(values)}});
  const WeightOptions options{.rename = [](const std::string& name) { return name == "a.weight" ? name : ""; }};
  for (const int ranks : {1, 2, 3})
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        Trainer<Precise, bfloat16> trainer(comm, distx::SGD{}, {.bucket_bytes = 300, .stage = stage});
        trainer.step(1);
        load_weights(path, trainer.training(), options);
        trainer.step(2, 0);  // with a rate of 0
        for (const auto& array : trainer.training().state().arrays)
          if (array.name == "optim.state.a.weight.master") {
            const auto* const master = reinterpret_cast<const float*>(array.values.bytes());
            CHECK(std::equal(master, master + array.values.size(),
                             values.begin() + static_cast<std::ptrdiff_t>(array.offset)));
          }
      });
    }
}

TEST_CASE("load_weights reads float weights from a checkpoint's master weights") {
  using distx::bfloat16;
  using Precise = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<bfloat16>>;
  const Folder folder;
  std::map<std::string, Bytes> saved;
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<Precise, bfloat16> trainer(comm, distx::AdamW{}, {.stage = 1});
    for (int i = 0; i < 3; ++i) trainer.step(static_cast<std::uint64_t>(i));
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3});
    saved = floats_of(trainer.training());
  });
  REQUIRE(saved.size() == std::size(model::shapes) - 1);  // but the frozen one
  const auto checkpoint = *distx::checkpoint::latest(folder.path());
  for (int stage = 0; stage < 4; ++stage)
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      Trainer<Precise, bfloat16> short_weights(comm, distx::AdamW{}, {.stage = stage}, 2);
      load_weights(checkpoint, short_weights.training());
      const bool same = floats_of(short_weights.training()) == saved;
      CHECK(same);
      Trainer<> whole(comm, distx::AdamW{}, {.stage = stage}, 2);
      load_weights(checkpoint, whole.training());
      auto weights = floats_of(whole.training());
      weights.erase("b.frozen");
      const bool unrounded = weights == saved;
      CHECK(unrounded);
    });
}

TEST_CASE("load_weights loads boxes of several files as PyTorch writes them, and reports absent parts") {
  const Folder folder;
  const auto a = numbers<float>(15, 0), b = numbers<float>(15, 8), bias = numbers<float>(3, 3);
  const auto box = [](const std::vector<float>& matrix, std::size_t columns, std::size_t begin, std::size_t end) {
    std::vector<float> values;
    for (std::size_t i = 0; i < matrix.size(); ++i)
      if (i % columns >= begin && i % columns < end) values.push_back(matrix[i]);
    return bytes_of(values);
  };
  const auto part = [&](int rank, const std::vector<Given>& tensors, const std::string& sharding) {
    const auto path = folder.path() / ("shard-0000" + std::to_string(rank) + "-model-00001-of-00001.safetensors");
    fs::remove(path);
    write(path, tensors, {{"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", sharding}});
  };
  part(1,
       {{"a.weight", "F32", {3, 2}, box(a, 5, 0, 2)},
        {"b.weight", "F32", {5, 3}, box(b, 3, 0, 3)},
        {"a.bias", "F32", {3}, bytes_of(bias)}},
       "{}");
  check_contains(message(folder.path()), "does not say where tensor");
  const std::string first = R"({"a.weight": {"saved_offsets": [0, 0]}, "b.weight": {"saved_offsets": [0, 0]},
                                "a.bias": {"saved_offsets": [0]}})";
  Bytes head = bytes_of(b), tail = head;
  head.resize(9 * sizeof(float));
  tail.erase(tail.begin(), tail.begin() + 9 * sizeof(float));
  part(1,
       {{"a.weight", "F32", {3, 2}, box(a, 5, 0, 2)},
        {"b.weight", "F32", {3, 3}, head},
        {"a.bias", "F32", {3}, bytes_of(bias)}},
       first);
  const auto rest = [&](const std::string& a_offsets) {
    part(2, {{"a.weight", "F32", {3, 3}, box(a, 5, 2, 5)}, {"b.weight", "F32", {2, 3}, tail}},
         R"({"a.weight": {"saved_offsets": )" + a_offsets + R"(}, "b.weight": {"saved_offsets": [3, 0]}})");
  };
  rest("[0, 2]");
  for (const int ranks : {1, 2, 3})
    for (int stage = 0; stage < 4; ++stage)
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        const bool same = Small<float>::load<Any>(comm, stage, folder.path(), {}) ==
                          std::map<std::string, Bytes>{
                              {"a.weight", bytes_of(a)}, {"b.weight", bytes_of(b)}, {"a.bias", bytes_of(bias)}};
        CHECK(same);
      });
  rest("[0, 3]");
  check_contains(message(folder.path()), "'a.weight', F32 [3, 5] in the training, is F32 [3, 6] in the file");
  rest("[0, 1]");
  check_contains(message(folder.path()), "is F32 [3, 4] in the file");
  rest("[18446744073709551615, 2]");
  check_contains(message(folder.path()), "does not fit the other files'");
  rest("[0]");
  check_contains(message(folder.path()), "does not fit the other files'");
  rest("[0, 2]");
  fs::remove(folder.path() / "shard-00001-model-00001-of-00001.safetensors");
  check_contains(message(folder.path()), "'a.bias', F32 [3] in the training, is not in the file");
  check_contains(
      message(folder.path(), {.rename = [](const std::string& name) { return name == "a.bias" ? "" : name; }}),
      "do not have every element of tensor 'a.weight' once");
}

TEST_CASE("load_weights reports all differences at once, and changes nothing") {
  const Folder folder;
  const auto path = folder.path() / "w.safetensors";
  write(
      path,
      {{"a.weight", "F32", {5, 3}, Bytes(60)}, {"b.weight", "I32", {5, 3}, Bytes(60)}, {"more", "U8", {1}, Bytes(1)}});
  const auto all = message(path);
  check_contains(all, "'a.weight', F32 [3, 5] in the training, is F32 [5, 3] in the file");
  check_contains(all, "'b.weight', F32 [5, 3] in the training, is I32 [5, 3] in the file");
  check_contains(all, "'a.bias', F32 [3] in the training, is not in the file");
  check_contains(all, "'more', U8 [1] in the file, is not in the training");
  const auto others = message(path, {.ignore_others = true});
  CHECK(others.find("'more'") == std::string::npos);
  check_contains(message(path, {.rename = [](const std::string& name) { return "x." + name; }}),
                 "'a.bias', F32 [3] in the training, is not in the file as 'x.a.bias'");
  check_contains(message(path, {.transposed = [](const std::string& name) { return name == "b.weight"; }}),
                 "is transposed I32 [5, 3] in the file");
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 2});
    const auto before = weights_of(trainer.training());
    CHECK_THROWS_AS(load_weights(path, trainer.training()), distx::CheckpointError);
    const bool unchanged = weights_of(trainer.training()) == before;
    CHECK(unchanged);
    trainer.step(1);
  });
}

TEST_CASE("load_weights rejects folders that are absent, empty or invalid") {
  const Folder folder;
  check_contains(message(folder.path() / "no"), "cannot open");
  check_contains(message(folder.path()), "has no safetensors files");
  const auto index = folder.path() / "model.safetensors.index.json";
  for (const char* const text :
       {"", "{", "[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {"a": 3}})", "{\"\xff\": 1}"}) {
    CAPTURE(text);
    write_text(index, text);
    check_contains(message(folder.path()), "is not the JSON of an index with a weight_map");
  }
  write_text(index, std::string(1000, '['));
  check_contains(message(folder.path()), "is nested too deeply");
  for (const char* const name : {"../a.safetensors", "/a.safetensors", "a.bin", ".safetensors"}) {
    write_text(index, std::string(R"({"weight_map": {"a": ")") + name + R"("}})");
    check_contains(message(folder.path()), "which is not one of its folder");
  }
  write_text(index, R"({"weight_map": {"a": "a.safetensors"}})");
  check_contains(message(folder.path()), "cannot open");
  write_text(folder.path() / "a.safetensors", "what");
  check_contains(message(folder.path()), "too few for the length of a header");
}

TEST_CASE("a Git LFS pointer in place of a file is a CheckpointError that names it") {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 548105171\n";
  const Folder folder;
  for (const char* const name :
       {"a.safetensors", "model.safetensors", "model.safetensors.index.json", "checkpoint.json"}) {
    CAPTURE(name);
    write_text(folder.path() / name, pointer);
    check_contains(message(folder.path()),
                   std::string(name) + "' is a Git LFS pointer of " + std::to_string(pointer.size()) + " bytes");
  }
  CHECK_THROWS_WITH_AS(distx::checkpoint::SafetensorsFile(folder.path() / "model.safetensors"),
                       doctest::Contains("fetch the file with 'git lfs pull'"), distx::CheckpointError);
}

TEST_CASE("load_weights throws a MismatchError on every rank if the ranks read different files") {
  const Folder folder;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    const std::string rank = std::to_string(comm.rank());
    const auto mine = folder.path() / (rank + ".safetensors");
    write(mine, {{"a.weight", "F32", {3, 5}, Bytes(60)},
                 {"b.weight", "F32", {5, 3}, Bytes(60)},
                 {"a.bias", "F32", {3}, Bytes(12)},
                 {"only" + rank, "F32", {1}, Bytes(4)}});
    CHECK_THROWS_WITH_AS(Small<float>::load<Any>(comm, 1, mine, {.ignore_others = true}),
                         doctest::Contains("rank 0 and rank 1 read different weights, this rank from '"),
                         distx::MismatchError);
  });
}
