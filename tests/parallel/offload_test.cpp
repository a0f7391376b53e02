// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kinds.hpp"
#include "mesh_model.hpp"

namespace {

namespace fs = std::filesystem;

using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<distx::bfloat16>>;

/// A memory space that the host cannot access.
struct Elsewhere {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};

/// A new folder, removed at the end of the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "distx-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] bool empty() const { return fs::is_empty(path_); }
  /// Returns the bytes of removed files of this folder that this process maps, and whose changes go to the file.
  [[nodiscard]] std::uint64_t mapped_bytes() const {
    std::ifstream maps("/proc/self/maps");
    std::uint64_t bytes = 0;
    for (std::string line; std::getline(maps, line);)
      if (toy::says(line, path() + "/") && toy::says(line, " rw-s ") && toy::says(line, "(deleted)"))
        bytes += std::stoull(line.substr(line.find('-') + 1), nullptr, 16) -
                 std::stoull(line.substr(0, line.find('-')), nullptr, 16);
    return bytes;
  }

 private:
  fs::path path_;
};

/// Checks that trainings with and without files have the same bits, and that the ledger differs by the states' bytes.
template <class Training, class T, class Optimizer>
void check_bits(const Optimizer& optimizer, std::initializer_list<int> rank_counts) {
  const Folder folder;
  for (const int ranks : rank_counts) {
    CAPTURE(ranks);
    stages::for_each_way(
        {}, 3,
        [&](const distx::DataParallelOptions& options, bool borrowed) {
          toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
            const auto in_memory = kinds::train<Training, T>(comm, optimizer, {options, borrowed});
            auto with_files = options;  // each rank's own
            with_files.state_folder = folder.path();
            const auto in_files = kinds::train<Training, T>(comm, optimizer, {with_files, borrowed});
            CHECK(toy::same_bits(in_files.weights, in_memory.weights));
            CHECK(in_files.memory.offloaded == in_memory.memory.optimizer);
            CHECK(in_files.memory.optimizer == distx::observe::MemoryLedger::Use{});
            CHECK(in_files.memory.total.held == in_memory.memory.total.held - in_memory.memory.optimizer.held);
            CHECK(in_memory.memory.offloaded == distx::observe::MemoryLedger::Use{});
          });
        },
        {4096});
  }
  CHECK(folder.empty());
  CHECK(folder.mapped_bytes() == 0);
}

/// Makes a training whose rank 1 has that folder, and the others one that exists; returns how each rank ended.
std::vector<toy::Ending> endings_with(const std::string& of_one) {
  return toy::endings(3, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("weight", 300);
    distx::DataParallel<distx::ZeRO<1>> training(
        comm, parameters, distx::AdamW{},
        {.state_folder = comm.rank() == 1 ? of_one : fs::temp_directory_path().string()});
  });
}

void check_refused(const std::string& folder) {
  const auto endings = endings_with(folder);
  CHECK(endings[1].kind == "argument");
  for (const auto& ending : endings) {
    CAPTURE(ending.words);
    CHECK((ending.kind == "argument" || ending.kind == "revoked"));
    CHECK(toy::says(ending.words, "optimizer states in '" + folder + "': "));
    CHECK(toy::says(ending.words, "; set .state_folder to an existing folder in which this process may create files"));
  }
}

}  // namespace

TEST_CASE("optimizer states in files give the same bits as in memory, at every stage") {
  check_bits<stages::Training, float>(distx::AdamW{.weight_decay = 0.125}, {1, 3});
  check_bits<stages::Training, float>(distx::LAMB{}, {2});
  check_bits<stages::Training, float>(kinds::Mixture{distx::Muon{.iterations = 1}}, {2});
}

TEST_CASE("master weights in files give the same bits as in memory, at every stage") {
  check_bits<Half, distx::bfloat16>(distx::AdamW{.weight_decay = 0.125}, {1, 3});
  check_bits<Half, distx::bfloat16>(distx::LAMB{}, {2});
  check_bits<Half, distx::bfloat16>(kinds::Mixture{distx::Muon{.iterations = 1}}, {2});
}

TEST_CASE("the ledger and the plan count the bytes that are mapped, of files without names") {
  const Folder folder;
  constexpr std::size_t elements = std::size_t{1} << 16;  // whole pages on each rank
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      std::vector<distx::Parameter<distx::bfloat16>> parameters;
      for (const char* name : {"a", "b"}) parameters.emplace_back(name, elements);
      {
        Half training(comm, parameters, distx::AdamW{},
                      {.bucket_bytes = 0, .stage = stage, .state_folder = folder.path()});
        const auto memory = training.memory();
        const auto plan = distx::plan(2 * elements, 1, stage, distx::mixed_precision<>, {.offload = true});
        CHECK(memory.offloaded.held == 2 * elements * 12);
        CHECK(memory.offloaded.peak == memory.offloaded.held);
        CHECK(memory.offloaded.held == folder.mapped_bytes());
        CHECK(memory.offloaded.held == plan.offloaded);
        CHECK(memory.optimizer.peak == plan.optimizer);
        CHECK(plan.total() == plan.weights + plan.gradients);
        CHECK(toy::says(memory.to_string(), "; offloaded 1572864 bytes"));
        CHECK(folder.empty());
      }
      CHECK(folder.mapped_bytes() == 0);
    });
}

