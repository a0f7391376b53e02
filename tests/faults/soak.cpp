// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains again and again under random faults: `soak threads|shm|gloo|mpi SECONDS [SEED]`. Three ranks are threads of
// this process, processes that meet in a folder, or with `mpi` processes that mpirun has started. In each round they
// make a communicator and train; a round without a fault ends with the same weights on all ranks, and one with a fault
// may end with an error of distx. On threads, every second training continues on the surviving ranks. Resident
// memory, descriptors and threads must not grow.
#include <malloc.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>

#include <distx/comm/decorators/faulty.hpp>
#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/shm.hpp>
#ifdef SOAK_WITH_GLOO
#include <distx/gloo.hpp>
#endif
#ifdef SOAK_WITH_MPI
#include <distx/mpi.hpp>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using distx::Fault;

constexpr int ranks = 3;
constexpr std::uint64_t steps = 30;
constexpr std::chrono::seconds deadline(2);

[[noreturn]] void fail(const std::string& words) { throw std::logic_error(words); }

struct DifferentWeights : std::logic_error {
  using std::logic_error::logic_error;
};

/// Memory in KiB, descriptors and threads of a process.
struct Usage {
  long resident = 0, descriptors = 0, threads = 0;

  static Usage now() {
    ::malloc_trim(0);
    Usage usage;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) usage.resident = std::atol(line.c_str() + 6);
      if (line.starts_with("Threads:")) usage.threads = std::atol(line.c_str() + 8);
    }
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++usage.descriptors;
    return usage;
  }
};

/// Compares what a process holds with what it held after the first rounds.
class Growth {
 public:
  static constexpr int warm_up = 20;  // rounds

  /// @param kept  KiB that this round may keep
  void add(const Usage& usage, long kept = 0) {
    if (++rounds_ > warm_up) kept_ += kept;
    if (rounds_ <= warm_up) {
      before_.resident = std::max(before_.resident, usage.resident);
      before_.descriptors = std::max(before_.descriptors, usage.descriptors);
      before_.threads = std::max(before_.threads, usage.threads);
    }
    now_ = usage;
  }
  void check() const {
    const long slack = (8 << 10) + kept_;  // KiB
    const auto grown = [](const char* what, long from, long to) {
      fail(std::string(what) + " grew from " + std::to_string(from) + " to " + std::to_string(to));
    };
    if (now_.descriptors > before_.descriptors) grown("descriptors", before_.descriptors, now_.descriptors);
    if (now_.threads > before_.threads) grown("threads", before_.threads, now_.threads);
    if (now_.resident > before_.resident + slack) grown("resident memory in KiB", before_.resident, now_.resident);
  }
  [[nodiscard]] bool has_compared() const noexcept { return rounds_ > 2 * warm_up; }
  [[nodiscard]] std::string text() const {
    return std::to_string(rounds_) + " rounds; resident " + std::to_string(before_.resident) + " KiB after " +
           std::to_string(std::min(rounds_, warm_up)) + ", " + std::to_string(now_.resident) + " KiB after all; " +
           std::to_string(now_.descriptors) + " descriptors, " + std::to_string(now_.threads) + " threads";
  }

 private:
  int rounds_ = 0;
  long kept_ = 0;
  Usage before_{}, now_{};
};

/// What happens in one round; the same on every rank.
struct Plan {
  int stage;
  bool elastic;
  std::optional<Fault> fault;
  std::uint64_t seed;

  Plan(std::mt19937_64& random, bool may_continue) {
    const auto below = [&](std::uint64_t end) { return static_cast<std::uint64_t>(random() % end); };
    stage = static_cast<int>(below(4));
    elastic = may_continue && below(2) == 0;
    seed = random();
    const auto kind = below(elastic ? 2 : 4);
    const int rank = static_cast<int>(below(ranks));
    const auto call = below(200);
    if (kind == 1) fault = {.kind = Fault::Kind::error, .rank = rank, .first = call, .last = call};
    if (kind == 2) fault = {.kind = Fault::Kind::drop, .rank = rank, .first = call, .last = call};
    if (kind == 3) {
      stage = 0;  // where the ranks' weights can be compared
      fault = {
          .kind = Fault::Kind::corrupt, .call = distx::calls::CollectiveKind::all_reduce, .rank = rank, .first = call};
    }
  }
  [[nodiscard]] std::vector<Fault> faults() const {
    std::vector<Fault> all{{.kind = Fault::Kind::delay, .probability = 0.01, .duration = std::chrono::milliseconds(1)}};
    if (fault) all.push_back(*fault);
    return all;
  }
};

