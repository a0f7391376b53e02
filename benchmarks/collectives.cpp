// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times every collective on every backend and on its peers, and checks every buffer that was timed.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <distx/distx.hpp>
#include <distx/mpi.hpp>
#include <distx/shm.hpp>

#include "common/run.hpp"
#include "peers/peers.hpp"
#include "timing/bounds.hpp"
#include "timing/distx_subject.hpp"
#include "timing/measure.hpp"
#include "timing/nccl_table.hpp"
#include "timing/report.hpp"

namespace {

using timing::Memory;
using timing::Operation;

struct Options {
  std::vector<std::string> operations{"all"}, backends, peers{"all"}, memories{"communicator", "user"};
  std::uint64_t least = 4, most = 256u << 20;
  unsigned factor = 4;
  bool in_place = true;
  int ranks = 0;
  timing::Effort effort;
  timing::NcclTable gpu;
  std::string json;
};

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// All that is timed, and the memory that it is timed on.
class Bench {
 public:
  explicit Bench(const Options& options, int rank) : options_(options), rank_(rank) {
    const std::size_t stretch = timing::most_calls_in_a_batch * 64;  // the calls of one batch lie side by side
    const std::size_t bytes = std::max<std::size_t>({options.most, timing::batch_bytes, stretch});
    elements_ = (bytes + page_bytes - 1) / page_bytes * page_bytes / sizeof(float);
    first_ = distx::Buffer<float>(elements_);
    second_ = distx::Buffer<float>(elements_);
  }

  [[nodiscard]] bool wants(std::string_view peer) const {
    return contains(options_.peers, "all") || contains(options_.peers, peer);
  }
  [[nodiscard]] Memory user() const { return {"user", first_.data(), second_.data()}; }

  template <class C>
  void add(const std::string& backend, C comm) {
    if (contains(options_.memories, "communicator")) {
      auto first = comm.template allocate<float>(elements_), second = comm.template allocate<float>(elements_);
      const Memory memory{"communicator", first.data(), second.data()};
      kept_.push_back(std::move(first));
      kept_.push_back(std::move(second));
      add(std::make_unique<timing::DistxSubject<C>>(backend, memory, comm.share()));
    }
    if (contains(options_.memories, "adopted")) {
      const auto first = adopted(comm), second = adopted(comm);
      add(std::make_unique<timing::DistxSubject<C>>(backend, Memory{"adopted", first, second}, comm.share()));
    }
    if (contains(options_.memories, "user"))
      add(std::make_unique<timing::DistxSubject<C>>(backend, user(), std::move(comm)));
  }
  void add(std::unique_ptr<timing::Subject> subject) { subjects_.push_back(std::move(subject)); }
  void add(std::unique_ptr<timing::Subject> subject, std::string_view name, const std::string& missing) {
    if (subject != nullptr)
      add(std::move(subject));
    else if (rank_ == 0)
      fmt::print("# without {}: {}\n", name, missing);
  }
  [[nodiscard]] const timing::Subjects& subjects() const { return subjects_; }

 private:
  static constexpr std::size_t page_bytes = 4096;
  struct Free {
    void operator()(float* memory) const noexcept { std::free(memory); }
  };

  /// Returns memory of the heap that the communicator has adopted.
  template <class C>
  float* adopted(C& comm) {
    auto* const memory = static_cast<float*>(std::aligned_alloc(page_bytes, elements_ * sizeof(float)));
    if (memory == nullptr) throw std::bad_alloc();
    pages_.emplace_back(memory);
    kept_.push_back(comm.adopt(distx::Span<float>(memory, elements_)));
    return memory;
  }