TEST_CASE("the plan moves the bytes of the optimizer to the offloaded ones, and sends the same") {
  for (const int stage : {0, 1, 2, 3}) {
    const auto held = distx::plan(4096, 4, stage, distx::mixed_precision<>, {.replicate = true});
    const auto offloaded = distx::plan(4096, 4, stage, distx::mixed_precision<>, {.replicate = true, .offload = true});
    CHECK(offloaded.offloaded == held.optimizer);
    CHECK(offloaded.optimizer == 0);
    CHECK(offloaded.total() == held.total() - held.optimizer);
    CHECK(offloaded.replicas == held.replicas);
    CHECK(offloaded.sent == held.sent);
    CHECK((offloaded + offloaded).offloaded == 2 * held.optimizer);
  }
}

TEST_CASE("a folder in which no file can be created is an InvalidArgument that names it") {
  const Folder folder;
  check_refused(folder.path() + "/missing");
  std::ofstream(folder.path() + "/file") << "text";
  check_refused(folder.path() + "/file");
  if (::geteuid() != 0) {
    fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
    check_refused(folder.path());
    fs::permissions(folder.path(), fs::perms::owner_all);
  } else {
    MESSAGE("a folder without permission was not tried, because root may write everywhere");
  }
}

TEST_CASE("a folder for the states of memory that is not the host's is an InvalidArgument") {
  const distx::detail::AnyOptimizer<Elsewhere> optimizer{"", false, distx::detail::TakesWhole::none, [] {}, {}};
  const auto ending = toy::ending_of(
      [&] { distx::detail::check_arguments<Elsewhere>({}, optimizer, {}, {.state_folder = "/tmp"}, {.size = 1}); });
  CHECK(ending.kind == "argument");
  CHECK(toy::says(ending.words, ".state_folder supports host memory only; omit it, or On<Space>"));
}

TEST_CASE("states in host memory of a training that is not in GPU memory are an InvalidArgument on every rank") {
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {
         std::vector<distx::Parameter<float>> parameters;
         parameters.emplace_back("weight", 300);
         distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::AdamW{}, {.offload = true});
       })) {
    CAPTURE(ending.words);
    CHECK((ending.kind == "argument" || ending.kind == "revoked"));
    CHECK(toy::says(ending.words, ".offload supports GPU memory only; omit it, or set .state_folder instead"));
  }
}

TEST_CASE("a disk with less space than the states need is a MemoryError that names the folder") {
  const std::string folder = "/dev/shm";  // refuses at once what exceeds its capacity, and accepts sparse files
  std::error_code missing;
  const auto capacity = fs::space(folder, missing).capacity;
  if (missing || capacity == 0 || capacity > (std::uint64_t{1} << 50)) {
    MESSAGE("not tried, because /dev/shm is absent or does not limit its size");
    return;
  }
  const auto account = std::make_shared<distx::detail::MemoryAccount>();
  std::string words;
  try {
    static_cast<void>(distx::detail::allocate_for_optimizer<distx::Host>(account, capacity + (1U << 20), {folder, {}}));
  } catch (const distx::MemoryError& error) {
    words = error.what();
  }
  CAPTURE(words);
  CHECK(toy::says(words, "bytes for optimizer states in '/dev/shm': No space left on device; free space there, or "));
  CHECK(account->ledger() == distx::observe::MemoryLedger{});
}

TEST_CASE("a MeshParallel keeps its states in files") {
  const Folder folder;
  const distx::DataParallelOptions options{.clip_norm = 3, .state_folder = folder.path()};
  const mesh_model::Whole expected({.clip_norm = 3});
  toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
    const mesh_model::Grid mesh(comm, {2, 2});
    mesh_model::train<distx::Host, 1>(mesh, options, expected);
    mesh_model::train<distx::Host, 3>(mesh, options, expected);
    const distx::TensorParameter<float, 1, mesh_model::Grid, distx::Layout<>> weight(
        "weight", mesh, {4}, [](const std::array<std::size_t, 1>&) { return 1.0; });
    distx::TensorParameterList<> list;
    list.add(weight);
    const distx::MeshParallel<mesh_model::Data> training(mesh, list, distx::AdamW{}, options);
    CHECK(training.memory().offloaded.held == training.memory().offloaded.peak);
    CHECK(training.memory().offloaded.held >= 2 * 4 * sizeof(float));
    CHECK(training.memory().optimizer.peak == 0);
  });
}