using Any = distx::AnyCommunicator<>;
using Comm = distx::Faulty<Any>;

std::vector<distx::Parameter<float>> new_model() {
  std::vector<distx::Parameter<float>> model;
  for (const char* name : {"first", "second", "third"})
    model.emplace_back(name, std::size_t{20011}, [](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13);
    });
  return model;
}
template <class Training>
void make_step(Training& training, std::vector<distx::Parameter<float>>& model) {
  for (auto& parameter : model) {
    const auto weights = training.unshard(parameter);
    const auto value = training.value(parameter);
    const auto gradient = training.gradient(parameter);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = value[i] - static_cast<float>(i % 7);
    training.ready(parameter);
  }
  training.step({.learning_rate = 1e-2});
}
/// Returns the squared distance from the target; checks that all ranks have the same weights.
template <class Training>
double distance(Training& training, Comm& comm) {
  double sum = 0;
  std::uint64_t hash = 14695981039346656037u;
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement, distx::Host> values) {
    const auto* begin = static_cast<const float*>(values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      sum += std::pow(begin[i] - static_cast<double>(i % 7), 2);
      hash = (hash ^ std::bit_cast<std::uint32_t>(begin[i])) * 1099511628211u;
    }
  });
  std::uint64_t least = hash, greatest = hash;
  distx::all_reduce(comm, least, distx::min);
  distx::all_reduce(comm, greatest, distx::max);
  if (least != greatest) throw DifferentWeights("the ranks ended with different weights");
  return sum;
}
template <class Training>
void train(Training& training, Comm& comm, std::vector<distx::Parameter<float>>& model, std::uint64_t first) {
  const double before = distance(training, comm);
  for (std::uint64_t step = first; step < steps; ++step) make_step(training, model);
  if (first < steps && !(distance(training, comm) < before)) fail("the training did not learn");
}

/// Trains once. @return the type of the error that ended it, or nothing
std::optional<std::string> round(const Plan& plan, Any inner) {
  Comm comm(std::move(inner), plan.faults(), plan.seed);
  auto model = new_model();
  try {
    distx::DataParallel<distx::ZeRO<distx::Dynamic>> training(
        comm, model, distx::AdamW{}, {.bucket_bytes = std::size_t{1} << 16, .stage = plan.stage, .guard_every = 1});
    train(training, comm, model, 0);
    distx::barrier(comm);
    return std::nullopt;
  } catch (const DifferentWeights&) {
    if (!plan.fault || plan.fault->kind != Fault::Kind::corrupt) throw;
    return "a corrupted comparison of the weights";
  } catch (const distx::MismatchError&) {
    return "MismatchError";
  } catch (const distx::TimeoutError&) {
    return "TimeoutError";
  } catch (const distx::Error&) {
    return "another error of distx";
  }
}
void check(const Plan& plan, const std::optional<std::string>& ended) {
  if (!plan.fault && ended) fail("a training without a fault ended by " + *ended);
}

/// Trains once, on fewer ranks after a loss; the lost rank throws its BackendError.
void elastic_round(const Plan& plan, distx::ThreadConnector& connector) {
  Comm comm(Any(distx::ThreadCommunicator(connector, deadline)), plan.faults(), plan.seed);
  auto model = new_model();
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate> training(
      comm, model, distx::AdamW{}, {.bucket_bytes = std::size_t{1} << 16, .stage = plan.stage});
  std::uint64_t from = 0;
  for (bool done = false, lost = false; !done;) try {
      if (lost) {
        connector = connector.shrink(deadline);
        comm = Comm(Any(distx::ThreadCommunicator(connector, deadline)), {}, 0);
        from = training.recover(comm);
        lost = false;
      }
      train(training, comm, model, from);
      distx::barrier(comm);
      done = true;
    } catch (const distx::Error& error) {
      if (!distx::is_rank_loss(error)) throw;
      lost = true;
    }
}

