// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <distx/optim/sgd.hpp>

#include <fstream>
#include <functional>
#include <iterator>

#include "allocations.hpp"
#include "file_content.hpp"
#include "model.hpp"

// Damaged checkpoints: opened on one rank as `load` opens them, which takes microseconds.
namespace {

namespace fs = std::filesystem;
namespace detail = distx::checkpoint::detail;
using model::Folder;
using model::on_ranks;
using model::Trainer;
using test::content_of;
using test::set_content;

/// The bytes of the largest file in a folder, and at least those of a page.
std::size_t largest_file(const fs::path& folder) {
  std::size_t bytes = 4096;
  for (const auto& entry : fs::directory_iterator(folder))
    bytes = std::max(bytes, static_cast<std::size_t>(entry.file_size()));
  return bytes;
}

/// Returns the message with which a checkpoint is rejected; empty if it is whole. Nothing is allocated that is larger
/// than the largest file.
std::string problem(const fs::path& checkpoint) {
  struct CheckAllocations {
    explicit CheckAllocations(const fs::path& folder) : limit(largest_file(folder)) { test::largest_allocation = 0; }
    ~CheckAllocations() { CHECK(test::largest_allocation <= limit); }
    std::size_t limit;
  } const check(checkpoint);
  try {
    const auto manifest = detail::read_manifest(checkpoint);
    const detail::ShardIndex index(checkpoint, manifest);
    index.verify(0, 1);
    for (const auto& [name, tensor] : manifest.tensors) {
      const auto* const type = detail::find_file_type(tensor.type);
      const auto elements = detail::elements_of(tensor.shape);
      if (type == nullptr || !elements) continue;  // differs from every training
      static_cast<void>(index.runs_of(name, tensor.shape, type->bits / 8, 0, *elements));
    }
  } catch (const distx::CheckpointError& error) {
    return error.message();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two small checkpoints of 2 ranks, whose shares are cut inside a row.
struct Checkpoints {
  Checkpoints() {
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", 45, distx::ParameterOptions{.rows = 5});
      parameters.emplace_back("bias", 3);
      distx::DataParallel<distx::ZeRO<2>> training(comm, parameters, distx::SGD{.momentum = 0.9f});
      for (std::uint64_t step = 1; step <= 2; ++step) {
        for (const auto& parameter : parameters) {
          for (auto& gradient : training.gradient(parameter)) gradient = static_cast<float>(step);
          training.ready(parameter);
        }
        training.step({.learning_rate = 0.1});
        distx::checkpoint::save(folder.path(), training,
                                {.step = step, .notes = {{"epoch", "1"}}, .rank_notes = {{"random", "2"}}});
      }
    });
    REQUIRE(problem(newer()) == "");
    for (const auto& entry : fs::directory_iterator(newer())) files.push_back(entry.path());
    REQUIRE(files.size() >= 4);
  }
  [[nodiscard]] fs::path newer() const { return folder.path() / "step-000000000002"; }
  [[nodiscard]] fs::path older() const { return folder.path() / "step-000000000001"; }
  [[nodiscard]] fs::path manifest() const { return newer() / "checkpoint.json"; }
  /// Damages each file in turn; `damage` calls its argument with damaged contents.
  void each_damage(const std::function<void(const fs::path&, const std::string&,
                                            const std::function<void(const std::string&)>&)>& damage) const {
    for (const auto& path : files) {
      const std::string good = content_of(path);
      std::size_t missed = 0, unnamed = 0, all = 0;
      damage(path, good, [&](const std::string& bad) {
        set_content(path, bad);
        const auto message = problem(newer());
        ++all;
        missed += message.empty() ? 1 : 0;
        unnamed += contains(message, path.filename().string()) ? 0 : 1;
      });
      CAPTURE(path);
      CHECK(all > 0);
      CHECK(missed == 0);
      CHECK(unnamed == 0);
      set_content(path, good);
    }
    CHECK(problem(newer()) == "");
    CHECK(problem(older()) == "");
  }

  Folder folder;
  std::vector<fs::path> files;
};

std::size_t header_size(const fs::path& path, const std::string& content) {
  if (path.extension() != ".safetensors") return content.size();
  return distx::checkpoint::SafetensorsFile(path).header_bytes().size();
}

}  // namespace

TEST_CASE("a checkpoint with any byte of a header or of the manifest flipped is rejected by the name of the file") {
  const Checkpoints checkpoints;
  checkpoints.each_damage([](const fs::path& path, const std::string& good, const auto& try_content) {
    const std::size_t header = header_size(path, good);
    for (std::size_t i = 0; i < header; ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      try_content(bad);
    }
  });
}

TEST_CASE("a checkpoint with a file truncated or extended anywhere is rejected by the name of the file") {
  const Checkpoints checkpoints;
  checkpoints.each_damage([](const fs::path&, const std::string& good, const auto& try_content) {
    for (std::size_t size = 0; size < good.size(); ++size) try_content(good.substr(0, size));
    try_content(good + "x");
  });
}

