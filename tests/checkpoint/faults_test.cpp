// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/optim/sgd.hpp>

#include "file_content.hpp"
#include "model.hpp"

using model::Any;
using model::Folder;
using model::on_ranks;
using model::Trainer;
using model::WholeState;
using test::content_of;
using test::set_content;

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Saves steps 1 and 2 of a training of 3 ranks.
void save_two(const Folder& folder, const distx::checkpoint::SaveOptions& options = {}) {
  on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    for (std::uint64_t step = 1; step <= 2; ++step) {
      trainer.step(step);
      distx::checkpoint::save(folder.path(), trainer.training(),
                              {.step = step, .notes = options.notes, .keep = options.keep});
    }
  });
}

/// Whether a load failed with this message after it had changed the training.
bool is_incomplete(const std::string& message) { return message.find("has damaged data") != std::string::npos; }

/// Returns the message with which loading fails on 2 ranks; empty if it succeeds. A failed load changes nothing, or
/// leaves a training that loads the older checkpoint.
template <class Optimizer = distx::AdamW>
std::string load_message(const fs::path& checkpoint, const Optimizer& optimizer = {}) {
  std::string messages[2];
  WholeState before, after;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, optimizer, {.stage = 2}, 1);
    before.add(trainer.training().state());
    auto& message = messages[comm.rank()];
    try {
      distx::checkpoint::load(checkpoint, trainer.training());
    } catch (const distx::CheckpointError& error) {
      message = error.message();
    }
    after.add(trainer.training().state());
    if (is_incomplete(message))
      distx::checkpoint::load(checkpoint.parent_path() / "step-000000000001", trainer.training());
    trainer.step(1);
  });
  CHECK(messages[0] == messages[1]);
  if (!is_incomplete(messages[0])) CHECK((before == after) == !messages[0].empty());
  return messages[0];
}

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("latest returns the newest complete checkpoint") {
  const Folder folder;
  CHECK(distx::checkpoint::latest(folder.path()) == std::nullopt);
  CHECK(distx::checkpoint::latest(folder.path() / "no") == std::nullopt);
  save_two(folder);
  CHECK(distx::checkpoint::latest(folder.path()) == folder.path() / "step-000000000002");
  fs::create_directory(folder.path() / "step-000000000009");  // an interrupted save
  fs::create_directory(folder.path() / "step-12");
  set_content(folder.path() / "step-12" / "checkpoint.json", "{}");
  CHECK(distx::checkpoint::latest(folder.path()) == folder.path() / "step-000000000002");
  fs::remove(folder.path() / "step-000000000002" / "checkpoint.json");
  CHECK(distx::checkpoint::latest(folder.path()) == folder.path() / "step-000000000001");
  set_content(folder.path() / "file", "");
  CHECK_THROWS_AS(static_cast<void>(distx::checkpoint::latest(folder.path() / "file")), distx::CheckpointError);
}

TEST_CASE("save keeps the number of checkpoints that it is asked for, and those of later steps") {
  const Folder folder;
  save_two(folder, {.keep = 1});
  CHECK(!fs::exists(folder.path() / "step-000000000001"));
  const Folder other;
  save_two(other);
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 0});
    distx::checkpoint::save(other.path(), trainer.training(), {.step = 0, .keep = 1});
  });
  CHECK(std::distance(fs::directory_iterator(other.path()), {}) == 3);
}

TEST_CASE("save overwrites no checkpoint, and the training continues after it has failed") {
  const Folder folder;
  save_two(folder);
  const auto before = content_of(folder.path() / "step-000000000002" / "checkpoint.json");
  set_content(folder.path() / "file", "");
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2}), distx::CheckpointError);
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path() / "file", trainer.training(), {.step = 2}),
                    distx::CheckpointError);
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path() / "x", trainer.training(),
                                            {.step = static_cast<std::uint64_t>(comm.rank())}),
                    distx::MismatchError);
    trainer.step(1);
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3});
  });
  CHECK(content_of(folder.path() / "step-000000000002" / "checkpoint.json") == before);
  CHECK(load_message(folder.path() / "step-000000000003") == "");
}

TEST_CASE("a save takes the place of a folder without a checkpoint, and sets its files aside for good") {
  const Folder folder;
  const auto path = folder.path() / "step-000000000001";
  fs::create_directory(path);
  const auto names = {"shard-00009-model-00001-of-00001.safetensors",
                      "shard-00001-model-00001-of-00001.safetensors.part", "mine.txt"};
  for (const char* name : names) set_content(path / name, "x");
  save_two(folder);
  CHECK(load_message(path) == "");
  for (const char* name : names) CHECK_FALSE(fs::exists(path / name));
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 0});
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3, .keep = 1, .stale_after = 0s});
  });
  std::size_t aside = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".replaced") continue;
    for (const char* name : names) aside += content_of(entry.path() / name) == "x" ? 1 : 0;
  }
  CHECK(aside == names.size());
}

TEST_CASE("a flipped bit anywhere in a checkpoint is a CheckpointError that names the file, and the tensor of data") {
  const Folder folder;
  save_two(folder);
  const auto checkpoint = folder.path() / "step-000000000002";
  std::size_t tensors = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const auto path = entry.path();
    const std::string good = content_of(path);
    for (std::size_t i = 0; i < good.size(); i += 41) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 4);
      set_content(path, bad);
      CAPTURE(i);
      const std::string message = load_message(checkpoint);
      says(message, path.filename().string());
      tensors += message.find("tensor '") != std::string::npos ? 1 : 0;
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
      set_content(path, good.substr(0, size));
      says(load_message(checkpoint), path.filename().string());
    }
    fs::remove(path);
    says(load_message(checkpoint), path.filename().string());
    set_content(path, good);
  }
  CHECK(tensors > 20);
  CHECK(load_message(checkpoint) == "");
}

