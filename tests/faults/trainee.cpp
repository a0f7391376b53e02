// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains until something ends it, and says what: `trainee shm|mpi STAGE DEADLINE_IN_SECONDS [stay|inside]`.
// With `stay` it does not exit, because mpirun ends all ranks when one exits without MPI_Finalize. With `inside` rank 1
// stops itself while it reads the other ranks' memory. See attack.py.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

namespace {

int rank = -1;

/// Writes a line in one piece, because other ranks write too.
void say(const std::string& words) {
  const std::string line = "rank " + std::to_string(rank) + " " + words + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

/// The greater of two; stops this process once if asked to.
struct GreaterOrStop {
  static constexpr bool commutative = true;
  static inline bool stops = false;
  float operator()(float a, float b) const {
    if (std::exchange(stops, false)) std::raise(SIGSTOP);
    return a < b ? b : a;
  }
};
bool stops_inside = false;

template <int Stage, class C>
[[noreturn]] void train(C& comm) {
  constexpr std::size_t width = 1000;
  std::vector<distx::Parameter<float>> parameters;
  for (const char* name : {"first", "second", "third"}) parameters.emplace_back(name, width * width / 4);
  distx::DataParallel<distx::ZeRO<Stage>> training(comm, parameters, distx::AdamW{},
                                                   {.bucket_bytes = std::size_t{1} << 18});
  std::vector<float> large(std::size_t{1} << 20, 1.0f);
  for (int step = 0;; ++step) {
    for (auto& parameter : parameters) {
      const auto weights = training.unshard(parameter);
      const auto value = training.value(parameter);
      const auto gradient = training.gradient(parameter);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient.data()[i] = value.data()[i] * static_cast<float>(rank + 1);
      training.ready(parameter);
    }
    training.step({.learning_rate = 1e-4});
    float loss = 1;
    distx::all_reduce(comm, loss, distx::sum);
    GreaterOrStop::stops = stops_inside && rank == 1 && step == 5;
    distx::all_reduce(comm, large, GreaterOrStop{});
    distx::broadcast(comm, large, step % comm.size());
    if (step == 3) say("trains");
  }
}

template <class C>
[[noreturn]] void train_at(C&& comm, int stage) {
  if (stage == 0) train<0>(comm);
  if (stage == 1) train<1>(comm);
  if (stage == 2) train<2>(comm);
  train<3>(comm);
}

[[noreturn]] void run(int argc, char** argv) {
  const std::string_view backend = argv[1];
  const int stage = std::atoi(argv[2]);
  const std::chrono::seconds deadline(std::atoi(argv[3]));
  stops_inside = argc > 4 && std::string_view(argv[4]) == "inside";
  auto connector = distx::connect(argc, argv);
  rank = connector.rank();
  say("is process " + std::to_string(getpid()));
  if (backend == "shm") train_at(distx::ShmCommunicator(connector, deadline), stage);
  train_at(distx::MpiCommunicator(connector, {.deadline = deadline}), stage);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const distx::TimeoutError& error) {
    say(std::string("ended by TimeoutError: ") + error.what());
  } catch (const distx::RankFailure& error) {
    say(std::string("ended by RankFailure: ") + error.what());
  } catch (const distx::RevokedError& error) {
    say(std::string("ended by RevokedError: ") + error.what());
  } catch (const std::exception& error) {
    say(std::string("ended by something else: ") + error.what());
  }
  if (argc > 4 && std::string_view(argv[4]) == "stay") pause();
  return 3;
}