/// Runs rounds until the time is over. @return what the process holds
Growth soak_threads(std::chrono::seconds time, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Growth growth;
  std::map<std::string, int> endings;
  const auto end = Clock::now() + time;
  while (Clock::now() < end || !growth.has_compared()) {
    const Plan plan(random, true);
    if (plan.elastic) {
      try {
        distx::spawn(distx::threads(ranks), [&](distx::ThreadConnector& connector) { elastic_round(plan, connector); });
        ++endings["elastic, without a loss"];
      } catch (const distx::RankFailure& failure) {
        const bool expected = plan.fault && failure.failed_rank() == *plan.fault->rank &&
                              std::string_view(failure.what()).find("Faulty") != std::string_view::npos;
        if (!expected) throw;
        ++endings["elastic, after a loss"];
      }
    } else {
      std::mutex mutex;
      distx::spawn(distx::threads(ranks), [&](distx::ThreadConnector& connector) {
        const auto ended = round(plan, Any(distx::ThreadCommunicator(connector, deadline)));
        check(plan, ended);
        const std::lock_guard lock(mutex);
        ++endings[ended.value_or("no error")];
      });
    }
    growth.add(Usage::now());
  }
  for (const auto& [how, count] : endings) std::printf("%s: %d\n", how.c_str(), count);
  return growth;
}
/// @param kept  KiB that a round may keep if its communicator was revoked
/// @param make  returns a communicator of the connector's ranks
template <class Connector, class Make>
Growth soak_processes(Connector& connector, std::chrono::seconds time, std::uint64_t seed, long kept, Make&& make) {
  std::mt19937_64 random(seed);
  Growth growth;
  std::map<std::string, int> endings;
  const auto end = Clock::now() + time;
  while (distx::broadcast_value(connector, Clock::now() < end || !growth.has_compared(), 0)) {
    const Plan plan(random, false);
    const auto ended = round(plan, make());
    check(plan, ended);
    ++endings[ended.value_or("no error")];
    connector.barrier();
    growth.add(Usage::now(), ended ? kept : 0);
  }
  if (connector.rank() == 0)
    for (const auto& [how, count] : endings) std::printf("rank 0, %s: %d\n", how.c_str(), count);
  std::printf("rank %d: %s\n", connector.rank(), growth.text().c_str());
  return growth;
}

}  // namespace

int main(int argc, char** argv) try {
  ::mallopt(M_ARENA_MAX, 1);  // malloc_trim releases the last free block of the main arena only
  if (argc < 3) fail("usage: soak threads|shm|gloo|mpi SECONDS [SEED]");
  const std::string_view backend = argv[1];
  const std::chrono::seconds time(std::atoi(argv[2]));
  const std::uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  if (backend == "threads") {
    const Growth growth = soak_threads(time, seed);
    std::printf("%s\n", growth.text().c_str());
    growth.check();
#ifdef SOAK_WITH_MPI
  } else if (backend == "mpi") {
    distx::MpiConnector connector(argc, argv);
    if (connector.size() != ranks) fail("start " + std::to_string(ranks) + " ranks by mpirun");
    soak_processes(connector, time, seed, 100,
                   [&] {  // MPI's communicators are not freed then
                     return Any(distx::MpiCommunicator(connector, {.deadline = deadline}));
                   })
        .check();
#endif
  } else {
    distx::spawn_processes(ranks, [&](distx::FileConnector& connector) {
      soak_processes(connector, time, seed, 0, [&]() -> Any {
        if (backend == "shm") return Any(distx::ShmCommunicator(connector, deadline));
#ifdef SOAK_WITH_GLOO
        if (backend == "gloo") return Any(distx::GlooCommunicator(connector, {.deadline = deadline}));
#endif
        fail("unknown backend " + std::string(backend));
      }).check();
    });
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "soak: %s\n", error.what());
  return 1;
}
