// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <set>
#include <thread>

#include <distx/comm/point_to_point.hpp>

#include "file_content.hpp"
#include "model.hpp"

// The directory of checkpoints: several jobs, links, foreign files, and what interrupted saves leave.
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using distx::checkpoint::latest;
using distx::checkpoint::save;
using distx::checkpoint::save_async;
using distx::checkpoint::SaveOptions;
using model::Folder;
using model::on_ranks;
using model::Trainer;
using test::content_of;
using test::set_content;

fs::path step_folder(const fs::path& directory, std::uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%012d", static_cast<int>(step));
  return directory / name;
}
/// The names in a folder.
std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}
/// The only entry of a directory whose name ends with this.
fs::path only_one(const fs::path& directory, const char* ending) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!entry.path().filename().string().ends_with(ending)) continue;
    CHECK(found.empty());
    found = entry.path();
  }
  CHECK_FALSE(found.empty());
  return found;
}
/// The only folder of a directory that is not published.
fs::path unpublished_in(const fs::path& directory) { return only_one(directory, ".part"); }
/// The only entry of a directory that was set aside.
fs::path replaced_in(const fs::path& directory) { return only_one(directory, ".replaced"); }
fs::path first_shard(const fs::path& folder) {
  for (const auto& name : names_in(folder))
    if (name.starts_with("shard-")) return folder / name;
  FAIL("it has no shard");
  return {};
}
/// Saves one step of a new training.
void save_step(const fs::path& directory, const SaveOptions& options, int ranks = 1) {
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    save(directory, trainer.training(), options);
  });
}
/// Saves one step of a new training of these ranks.
void save_new(const fs::path& directory, std::uint64_t step, distx::ThreadCommunicator& comm, bool async) {
  Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
  if (async)
    save_async(directory, trainer.training(), {.step = step}).finish();
  else
    save(directory, trainer.training(), {.step = step});
}
/// Loads a checkpoint on one rank, and returns its message; empty if it succeeds.
std::string load_failure(const fs::path& folder) {
  std::string message;
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 0}, 7);
    try {
      distx::checkpoint::load(folder, trainer.training());
    } catch (const distx::CheckpointError& error) {
      message = error.message();
    }
  });
  return message;
}
/// Returns the message with which `f` fails on every rank.
template <class F>
std::string failure(int ranks, F&& f) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    try {
      f(comm);
    } catch (const distx::CheckpointError& error) {
      messages[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  for (const auto& message : messages) CHECK(message == messages[0]);
  CHECK(messages[0] != "");
  return messages[0];
}
void expect_part(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("the second of two jobs that save a step has an error that names the first, whose checkpoint loads") {
  const Folder folder;
  const auto message = failure(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> first(comm, distx::AdamW{}, {.stage = 3}), second(comm, distx::AdamW{}, {.stage = 1}, 5);
    save(folder.path(), first.training(), {.step = 1});
    auto pending = save_async(folder.path(), second.training(), {.step = 2, .keep = 1});
    first.step(1);
    save(folder.path(), first.training(), {.step = 2, .keep = 3});
    distx::barrier(comm);
    pending.finish();
  });
  expect_part(message, "step-000000000002' is a checkpoint already, saved by process " + std::to_string(::getpid()));
  expect_part(message, " on host ");
  expect_part(message, " UTC");
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000000000001", "step-000000000002"});
  CHECK(load_failure(step_folder(folder.path(), 1)) == "");
  CHECK(load_failure(step_folder(folder.path(), 2)) == "");
}

TEST_CASE(
    "of jobs of different sizes that save the same steps at once, one saves each, and all checkpoints are whole") {
  for (const bool removing : {false, true}) {
    CAPTURE(removing);
    const Folder folder;
    constexpr std::uint64_t steps = 12;
    std::atomic<int> successes[steps + 1] = {};
    const auto job = [&](int ranks, bool async, std::size_t keep) {
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3}, static_cast<float>(ranks));
        for (std::uint64_t step = 1; step <= steps; ++step) try {
            const SaveOptions options{.step = step, .keep = removing ? keep : 0};
            if (async)
              save_async(folder.path(), trainer.training(), options).finish();
            else
              save(folder.path(), trainer.training(), options);
            if (comm.rank() == 0) ++successes[step];
          } catch (const distx::CheckpointError&) {
          }
      });
    };
    {
      const std::jthread one([&] { job(1, false, 4); }), two([&] { job(2, true, 3); }),
          three([&] { job(3, false, 0); });
    }
    // A step that has been removed may be saved again.
    for (std::uint64_t step = removing ? steps : 1; step <= steps; ++step) CHECK(successes[step].load() == 1);
    CHECK(latest(folder.path()) == step_folder(folder.path(), steps));
    for (const auto& name : names_in(folder.path())) {
      CAPTURE(name);
      CHECK(name.size() == std::string("step-000000000001").size());
      CHECK(load_failure(folder.path() / name) == "");
    }
  }
}

