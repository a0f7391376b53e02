// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/connect/connect.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>

namespace {

using Variables = std::map<std::string, std::string>;

/// The environment without any launcher's variables, with the given ones; restored at the end.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS", "WORLD_SIZE", "DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
      names_.push_back(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& name : names_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Variables before_;
  std::vector<std::string> names_;
};

std::string refusal() {
  try {
    const auto connector = distx::connect();
    return "connected as one of " + std::to_string(connector.size());
  } catch (const distx::ConnectError& error) {
    return error.what();
  }
}

TEST_CASE("without a launcher connect returns one rank") {
  const Environment bare(Variables{});
  auto connector = distx::connect();
  CHECK(connector.size() == 1);
  CHECK(connector.rank() == 0);
  CHECK(connector.target<distx::SelfConnector>() != nullptr);
  std::string name = "program";
  char* arguments[] = {name.data(), nullptr};
  int argc = 1;
  char** argv = arguments;
  CHECK(distx::connect(argc, argv).size() == 1);
  CHECK(argc == 1);
}

TEST_CASE("a launcher whose connector is not compiled in throws ConnectError naming the header") {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"}) {
    const Environment launched(Variables{{variable, "4"}});
    CHECK(refusal() == "distx: connect: an MPI launcher started 4 ranks (" + std::string(variable) +
                           " is set) but MPI is not compiled in: include <distx/mpi.hpp>");
  }
  const Environment folder(Variables{{"DISTX_FILE", "/somewhere"}, {"DISTX_RANK", "0"}, {"DISTX_SIZE", "2"}});
  const std::string meet_in_folder =
      "distx: connect: DISTX_FILE is set but file-based rendezvous is not compiled in: include <distx/file.hpp>";
  CHECK(refusal() == meet_in_folder);
  const Environment of_unknown_size(Variables{{"DISTX_FILE", "/somewhere"}});
  CHECK(refusal() == meet_in_folder);
  const Environment of_no_int(Variables{{"DISTX_FILE", "/somewhere"}, {"DISTX_SIZE", "4294967297"}});
  CHECK(refusal() == meet_in_folder);
  const Environment one_of_one(Variables{{"DISTX_FILE", "/somewhere"}, {"DISTX_SIZE", "1"}});
  CHECK(refusal() == "connected as one of 1");
  const Environment torchrun(Variables{{"WORLD_SIZE", "8"}});
  CHECK(refusal().find("torchrun started 8 ranks (WORLD_SIZE is set)") != std::string::npos);
}

TEST_CASE("a launcher of one rank, or a malformed variable, gives one rank") {
  for (const char* value : {"1", "", "many", "4x"}) {
    const Environment launched(Variables{{"OMPI_COMM_WORLD_SIZE", value}, {"WORLD_SIZE", value}});
    CHECK(refusal() == "connected as one of 1");
  }
  // In a batch script, outside of srun, Slurm has allocated tasks but not started them.
  const Environment batch(Variables{{"SLURM_NTASKS", "4"}});
  CHECK(refusal() == "connected as one of 1");
}

/// Stands in for a vendor's connector.
struct Pretended : distx::SelfConnector {
  [[nodiscard]] int size() const noexcept { return 5; }
};
bool pretended_start = false;

TEST_CASE("a registered launcher takes precedence, and is registered once") {
  const distx::Launcher launcher{"pretended", [] { return pretended_start; },
                                 [](int&, char**&) -> distx::AnyConnector { return Pretended(); }};
  CHECK(distx::register_launcher(launcher));
  CHECK(!distx::register_launcher(launcher));
  const Environment launched(Variables{{"OMPI_COMM_WORLD_SIZE", "4"}});
  pretended_start = true;
  CHECK(refusal() == "connected as one of 5");
  pretended_start = false;
  CHECK(refusal().find("<distx/mpi.hpp>") != std::string::npos);
}

}  // namespace