TEST_CASE("headers that claim any length, and shapes and offsets of any size, are rejected by the name of the file") {
  const Checkpoints checkpoints;
  checkpoints.each_damage([](const fs::path& path, const std::string& good, const auto& try_content) {
    if (path.extension() != ".safetensors") return try_content("");
    const std::size_t header = header_size(path, good);
    for (int bit = 0; bit < 64; ++bit) {
      const std::uint64_t length = std::uint64_t{1} << bit;
      std::string bad = good;
      std::memcpy(bad.data(), &length, sizeof length);
      try_content(bad);
    }
    for (const char* const number : {"4611686018427387904", "18446744073709551615", "1000000000000"})
      for (std::size_t i = 8; i < header; ++i) {
        if (std::string_view("[,").find(good[i]) == std::string_view::npos || !std::isdigit(good[i + 1])) continue;
        std::string bad = good.substr(0, i + 1) + number + good.substr(good.find_first_not_of("0123456789", i + 1));
        const std::uint64_t length = header - 8 + bad.size() - good.size();
        std::memcpy(bad.data(), &length, sizeof length);
        try_content(bad);
      }
  });
}

TEST_CASE("a flipped bit in any byte of the data is an error that names the tensor and the file") {
  const Checkpoints checkpoints;
  std::size_t flipped = 0;
  for (const auto& path : checkpoints.files) {
    if (path.extension() != ".safetensors") continue;
    const std::string good = content_of(path);
    const auto header = header_size(path, good);
    const auto tensors = distx::checkpoint::SafetensorsFile(path).tensors();
    std::size_t wrong = 0;
    for (const auto& tensor : tensors)
      for (auto at = header + tensor.begin; at < header + tensor.end; ++at, ++flipped) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
        set_content(path, bad);
        const auto message = problem(checkpoints.newer());
        wrong += contains(message, "tensor '" + tensor.name + "'") && contains(message, path.string()) ? 0 : 1;
      }
    CAPTURE(path);
    CHECK(wrong == 0);
    set_content(path, good);
  }
  CHECK(flipped == sizeof(float) * (2 * 48 + 2));  // weights, momentum, numbers of updates
  CHECK(problem(checkpoints.newer()) == "");
}

TEST_CASE("a manifest with a number out of its range, of another type or without UTF-8 is rejected by its name") {
  const Checkpoints checkpoints;
  const auto path = checkpoints.manifest();
  const auto good = nlohmann::json::parse(content_of(path));
  const auto message = [&](nlohmann::json json) {
    json.erase("crc32");
    json["crc32"] = detail::checksum(json.dump());
    set_content(path, json.dump());
    return problem(checkpoints.newer());
  };
  CHECK(message(good) == "");
  const nlohmann::json bad_numbers[] = {-1, 1.5, 1e300, "1", nullptr, true};
  for (const auto& bad : bad_numbers) {
    CAPTURE(bad.dump());
    for (const char* const pointer : {"/step", "/ranks", "/stage", "/finite_steps", "/skipped_steps", "/updates/bias",
                                      "/tensors/bias/shape/0", "/files/0/bytes", "/files/0/header_crc32"}) {
      CAPTURE(pointer);
      auto json = good;
      json[nlohmann::json::json_pointer(pointer)] = bad;
      CHECK(contains(message(json), "is not the JSON of a manifest"));
    }
  }
  for (const char* const key : {"notes", "updates", "tensors", "files", "loss_scale", "rank_notes"})
    for (const auto& bad : {nlohmann::json("text"), nlohmann::json(nullptr)}) {
      CAPTURE(key);
      auto json = good;
      json[key] = bad;
      CHECK(contains(message(json), "checkpoint.json"));
    }
  auto older = good;
  older.erase("rank_notes");
  CHECK(message(older) == "");
  std::string text = good.dump();
  text.insert(text.find("bias"), "\xff");
  set_content(path, text);
  CHECK(contains(problem(checkpoints.newer()), "is not the JSON of a manifest"));
  CHECK(problem(checkpoints.older()) == "");
}

