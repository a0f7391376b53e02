// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A training whose loader reads samples, some of which hang: the program that attack_loader.py runs.
//
//     reader BACKEND RANKS SAMPLE RANK MOMENT END MILLISECONDS
//
// Rank RANK hangs in the read of SAMPLE of its part of the data, by MOMENT: `sleep` (a system call), `lock` (a lock of
// the data set that is never released) or `pipe` (a read of a pipe to which nobody writes). END is what the rank does:
// `next` (waits for the batch), `break` (leaves the loop once a read hangs), `throw` or `exit` (processes only). Each
// rank prints how it
// ended; the loader's deadline is MILLISECONDS.
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>

namespace {

constexpr std::size_t samples = 64;

/// What readers own together.
struct DataSet {
  std::vector<std::size_t> values = std::vector<std::size_t>(samples, 1);
  std::mutex never_free;
  std::atomic<bool> hangs{false};
  int pipe_ends[2] = {-1, -1};

  DataSet() {
    never_free.lock();
    if (::pipe(pipe_ends) != 0) throw distx::Error("cannot make a pipe");
  }
  [[noreturn]] void hang(const std::string& moment) {
    hangs = true;
    char byte = 0;
    for (;;) {
      if (moment == "sleep") ::sleep(1000);
      if (moment == "lock") never_free.lock();
      if (moment == "pipe" && ::read(pipe_ends[0], &byte, 1) < 0) std::this_thread::yield();
    }
  }
};

template <class C>
void train(C& comm, std::size_t stuck, int stuck_rank, const std::string& moment, const std::string& end,
           std::chrono::milliseconds deadline) {
  const auto data = std::make_shared<DataSet>();
  const distx::DistributedSampler sampler(samples, comm, {.batch_size = 2, .shuffle = false});
  const int me = comm.rank();
  const auto mine = [ranks = comm.size()](std::size_t sample) { return sample / std::size_t(ranks); };
  const distx::DataLoader loader(sampler,
                                 [=](std::size_t sample) {
                                   if (me == stuck_rank && mine(sample) == stuck) data->hang(moment);
                                   return data->values.at(sample);
                                 },
                                 {.workers = 2, .deadline = deadline});
  auto epoch = loader.epoch(0);
  while (auto batch = epoch.next()) {
    std::size_t sum = batch->at(0) + batch->at(1);
    distx::all_reduce(comm, sum, distx::sum);
    if (sum != 2 * std::size_t(comm.size())) throw distx::Error("a wrong sum");
    if (me != stuck_rank || end == "next") continue;
    while (!data->hangs) std::this_thread::yield();
    if (end == "break") return;
    if (end == "throw") throw std::runtime_error("the user's error");
    if (end == "exit") {
      std::printf("rank %d exits\n", me);
      std::exit(0);
    }
  }
}

template <class C, class Connector>
void report(Connector& connector, char** argv) {
  const std::chrono::milliseconds deadline(std::atoi(argv[7]));
  const auto say = [&](const char* type, const std::string& words) {
    std::printf("rank %d ended by %s: %s\n", connector.rank(), type, words.c_str());
    std::fflush(stdout);
  };
  try {
    C comm(connector, std::chrono::seconds(20));
    train(comm, std::size_t(std::atoi(argv[3])), std::atoi(argv[4]), argv[5], argv[6], deadline);
    say("return", "");
  } catch (const distx::TimeoutError& error) {
    say("TimeoutError", error.what());
  } catch (const distx::RevokedError& error) {
    say("RevokedError", error.what());
  } catch (const distx::RankFailure& error) {
    say("RankFailure", error.what());
  } catch (const std::exception& error) {
    say("exception", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  if (std::string(argv[1]) == "threads")
    distx::spawn(distx::threads(std::atoi(argv[2])),
                 [&](distx::ThreadConnector& self) { report<distx::ThreadCommunicator>(self, argv); });
  else
    distx::spawn_processes(std::atoi(argv[2]),
                           [&](distx::FileConnector& self) { report<distx::ShmCommunicator>(self, argv); });
  std::printf("the end\n");
}
