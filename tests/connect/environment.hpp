// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace test {

/// The environment without any launcher's variables, with the given ones; restored at the end.
class Environment {
 public:
  using Values = std::map<std::string, std::string>;

  explicit Environment(const Values& variables) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK",
                             "PMI_SIZE",
                             "PMI_RANK",
                             "PMIX_NAMESPACE",
                             "PMIX_RANK",
                             "MPI_LOCALNRANKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS",
                             "SLURM_PROCID",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "WORLD_SIZE",
                             "RANK",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "GROUP_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RESTART_COUNT",
                             "JOB_COMPLETION_INDEX",
                             "DISTX_FILE",
                             "DISTX_RANK",
                             "DISTX_SIZE",
                             "DISTX_JOIN",
                             "DISTX_CONNECT",
                             "DISTX_TOKEN",
                             "DISTX_TOKEN_FILE"}) {
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
  Values before_;
  std::vector<std::string> names_;
};

}  // namespace test
