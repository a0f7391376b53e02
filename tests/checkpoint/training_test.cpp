// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include "model.hpp"

using model::Any;
using model::Folder;
using model::on_ranks;
using model::Signs;
using model::Trainer;
using model::WholeState;

namespace {

/// Trains some steps, saves, and returns the state that was saved.
template <class Training = Any, class T = float, class Optimizer>
void save(const Folder& folder, int ranks, const Optimizer& optimizer, const distx::DataParallelOptions& options,
          WholeState& saved) {
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<Training, T> trainer(comm, optimizer, options);
    for (std::uint64_t step = 0; step < 3; ++step) trainer.step(step);
    saved.add(trainer.training().state());
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3, .notes = {{"epoch", "7"}}});
  });
}
template <class Training = Any, class T = float, class Optimizer>
void load(const Folder& folder, int ranks, const Optimizer& optimizer, const distx::DataParallelOptions& options,
          WholeState& loaded) {
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<Training, T> trainer(comm, optimizer, options, 2);
    const auto checkpoint = distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training());
    loaded.add(trainer.training().state());
    if (comm.rank() == 0) {
      CHECK(checkpoint.step == 3);
      CHECK(checkpoint.notes.at("epoch") == "7");
    }
  });
}

/// Compares a training that never stopped with one that was saved after 2 of 4 steps and loaded.
template <class Training = Any, class T = float, class Optimizer>
bool resumes(int ranks, const Optimizer& optimizer, const distx::DataParallelOptions& options) {
  const Folder folder;
  WholeState uninterrupted, resumed;
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    {
      Trainer<Training, T> trainer(comm, optimizer, options);
      for (std::uint64_t step = 0; step < 4; ++step) {
        if (step == 2) distx::checkpoint::save(folder.path(), trainer.training(), {.step = step});
        trainer.step(step);
      }
      uninterrupted.add(trainer.training().state());
    }
    Trainer<Training, T> trainer(comm, optimizer, options, 2);
    trainer.step(17);
    auto step = distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training()).step;
    for (; step < 4; ++step) trainer.step(step);
    resumed.add(trainer.training().state());
  });
  return uninterrupted == resumed;
}

}  // namespace

TEST_CASE_TEMPLATE("a resumed training has the bits of one that never stopped, at every stage", Optimizer, distx::AdamW,
                   Signs, distx::LAMB, distx::Mixed<distx::Muon, distx::AdamW>) {
  for (const int ranks : {1, 2, 3, 4})
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      CHECK(resumes(ranks, Optimizer{}, {.bucket_bytes = 1000, .stage = stage, .clip_norm = 5}));
    }
}

TEST_CASE("a consolidated file has all weights whole, and the optimizer's arrays if they are asked for") {
  const Folder folder;
  std::map<std::string, std::vector<std::byte>> weights;
  on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    trainer.step(1);
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    trainer.training().for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> values) {
      if (comm.rank() == 0) weights[name].assign(values.bytes(), values.bytes() + values.size_bytes());
    });
  });
  const auto checkpoint = *distx::checkpoint::latest(folder.path());
  distx::checkpoint::consolidate(checkpoint, folder.path() / "model.safetensors");
  const distx::checkpoint::SafetensorsFile file(folder.path() / "model.safetensors");
  CHECK(file.tensors().size() == weights.size() + 1);
  for (const auto& [name, bytes] : weights) {
    CAPTURE(name);
    const auto* tensor = file.find(name);
    REQUIRE(tensor != nullptr);
    const auto found = file.bytes(*tensor);
    CHECK(std::equal(found.begin(), found.end(), bytes.begin(), bytes.end()));
  }
  CHECK(file.find("a.weight")->shape == std::vector<std::uint64_t>{7, 13});
  CHECK_THROWS_AS(distx::checkpoint::consolidate(checkpoint, folder.path() / "model.safetensors"),
                  distx::CheckpointError);
  distx::checkpoint::consolidate(checkpoint, folder.path() / "all.safetensors",
                                 distx::checkpoint::Consolidated::everything);
  CHECK(distx::checkpoint::SafetensorsFile(folder.path() / "all.safetensors").tensors().size() > file.tensors().size());
}

TEST_CASE("master weights, loss scale and Hybrid's shards are saved and loaded") {
  using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<distx::float16>>;
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    CHECK(resumes<Half, distx::float16>(2, distx::AdamW{}, {.stage = stage}));
    const Folder folder;
    WholeState saved, loaded;
    save<Half, distx::float16>(folder, 3, Signs{}, {.stage = stage}, saved);
    load<Half, distx::float16>(folder, 2, Signs{}, {.stage = 3 - stage, .loss_scale = 4.0}, loaded);
    CHECK(saved == loaded);
  }
  using Hybrid = distx::DataParallel<distx::ZeRO<3>, distx::Hybrid>;
  const Folder folder;
  WholeState saved, loaded;
  save<Hybrid>(folder, 4, distx::AdamW{}, {.group_ranks = 2}, saved);
  load(folder, 3, distx::AdamW{}, {.stage = 1}, loaded);
  CHECK(saved == loaded);
}