TEST_CASE("a training whose checkpoint turned out damaged accepts nothing until another checkpoint is loaded") {
  const Folder folder;
  save_two(folder);
  const auto older = folder.path() / "step-000000000001", newer = folder.path() / "step-000000000002";
  for (const auto& entry : fs::directory_iterator(newer)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto data = distx::checkpoint::SafetensorsFile(entry.path()).header_bytes().size();
    std::string content = content_of(entry.path());
    content[data] = static_cast<char>(content[data] ^ 1);  // of an array, which the rank that saved it copies whole
    set_content(entry.path(), content);
  }
  const auto attempt = [&](auto&& use) {
    on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3}, 1);
      CHECK_THROWS_AS(distx::checkpoint::load(newer, trainer.training()), distx::CheckpointError);
      use(trainer);
    });
  };
  attempt([](auto& trainer) { CHECK_THROWS_AS(trainer.step(1), distx::InvalidState); });
  attempt([](auto& trainer) { CHECK_THROWS_AS(trainer.training().release(), distx::InvalidState); });
  attempt([&](auto& trainer) {
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), trainer.training(), {.step = 7}), distx::InvalidState);
  });
  attempt([&](auto& trainer) {
    CHECK_THROWS_AS(distx::checkpoint::load_weights(older, trainer.training()), distx::InvalidState);
  });
  WholeState loaded, expected;
  attempt([&](auto& trainer) {
    CHECK_THROWS_AS(distx::checkpoint::load(newer, trainer.training()), distx::CheckpointError);
    distx::checkpoint::load(older, trainer.training());
    trainer.step(2);
    loaded.add(trainer.training().state());
  });
  on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    for (std::uint64_t step = 1; step <= 2; ++step) trainer.step(step);
    expected.add(trainer.training().state());
  });
  CHECK(loaded == expected);
}

TEST_CASE("a file of another step is a CheckpointError, and the older checkpoint loads") {
  const Folder folder;
  save_two(folder);
  const auto newer = folder.path() / "step-000000000002", older = folder.path() / "step-000000000001";
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(newer)) {
    const auto name = entry.path().filename();
    if (name.extension() != ".safetensors") continue;
    const auto good = content_of(newer / name);
    set_content(newer / name, content_of(older / name));
    says(load_message(newer), name.string());
    set_content(newer / name, good);
    ++files;
  }
  CHECK(files >= 3);
  CHECK(load_message(newer) == "");
  CHECK(load_message(older) == "");
}

TEST_CASE("a manifest that is nested deeply, of another version or names a path is a CheckpointError") {
  const Folder folder;
  save_two(folder);
  const auto path = folder.path() / "step-000000000002" / "checkpoint.json";
  const auto good = nlohmann::json::parse(content_of(path));
  const auto message = [&](const std::string& content) {
    set_content(path, content);
    return load_message(path.parent_path());
  };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto json = good;
    json.erase("crc32");
    json[key] = value;
    json["crc32"] = distx::checkpoint::detail::checksum(json.dump());
    return message(json.dump());
  };
  says(message(std::string(1'000'000, '[')), "nested too deeply");
  says(message(R"({"format":"distx checkpoint","version":1,"crc32":0,"x":)" + std::string(100'000, '[')),
       "nested too deeply");
  says(message("{}"), "is not the JSON of a manifest");
  says(with("version", 2), "version 2");
  says(with("step", "x"), "is not the JSON of a manifest");
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".safetensors", "x.json"}) {
    auto files = good.at("files");
    files[0]["name"] = name;
    says(with("files", files), "which is not one of its folder");
  }
  auto fewer = good.at("files");
  fewer.erase(fewer.begin());
  says(with("files", fewer), "do not have every element of tensor");
  auto twice = good.at("files");
  twice.push_back(twice[0]);
  says(with("files", twice), "do not have every element of tensor");
  auto tensors = good.at("tensors");
  tensors["a.weight"]["shape"] = {3, 13};
  says(with("tensors", tensors), "outside of the array F32 [3, 13]");
  CHECK(with("step", 2) == "");
}

TEST_CASE("all differences in names, shapes and types are reported at once") {
  const Folder folder;
  save_two(folder);
  const auto checkpoint = folder.path() / "step-000000000002";
  const auto message = load_message(checkpoint, distx::SGD{});
  says(message, "'optim.state.a.bias.exp_avg' is not in the training");
  says(message, "'optim.state.head.weight.momentum_buffer', F32 [2, 33], is not in the checkpoint");
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    std::vector<double> weight(7), gradient(7);
    std::vector<float> bias(8), bias_gradient(8);
    distx::ParameterList<> list;
    list.add(distx::ref("a.weight", weight, gradient)).add(distx::ref("a.bias", bias, bias_gradient));
    distx::DataParallel<> training(comm, list, distx::AdamW{});
    try {
      distx::checkpoint::load(checkpoint, training);
      FAIL("it has loaded another model");
    } catch (const distx::CheckpointError& error) {
      says(error.message(), "'a.weight' is F32 [7, 13] in the checkpoint and F64 [7] in the training");
      says(error.message(), "'a.bias' is F32 [7] in the checkpoint and F32 [8] in the training");
      says(error.message(), "'mean' is not in the training");
    }
  });
}

TEST_CASE("saving and loading during a step is an InvalidState on every rank") {
  const Folder folder;
  save_two(folder);
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    std::vector<float> weight(7), gradient(7);
    const std::vector parameters{distx::ref("weight", weight, gradient)};
    distx::DataParallel<> training(comm, parameters, distx::AdamW{});
    training.ready(weight);
    training.reduce_gradients();
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), training, {.step = 7}), distx::InvalidState);
  });
}