  const Options& options_;
  int rank_;
  std::size_t elements_ = 0;
  distx::Buffer<float> first_, second_;
  std::vector<std::unique_ptr<float[], Free>> pages_;
  std::vector<distx::CommunicatorMemory<float>> kept_;
  timing::Subjects subjects_;
};

void reject_backend(const std::string& name, const char* known) {
  throw std::runtime_error("--backend " + name + ": here there are " + known);
}

void fill(Bench& bench, distx::MpiConnector& connector, const Options& options) {
  for (const auto& name : options.backends.empty() ? std::vector<std::string>{"shm", "mpi"} : options.backends) {
    if (name == "shm")
      bench.add(name, distx::ShmCommunicator(connector));
    else if (name == "mpi")
      bench.add(name, distx::MpiCommunicator(connector));
    else
      reject_backend(name, "shm and mpi, and nccl alone; for threads give --ranks, and no mpirun");
  }
  std::string missing;
  if (bench.wants("mpi")) bench.add(peers::make_mpi(bench.user()));
  if (bench.wants("openmpi-ring")) {
    auto ring = peers::make_openmpi_ring(bench.user(), missing);
    bench.add(std::move(ring), "openmpi-ring", missing);
  }
  if (bench.wants("boost_mpi")) bench.add(peers::make_boost_mpi(bench.user()));
  if (bench.wants("gloo")) {
    auto gloo = peers::make_gloo(bench.user(), missing);
    bench.add(std::move(gloo), "gloo", missing);
  }
}

void fill(Bench& bench, distx::ThreadConnector& connector, const Options& options) {
  for (const auto& name : options.backends.empty() ? std::vector<std::string>{"threads", "shm"} : options.backends) {
    if (name == "shm")
      bench.add(name, distx::ShmCommunicator(connector));
    else if (name == "threads")
      bench.add(name, distx::ThreadCommunicator(connector));
    else
      reject_backend(name, "threads and shm; for mpi start with mpirun, and without --ranks");
  }
}

/// @return the number of wrong elements, of all ranks
template <class Gate, class C>
std::uint64_t run(C& connector, const Options& options) {
  const int rank = connector.rank(), ranks = connector.size();
  timing::Measurement measurement(Gate(connector), options.effort);
  Bench bench(options, rank);
  fill(bench, connector, options);
  if (bench.wants("memcpy")) bench.add(std::make_unique<timing::MemcpySubject>(bench.user()));
  if (bench.wants("limit")) bench.add(std::make_unique<timing::LimitSubject>(bench.user()));

  std::vector<timing::Row> rows;
  std::uint64_t errors = 0;
  for (const Operation operation : timing::operations) {
    if (!contains(options.operations, "all") && !contains(options.operations, timing::name_of(operation))) continue;
    const bool in_place = options.in_place && timing::has_in_place(operation);
    if (rank == 0) timing::print_head(operation, in_place, ranks);
    for (std::uint64_t bytes = options.least; bytes <= options.most; bytes *= options.factor) {
      const timing::Case c{operation, in_place, timing::whole_within(operation, bytes, ranks), rank, ranks};
      if (c.whole == 0) continue;
      for (auto& row : measurement.run(c, bench.subjects())) {
        errors += row.errors;
        if (rank == 0) timing::print(row);
        rows.push_back(std::move(row));
      }
    }
  }
  if (rank == 0 && !options.json.empty()) timing::write_json(rows, options.json);
  return errors;
}

/// Collectives of GPU memory, which are printed in a separate table.
int run_on_gpus(distx::AnyConnector connector, const Options& options) {
  if (options.ranks > 0) throw std::runtime_error("--backend nccl: its ranks are processes: give no --ranks");
  if (!options.json.empty()) throw std::runtime_error("--backend nccl: it writes a table only: give no --json");
  timing::NcclTable table = options.gpu;
  std::erase_if(table.operations, [&](Operation operation) {
    return !contains(options.operations, "all") && !contains(options.operations, timing::name_of(operation));
  });
  table.least = options.least;
  table.most = options.most;
  table.factor = options.factor;
  table.rounds = options.effort.least;
  return timing::print_nccl_table(connector, table);
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names{"all"};
  for (const Operation operation : timing::operations) names.emplace_back(timing::name_of(operation));
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times collectives, each beside its peers, and checks every buffer that was timed", "collectives");
  app.add_option("--op", options.operations, "Operations, with commas between; or all")
      ->delimiter(',')
      ->check(CLI::IsMember(operation_names()));
  app.add_option("--backends,--backend", options.backends,
                 "Under mpirun: shm,mpi, or nccl for a table of GPUs' collectives; with --ranks: threads,shm")
      ->delimiter(',');
  app.add_option("--peers", options.peers, "all, none, or some of them: what to time beside the backends")
      ->delimiter(',')
      ->check(CLI::IsMember({"all", "none", "mpi", "openmpi-ring", "boost_mpi", "gloo", "memcpy", "limit"}));
  app.add_option(
         "--memory", options.memories,
         "The backends' memory: communicator,user, or adopted for memory of the heap that the communicator adopts")
      ->delimiter(',')
      ->check(CLI::IsMember({"communicator", "adopted", "user"}));
  app.add_flag("--in-place,!--out-of-place", options.in_place,
               "Receive where the message lies, as training does (the default), or elsewhere");
  app.add_option("--min", options.least, "Bytes to begin with")->transform(CLI::AsSizeValue(false));
  app.add_option("--max", options.most, "Bytes to end with, such as 256MiB")->transform(CLI::AsSizeValue(false));
  app.add_option("--factor", options.factor, "From one size to the next")->check(CLI::Range(2, 1 << 20));
  app.add_option("--seconds", options.effort.seconds, "To spend on one size, all that is timed together");
  app.add_option("--rounds", options.effort.least, "At least so many rounds, however long they take")
      ->check(CLI::Range(1, 200));
  app.add_option("--ranks", options.ranks, "Ranks that are threads of this program, without mpirun")
      ->check(CLI::Range(1, 1024));
  app.add_option("--iterations", options.gpu.iterations, "With nccl: calls that are timed together")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--warmup", options.gpu.warmup, "With nccl: calls before them")->check(CLI::Range(0, 1 << 20));
  app.add_option("--json", options.json, "File for the rows");
  std::uint64_t errors = 0;
  int on_gpus = 0;
  const int status = examples::run(app, argc, argv, [&] {
    if (options.backends == std::vector<std::string>{"nccl"}) {
      on_gpus = run_on_gpus(distx::MpiConnector(argc, argv), options);
    } else if (options.ranks > 0) {
      std::vector<std::uint64_t> all(static_cast<std::size_t>(options.ranks));
      distx::spawn(distx::threads(options.ranks), [&](auto connector) {
        all[static_cast<std::size_t>(connector.rank())] = run<distx::ThreadCommunicator>(connector, options);
      });
      errors = all[0];
    } else {
      peers::allow_tuning();
      distx::MpiConnector connector(argc, argv);
      errors = run<distx::ShmCommunicator>(connector, options);
    }
  });
  if (errors != 0) fmt::print(stderr, "collectives: {} elements were wrong\n", errors);
  return errors != 0 ? 1 : status != 0 ? status : on_gpus;
}