TEST_CASE("a step whose checkpoint has lost a file can be saved again, and the rest of it is set aside") {
  const Folder folder;
  save_step(folder.path(), {.step = 1}, 3);
  const auto path = step_folder(folder.path(), 1);
  auto names = names_in(path);
  fs::remove(first_shard(path));
  names.erase(names.find("checkpoint.json") == names.begin() ? std::next(names.begin()) : names.begin());
  save_step(folder.path(), {.step = 1, .keep = 1, .stale_after = 0s});
  CHECK(load_failure(path) == "");
  auto left = names_in(folder.path());
  CHECK(left.erase("step-000000000001") == 1);
  REQUIRE(left.size() == 1);
  CHECK(left.begin()->starts_with("step-000000000001."));
  CHECK(left.begin()->ends_with(".replaced"));
  CHECK(names_in(folder.path() / *left.begin()) == names);
}

TEST_CASE("an interrupted removal is completed by keep, and by a save of the step, which set no file of it aside") {
  for (const bool same_step : {false, true}) {
    CAPTURE(same_step);
    const Folder folder;
    for (const std::uint64_t step : {1u, 2u}) save_step(folder.path(), {.step = step}, 2);
    const auto path = step_folder(folder.path(), 1);
    fs::rename(path / "checkpoint.json", path / "checkpoint.json.part");
    fs::remove(first_shard(path));
    CHECK(latest(folder.path()) == step_folder(folder.path(), 2));
    CHECK(latest(folder.path(), 3) == step_folder(folder.path(), 2));
    CHECK(latest(folder.path(), 2) == std::nullopt);  // that of step 1 has no manifest
    save_step(folder.path(), same_step ? SaveOptions{.step = 1} : SaveOptions{.step = 3, .keep = 3});
    const auto newest = same_step ? "step-000000000001" : "step-000000000003";
    CHECK(names_in(folder.path()) == std::set<std::string>{"step-000000000002", newest});
    CHECK(load_failure(folder.path() / newest) == "");
  }
}

TEST_CASE("a manifest that cannot be read is not replaced") {
  const Folder folder;
  save_step(folder.path(), {.step = 1});
  const auto path = step_folder(folder.path(), 1) / "checkpoint.json";
  const auto good = content_of(path);
  set_content(path, good.substr(0, good.size() / 2));
  const auto names = names_in(path.parent_path());
  expect_part(failure(2,
                      [&](auto& comm) {
                        Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
                        save(folder.path(), trainer.training(), {.step = 1});
                      }),
              "has a manifest that cannot be read");
  CHECK(names_in(path.parent_path()) == names);
}

TEST_CASE("a checkpoint without the name of its process loads, stays, and is removed by keep") {
  const Folder folder;
  save_step(folder.path(), {.step = 1}, 2);
  const auto path = step_folder(folder.path(), 1) / "checkpoint.json";
  auto json = nlohmann::json::parse(content_of(path));
  CHECK(json.at("saved_by").get<std::string>().starts_with("process "));
  json.erase("saved_by");
  json.erase("crc32");
  json["crc32"] = distx::checkpoint::detail::checksum(json.dump());
  set_content(path, json.dump(1));
  CHECK(latest(folder.path()) == path.parent_path());
  CHECK(load_failure(path.parent_path()) == "");
  const auto again = failure(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    save(folder.path(), trainer.training(), {.step = 1});
  });
  expect_part(again, "is a checkpoint already; end one");
  save_step(folder.path(), {.step = 2, .keep = 1});
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000000000002"});
}