TEST_CASE(
    "sharding information that is not an object, deep, negative or overflowing is rejected by the name of the file") {
  const Folder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::array<float, 4> values{};
  const auto message = [&](const std::string& sharding) {
    fs::remove(path);
    distx::checkpoint::write_safetensors(path, {{"a", "F32", {2, 2}, std::as_bytes(std::span(values))}},
                                         {{detail::sharding_key, sharding}});
    try {
      detail::Manifest manifest;
      const detail::ShardIndex index(path, {path}, manifest);
      return std::string();
    } catch (const distx::CheckpointError& error) {
      CHECK(contains(error.message(), path.string()));
      return error.message();
    }
  };
  const auto at = [&](const std::string& offsets) { return message(R"({"a":{"saved_offsets":)" + offsets + "}}"); };
  CHECK(at("[4, 7]") == "");
  CHECK(contains(message("[]"), "not a JSON object"));
  CHECK(contains(message("{"), "not a JSON object"));
  CHECK(contains(message(std::string(100'000, '[')), "nested too deeply"));
  CHECK(contains(at(std::string(100'000, '[')), "nested too deeply"));
  for (const char* const bad :
       {"[-1, 0]", "[0.5, 0]", "[1e300, 0]", "[18446744073709551616, 0]", "3", "[[0], 0]", "{}"}) {
    CAPTURE(bad);
    CHECK(contains(at(bad), "does not say where tensor 'a' is"));
  }
  for (const char* const bad : {"[0]", "[0, 0, 0]", "[18446744073709551615, 0]"}) {
    CAPTURE(bad);
    CHECK(contains(at(bad), "tensor 'a'"));
  }
  CHECK(contains(at("[9223372036854775808, 4294967296]"), "too many elements"));
}

TEST_CASE("consolidate rejects a tensor with elements of less than a byte") {
  const Checkpoints checkpoints;
  const std::array<std::byte, 2> values{};
  const auto path = checkpoints.newer() / "small.safetensors";
  distx::checkpoint::write_safetensors(
      path, {{"a", "F4", {4}, values}},
      {{detail::sharding_key, R"({"a":{"saved_offsets":[0]}})"},
       {detail::checksums_key, R"({"a":)" + std::to_string(detail::checksum(values)) + "}"}});
  auto json = nlohmann::json::parse(content_of(checkpoints.manifest()));
  json.erase("crc32");
  json["tensors"] = {{"a", {{"dtype", "F4"}, {"shape", {4}}}}};
  json["files"] = {{{"name", "small.safetensors"},
                    {"bytes", fs::file_size(path)},
                    {"header_crc32", detail::checksum(distx::checkpoint::SafetensorsFile(path).header_bytes())}}};
  json["crc32"] = detail::checksum(json.dump());
  set_content(checkpoints.manifest(), json.dump());
  CHECK_THROWS_WITH_AS(distx::checkpoint::consolidate(checkpoints.newer(), checkpoints.folder.path() / "whole"),
                       doctest::Contains("describes tensor 'a' with an invalid type"), distx::CheckpointError);
  CHECK_FALSE(fs::exists(checkpoints.folder.path() / "whole"));
}

TEST_CASE("without permission, load and save are CheckpointErrors, and the older checkpoint loads") {
  const Checkpoints checkpoints;
  const auto allow = [](const fs::path& path, bool allowed) {
    fs::permissions(path, allowed ? fs::perms::all : fs::perms::none);
  };
  allow(checkpoints.folder.path(), true);
  const bool root = ::geteuid() == 0;  // whom no permission stops
  const auto as_user = [&](int ranks, auto&& f) {
    if (root) REQUIRE(::seteuid(65534) == 0);
    std::string messages[2];
    on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      try {
        f(comm);
      } catch (const distx::CheckpointError& error) {
        messages[comm.rank()] = error.message();
      }
    });
    if (root) REQUIRE(::seteuid(0) == 0);
    if (ranks == 2) CHECK(messages[0] == messages[1]);
    return messages[0];
  };
  const auto load = [&](const fs::path& path) {
    return as_user(1, [&](distx::ThreadCommunicator& comm) {
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", 45, distx::ParameterOptions{.rows = 5});
      parameters.emplace_back("bias", 3);
      distx::DataParallel<distx::ZeRO<2>> training(comm, parameters, distx::SGD{.momentum = 0.9f});
      distx::checkpoint::load(path, training);
    });
  };
  const auto latest = [&] {
    return as_user(1, [&](auto&) {
      const auto newest = distx::checkpoint::latest(checkpoints.folder.path());
      CHECK(newest == checkpoints.newer());
    });
  };
  allow(checkpoints.newer(), false);
  CHECK(contains(latest(), "checkpoint.json' (Permission denied)"));  // it is not passed over in silence
  CHECK(contains(load(checkpoints.newer()), "checkpoint.json' (Permission denied)"));
  CHECK(load(checkpoints.older()) == "");
  allow(checkpoints.newer(), true);
  allow(checkpoints.folder.path(), false);
  CHECK(contains(latest(), checkpoints.folder.path().string() + "' (Permission denied)"));
  allow(checkpoints.folder.path(), true);
  for (const auto& path : checkpoints.files) {
    allow(path, false);
    const auto message = load(checkpoints.newer());
    CHECK(contains(message, path.filename().string() + "' (Permission denied)"));
    allow(path, true);
  }
  CHECK(load(checkpoints.newer()) == "");
  fs::permissions(checkpoints.folder.path(), fs::perms(0555));
  const auto saved = as_user(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    distx::checkpoint::save(checkpoints.folder.path(), trainer.training(), {.step = 3});
  });
  CHECK(contains(saved, "step-000000000003."));
  CHECK(contains(saved, ".part' (Permission denied)"));
  CHECK(load(checkpoints.newer()) == "");
}
