// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "forked_process.hpp"
#include "model.hpp"

using distx::checkpoint::latest;
using distx::checkpoint::PendingSave;
using distx::checkpoint::save_async;
using model::Folder;
using model::on_ranks;
using model::Trainer;
using model::WholeState;

TEST_CASE("save_async saves the state of its step while the training continues") {
  for (const int ranks : {1, 3})
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      const Folder folder;
      WholeState saved, loaded;
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        Trainer<> trainer(comm, distx::AdamW{}, {.stage = stage});
        trainer.step(1);
        saved.add(trainer.training().state());
        auto pending = save_async(folder.path(), trainer.training(), {.step = 1, .notes = {{"epoch", "7"}}});
        CHECK(pending.pending());
        trainer.step(2);
        const auto finished = pending.finish();
        CHECK(finished == folder.path() / "step-000000000001");
        CHECK_FALSE(pending.pending());
        CHECK(pending.finish().empty());
      });
      on_ranks(2, [&](distx::ThreadCommunicator& comm) {
        Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3}, 2);
        const auto checkpoint = distx::checkpoint::load(*latest(folder.path()), trainer.training());
        CHECK(checkpoint.notes.at("epoch") == "7");
        loaded.add(trainer.training().state());
      });
      CHECK(saved == loaded);
    }
}

TEST_CASE("a save_async that is not finished leaves no checkpoint, and its step can be saved again") {
  const Folder folder;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    trainer.step(1);
    { const auto dropped = save_async(folder.path(), trainer.training(), {.step = 1}); }
    CHECK(latest(folder.path()) == std::nullopt);
    PendingSave<> pending;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      pending.finish();
      pending = save_async(folder.path(), trainer.training(), {.step = step, .keep = 2});
      trainer.step(step + 1);
    }
    CHECK(pending.finish() == folder.path() / "step-000000000003");
    CHECK_THROWS_AS(static_cast<void>(save_async(folder.path(), trainer.training(), {.step = 3})),
                    distx::CheckpointError);
  });
  CHECK(distx::checkpoint::detail::checkpoints_in(folder.path()).size() == 2);
}

TEST_CASE("a save finds learning rates that have differed since the last comparison") {
  for (const bool asynchronous : {false, true}) {
    const Folder folder;
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
      trainer.step(1);  // compared in the first step
      trainer.step(2, comm.rank() == 0 ? 0.5 : 0.25);
      const distx::checkpoint::SaveOptions options{.step = 2};
      CHECK_THROWS_WITH_AS(
          asynchronous ? static_cast<void>(save_async(folder.path(), trainer.training(), options))
                       : static_cast<void>(distx::checkpoint::save(folder.path(), trainer.training(), options)),
          doctest::Contains(".learning_rate of step 1 differs: rank 0 has 0.5; rank 1 has 0.25"), distx::MismatchError);
    });
    CHECK_FALSE(latest(folder.path()));
  }
}

TEST_CASE("a forked process neither finishes a save nor waits for it") {
  const Folder folder;
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    trainer.step(1);
    auto pending = save_async(folder.path(), trainer.training(), {.step = 1});
    const int wrong = test::in_forked_process([&] {
      try {
        auto taken = std::move(pending);
        taken.finish();
        return 1;
      } catch (const distx::InvalidState&) {  // and the destructor has returned
        return 0;
      }
    });
    CHECK(wrong == 0);
    CHECK(pending.finish() == folder.path() / "step-000000000001");
  });
  CHECK(latest(folder.path()));
}