TEST_CASE("a save whose files are lost before it is published fails on every rank and removes nothing") {
  for (const bool shorter : {false, true}) {
    CAPTURE(shorter);
    const Folder folder;
    const auto message = failure(3, [&](distx::ThreadCommunicator& comm) {
      Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
      save(folder.path(), trainer.training(), {.step = 1});
      trainer.step(1);
      auto pending = save_async(folder.path(), trainer.training(), {.step = 2, .keep = 1});
      if (comm.rank() == 0 && !shorter) fs::rename(unpublished_in(folder.path()), folder.path() / "elsewhere");
      if (comm.rank() == 0 && shorter) {
        const auto path = unpublished_in(folder.path());
        while (names_in(path).size() < 3) std::this_thread::yield();
        const auto shard = first_shard(path);
        while (fs::file_size(shard) == 0) std::this_thread::yield();
        fs::remove(shard);
        set_content(shard, "short");
      }
      pending.finish();
    });
    expect_part(message, shorter ? "bytes of the file shard-" : "lacks the file shard-");
    CHECK(latest(folder.path()) == step_folder(folder.path(), 1));
    CHECK(load_failure(step_folder(folder.path(), 1)) == "");
  }
}

TEST_CASE("a rank that saves to another directory is a CheckpointError on every rank, and nothing is removed") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    const Folder folder;
    const auto message = failure(2, [&](distx::ThreadCommunicator& comm) {
      Trainer<> trainer(comm, distx::AdamW{}, {.stage = 2});
      save(folder.path() / "a", trainer.training(), {.step = 1});
      const auto path = folder.path() / (comm.rank() == 1 ? "b" : "a");
      if (comm.rank() == 1) fs::create_directories(step_folder(path, 2));
      distx::barrier(comm);
      if (async)
        save_async(path, trainer.training(), {.step = 2, .keep = 1}).finish();
      else
        save(path, trainer.training(), {.step = 2, .keep = 1});
    });
    expect_part(message, "rank 1: '");
    expect_part(message, "pass the same directory on every rank");
    CHECK(names_in(folder.path() / "a") == std::set<std::string>{"step-000000000001"});
    CHECK(load_failure(step_folder(folder.path() / "a", 1)) == "");
  }
}

TEST_CASE("keep removes unpublished folders of the same job and stale ones, and no save in progress") {
  const Folder folder;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> mine(comm, distx::AdamW{}, {.stage = 3}), other(comm, distx::AdamW{}, {.stage = 3});
    save(folder.path(), mine.training(), {.step = 1});
    auto pending = save_async(folder.path(), other.training(), {.step = 2});
    save(folder.path(), mine.training(), {.step = 3, .keep = 1});
    distx::barrier(comm);
    if (comm.rank() == 0) {
      CHECK(names_in(folder.path()).size() == 2);
      unpublished_in(folder.path());
    }
    distx::barrier(comm);
    CHECK(pending.finish() == step_folder(folder.path(), 2));

    pending = save_async(folder.path(), other.training(), {.step = 4});
    save(folder.path(), mine.training(), {.step = 5, .keep = 1, .stale_after = 0s});
    CHECK_THROWS_AS(pending.finish(), distx::CheckpointError);
    CHECK(latest(folder.path()) == step_folder(folder.path(), 5));

    pending = save_async(folder.path(), mine.training(), {.step = 6});
    save(folder.path(), mine.training(), {.step = 7, .keep = 1, .stale_after = 0s});
    CHECK(pending.finish() == step_folder(folder.path(), 6));

    { const auto dropped = save_async(folder.path(), mine.training(), {.step = 8}); }
    save(folder.path(), mine.training(), {.step = 9, .keep = 1});
  });
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000000000009"});
}

TEST_CASE("keep removes what another job has left once it is stale") {
  const Folder folder;
  const auto left = folder.path() / "step-000000000001.0123456789abcdef.0123456789abcdef.part";
  const auto shard = left / "shard-00001-model-00001-of-00001.safetensors";
  fs::create_directory(left);
  set_content(shard, "x");
  const auto age = [&](const fs::path& path, std::chrono::hours by) {
    fs::last_write_time(path, fs::last_write_time(left.parent_path()) - by);
  };
  age(left, 2h);
  save_step(folder.path(), {.step = 2, .keep = 1});
  CHECK(fs::exists(shard));  // which is new
  age(shard, 2h);
  save_step(folder.path(), {.step = 3});
  CHECK(fs::exists(shard));  // nothing is removed without keep
  save_step(folder.path(), {.step = 4, .keep = 1, .stale_after = 3h});
  CHECK(fs::exists(shard));
  save_step(folder.path(), {.step = 5, .keep = 1, .stale_after = std::chrono::seconds::max()});
  CHECK(fs::exists(shard));
  save_step(folder.path(), {.step = 6, .keep = 1});
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000000000006"});
}

