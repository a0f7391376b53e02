// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/parallel/hooks/power_sgd.hpp>
#include <distx/training.hpp>

#include <cstdlib>
#include <random>
#include <set>
#include <sstream>

#include "model.hpp"

using model::Folder;
using model::on_ranks;
using model::Trainer;

namespace {

constexpr std::uint64_t last = 45;  // in the second epoch
constexpr int ranks = 3;

/// Trains until step `last`, on data that depends on the position in the epoch and on a generator of each rank.
/// @param resume  the step whose checkpoint is loaded; 0: from the beginning
/// @param save_at  the steps that are saved
/// @return the weights_hash, which includes the moving average
std::uint32_t train(const Folder& folder, int stage, std::uint64_t resume, const std::set<std::uint64_t>& save_at) {
  std::uint32_t hash = 0;
  on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = stage, .clip_norm = 3}, resume == 0 ? 0 : 3);
    auto average = trainer.training().ema(0.9);
    const distx::DistributedSampler sampler(97, comm, {.seed = 3});
    std::mt19937_64 generator(static_cast<std::uint64_t>(comm.rank()));
    std::uint64_t step = 0, epoch = 0;
    std::size_t batch = 0;
    if (resume > 0) {
      char name[32];
      std::snprintf(name, sizeof name, "step-%012d", static_cast<int>(resume));
      const auto loaded = distx::checkpoint::load(folder.path() / name, trainer.training());
      step = loaded.step;
      epoch = std::stoull(loaded.notes.at("epoch"));
      batch = std::stoull(loaded.notes.at("batch"));
      std::istringstream(loaded.rank_notes[static_cast<std::size_t>(comm.rank())].at("random")) >> generator;
    }
    distx::checkpoint::PendingSave<> pending;
    while (step < last) {
      trainer.step(1000 * sampler.epoch(epoch)[batch] + generator() % 1000);
      average.update();
      ++step;
      if (++batch == sampler.batches()) {
        ++epoch;
        batch = 0;
      }
      if (!save_at.contains(step)) continue;
      std::ostringstream random;
      random << generator;
      pending.finish();
      pending =
          distx::checkpoint::save_async(folder.path(), trainer.training(),
                                        {.step = step,
                                         .notes = {{"epoch", std::to_string(epoch)}, {"batch", std::to_string(batch)}},
                                         .rank_notes = {{"random", random.str()}}});
    }
    pending.finish();
    std::vector<std::byte> weights;
    const auto add = [&](const std::string&, distx::Span<const distx::AnyElement> values) {
      weights.insert(weights.end(), values.bytes(), values.bytes() + values.size_bytes());
    };
    trainer.training().for_each_full_weight(add);
    const auto averaged = average.swap_in();
    trainer.training().for_each_full_weight(add);
    if (comm.rank() == 0) hash = distx::checkpoint::detail::checksum(weights);
  });
  return hash;
}

}  // namespace

TEST_CASE("a run that is resumed at a random step ends with the weights of one that never stopped, at every stage") {
  const char* const given = std::getenv("DISTX_TEST_SEED");
  const auto seed = given == nullptr ? std::random_device()() : static_cast<unsigned>(std::atoi(given));
  std::mt19937 random(seed);
  for (int stage = 0; stage < 4; ++stage) {
    std::set<std::uint64_t> steps;
    while (steps.size() < 10) steps.insert(1 + random() % (last - 1));
    std::string text = "DISTX_TEST_SEED=" + std::to_string(seed) + ", stage " + std::to_string(stage) + ", steps";
    for (const auto step : steps) text += " " + std::to_string(step);
    MESSAGE(text);
    const Folder folder;
    const auto expected = train(folder, stage, 0, steps);
    CHECK(train(folder, stage, 0, {}) == expected);
    for (const auto step : steps) {
      CAPTURE(step);
      CHECK(train(folder, stage, step, {}) == expected);
    }
  }
}

TEST_CASE("loading sets the state of a GradientHook to zero: a training continues as a new one does") {
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Compress<distx::hooks::PowerSGD<1>>>;
  for (int stage = 0; stage < 4; ++stage)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      static const Folder folder;
      Trainer<Training> same(comm, distx::AdamW{}, {.stage = stage}), fresh(comm, distx::AdamW{}, {.stage = stage});
      const auto hash_after = [&](Trainer<Training>& trainer) {
        for (std::uint64_t step = 2; step < 4; ++step) trainer.step(step);
        std::vector<std::byte> weights;
        trainer.training().for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
          weights.insert(weights.end(), values.bytes(), values.bytes() + values.size_bytes());
        });
        return distx::checkpoint::detail::checksum(weights);
      };
      for (std::uint64_t step = 0; step < 2; ++step) same.step(step);
      const auto path = distx::checkpoint::save(folder.path() / std::to_string(stage), same.training(), {.step = 2});
      const auto uninterrupted = hash_after(same);
      distx::checkpoint::load(path, same.training());
      distx::checkpoint::load(path, fresh.training());
      const auto loaded = hash_after(same);
      CHECK(loaded == hash_after(fresh));
      CHECK(loaded != uninterrupted);
    });
}