TEST_CASE("keep counts whole checkpoints only") {
  const Folder folder;
  for (const std::uint64_t step : {1u, 2u, 3u}) save_step(folder.path(), {.step = step});
  fs::remove(first_shard(step_folder(folder.path(), 3)));
  save_step(folder.path(), {.step = 4, .keep = 2});
  CHECK(load_failure(step_folder(folder.path(), 2)) == "");
  CHECK_FALSE(fs::exists(step_folder(folder.path(), 1)));
}

TEST_CASE("a file or a link to a checkpoint in place of a step's folder is a CheckpointError, and stays as it is") {
  const Folder folder;
  const auto run = folder.path() / "run", other = folder.path() / "other";
  save_step(other, {.step = 1});
  fs::create_directory(run);
  fs::create_directory_symlink(step_folder(other, 1), step_folder(run, 1));
  set_content(step_folder(run, 2), "precious");
  const auto before = names_in(run);
  for (const std::uint64_t step : {1u, 2u})
    for (const bool async : {false, true}) {
      CAPTURE(step);
      CAPTURE(async);
      expect_part(failure(2, [&](distx::ThreadCommunicator& comm) { save_new(run, step, comm, async); }),
                  step == 1 ? "is a checkpoint already" : "is a file");
    }
  CHECK(names_in(run) == before);
  CHECK(content_of(step_folder(run, 2)) == "precious");
  CHECK(load_failure(step_folder(run, 1)) == "");
}

TEST_CASE("a link to no checkpoint in place of a step's folder is set aside, and its target stays as it is") {
  const Folder folder;
  const auto run = folder.path() / "run", models = folder.path() / "models", broken = folder.path() / "broken";
  fs::create_directory(run);
  fs::create_directory(models);
  set_content(models / "model.safetensors", "precious");
  set_content(models / "shard-00001-model-00001-of-00001.safetensors", "precious");
  save_step(folder.path() / "other", {.step = 1});
  fs::rename(step_folder(folder.path() / "other", 1), broken);
  fs::remove(first_shard(broken));
  const std::array<fs::path, 4> targets{models, "../models", folder.path() / "absent", broken};
  for (const auto& target : targets)
    for (const bool async : {false, true}) {
      CAPTURE(target.string());
      CAPTURE(async);
      fs::create_directory_symlink(target, step_folder(run, 1));
      const auto in_models = names_in(models), in_broken = names_in(broken);
      on_ranks(2, [&](distx::ThreadCommunicator& comm) { save_new(run, 1, comm, async); });
      CHECK(fs::symlink_status(step_folder(run, 1)).type() == fs::file_type::directory);
      CHECK(load_failure(step_folder(run, 1)) == "");
      const auto aside = replaced_in(run);
      CHECK(fs::read_symlink(aside) == target);
      CHECK(names_in(run).size() == 2);
      CHECK(names_in(models) == in_models);
      CHECK(names_in(broken) == in_broken);
      CHECK_FALSE(fs::exists(folder.path() / "absent"));
      fs::remove(aside);
      fs::remove_all(step_folder(run, 1));
    }
  CHECK(content_of(models / "shard-00001-model-00001-of-00001.safetensors") == "precious");
}

TEST_CASE("a link that appears while a step is saved is set aside, and its target stays as it is") {
  const Folder folder;
  fs::create_directory(folder.path() / "models");
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    auto pending = save_async(folder.path(), trainer.training(), {.step = 1});
    if (comm.rank() == 0) fs::create_directory_symlink(folder.path() / "models", step_folder(folder.path(), 1));
    pending.finish();
  });
  CHECK(names_in(folder.path() / "models").empty());
  CHECK(fs::read_symlink(replaced_in(folder.path())) == folder.path() / "models");
  CHECK(load_failure(step_folder(folder.path(), 1)) == "");
}

TEST_CASE("keep leaves links, what they lead to, and files that no save has written") {
  const Folder folder;
  const auto run = folder.path() / "run", archive = folder.path() / "archive";
  for (const std::uint64_t step : {1u, 2u, 3u}) save_step(run, {.step = step}, 2);
  fs::rename(step_folder(run, 1), archive);
  fs::create_directory_symlink(archive, step_folder(run, 1));
  const auto archived = names_in(archive);
  const auto unpublished = run / "step-000000000001.0123456789abcdef.0123456789abcdef.part";
  fs::create_directory_symlink(archive, unpublished);
  const auto mine = step_folder(run, 2);
  distx::checkpoint::consolidate(step_folder(run, 3), mine / "mine.safetensors");
  set_content(mine / "shard-of-mine.safetensors", "mine");
  set_content(folder.path() / "linked", "mine");
  fs::create_symlink(folder.path() / "linked", mine / "shard-00009-model-00001-of-00001.safetensors");
  fs::create_directory(run / "other");
  set_content(run / "other" / "checkpoint.json", "{}");
  save_step(run, {.step = 4, .keep = 1, .stale_after = 0s});
  CHECK(names_in(archive) == archived);
  CHECK(load_failure(step_folder(run, 1)) == "");
  CHECK(fs::is_symlink(unpublished));
  CHECK(names_in(mine) == std::set<std::string>{"mine.safetensors", "shard-of-mine.safetensors"});
  CHECK(content_of(folder.path() / "linked") == "mine");
  CHECK(fs::exists(run / "other" / "checkpoint.json"));
  CHECK_FALSE(fs::exists(step_folder(run, 3)));
  CHECK(latest(run) == step_folder(run, 4));
}

TEST_CASE("the directory of checkpoints may be a link, and so may the files that are read") {
  const Folder folder;
  const auto real = folder.path() / "real", link = folder.path() / "link";
  fs::create_directory(real);
  fs::create_directory_symlink(real, link);
  for (const std::uint64_t step : {1u, 2u, 3u}) save_step(link, {.step = step, .keep = 2}, 2);
  CHECK(names_in(real) == std::set<std::string>{"step-000000000002", "step-000000000003"});
  CHECK(latest(link) == step_folder(link, 3));
  const auto cache = folder.path() / "cache", blobs = folder.path() / "blobs";  // as Hugging Face stores files
  fs::create_directory(cache);
  fs::create_directory(blobs);
  for (const auto& name : names_in(step_folder(real, 3))) {
    fs::rename(step_folder(real, 3) / name, blobs / name);
    fs::create_symlink(blobs / name, cache / name);
  }
  CHECK(load_failure(cache) == "");
}

TEST_CASE("a save to a relative directory is finished where it was begun") {
  const Folder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    auto pending = save_async("run", trainer.training(), {.step = 1});
    fs::current_path(before);
    CHECK(pending.finish() == fs::path("run") / "step-000000000001");
  });
  fs::current_path(before);
  CHECK(load_failure(step_folder(folder.path() / "run", 1)) == "");
}

TEST_CASE("of processes that write a safetensors file of one name, one succeeds, and the file is whole") {
  const Folder folder;
  const auto path = folder.path() / "model.safetensors";
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> written = 0;
    std::atomic<float> last = 0;
    const auto write = [&](float value) {
      const std::vector<float> values(50'000, value);
      try {
        distx::checkpoint::write_safetensors(path, {{"w", "F32", {values.size()}, std::as_bytes(std::span(values))}});
        ++written;
        last = value;
      } catch (const distx::CheckpointError& error) {
        CHECK(error.code() == EEXIST);
      }
    };
    {
      const std::jthread one([&] { write(1); }), two([&] { write(2); });
    }
    CHECK(written == 1);
    const distx::checkpoint::SafetensorsFile file(path);
    const auto bytes = file.bytes(file.tensors()[0]);
    const std::vector<float> expected(50'000, last);
    CHECK(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(expected)).begin()));
    CHECK(names_in(folder.path()) == std::set<std::string>{"model.safetensors"});
    fs::remove(path);
  }
}

TEST_CASE("writing a file removes what killed processes have left of it, once it is stale") {
  const Folder folder;
  const std::string left[] = {"model.safetensors.0123456789abcdef.part", "model.safetensors.fedcba9876543210.part",
                              "model.safetensors.part", "other.safetensors.0123456789abcdef.part"};
  for (const auto& name : left) set_content(folder.path() / name, "x");
  for (const auto index : {0, 2, 3})
    fs::last_write_time(folder.path() / left[index], fs::last_write_time(folder.path()) - 2h);
  distx::checkpoint::write_safetensors(folder.path() / "model.safetensors", {});
  CHECK(names_in(folder.path()) == std::set<std::string>{"model.safetensors", left[1], left[2], left[3]});
}
