// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/comm.hpp"

#include <doctest/doctest.h>

#include <string>

#include "connect/environment.hpp"

namespace {

using test::Environment;
using Variables = Environment::Values;

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
  for (const auto& [variable, header] : Variables{{"OMPI_COMM_WORLD_SIZE", "mpi"},
                                                  {"PMI_SIZE", "mpi"},
                                                  {"MPI_LOCALNRANKS", "mpi"},
                                                  {"SLURM_STEP_NUM_TASKS", "tcp"},
                                                  {"WORLD_SIZE", "tcp"}}) {
    const Environment launched(Variables{{variable, "4"}});
    CHECK(refusal() == "distx: connect: " + variable +
                           "=4 says that a launcher started several ranks, which no included header connects: include "
                           "<distx/" +
                           header + ".hpp>, or set DISTX_CONNECT=self:// if the processes are separate jobs");
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
  const Environment without_folder(Variables{{"DISTX_RANK", "0"}, {"DISTX_SIZE", "2"}});
  CHECK(refusal().find("include <distx/file.hpp>") != std::string::npos);
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

TEST_CASE("a launcher whose variables have common names is asked after all others") {
  const auto connected = [](int&, char**&) -> distx::AnyConnector { return distx::SelfConnector(); };
  const auto never = [] { return false; };
  CHECK(distx::register_launcher({.name = "z last", .started_by_it = never, .connect = connected, .last = true}));
  CHECK(distx::register_launcher({.name = "z usual", .started_by_it = never, .connect = connected}));
  CHECK(distx::register_launcher({.name = "z first", .started_by_it = never, .connect = connected, .by_name = true}));
  std::vector<std::string_view> order;
  for (const auto& launcher : distx::detail::launchers())
    if (launcher.name.starts_with("z ")) order.push_back(launcher.name);
  CHECK(order == std::vector<std::string_view>{"z first", "z usual", "z last"});
}

std::string refusal_of(const std::string& url) {
  try {
    const auto connector = distx::connect(url);
    return "connected as one of " + std::to_string(connector.size());
  } catch (const distx::Error& error) {
    return error.what();
  }
}

TEST_CASE("connect takes a URL as an argument or from DISTX_CONNECT, before any launcher's variables") {
  const Environment launched(Variables{{"OMPI_COMM_WORLD_SIZE", "4"}, {"DISTX_CONNECT", "self://"}});
  CHECK(distx::connect().size() == 1);
  CHECK(refusal_of("self://") == "connected as one of 1");
}

TEST_CASE("a malformed URL throws ConnectError that names it, and the part that is wrong") {
  const Environment bare(Variables{});
  CHECK(refusal_of("tcp") ==
        "distx: connect: invalid URL 'tcp': it is not a URL such as tcp://node1:29500?rank=0&size=4");
  CHECK(refusal_of("://x").find("it is not a URL") != std::string::npos);
  CHECK(refusal_of("gloo://x") ==
        "distx: connect: invalid URL 'gloo://x': unknown scheme 'gloo'; known are mpi, pmix, tcp, env, slurm, file and "
        "self");
  CHECK(refusal_of("self://x") == "distx: connect: invalid URL 'self://x': self:// has no further parts");
  CHECK(refusal_of("threads://4").find("distx::spawn") != std::string::npos);
  CHECK(refusal_of("self://?a").find("'a' is not of the form name=value") != std::string::npos);
  CHECK(refusal_of("self://?a=1&a=2").find("two parameters 'a'") != std::string::npos);
  const Environment by_variable(Variables{{"DISTX_CONNECT", "gloo://"}});
  CHECK(refusal().find("invalid DISTX_CONNECT 'gloo://': unknown scheme 'gloo'") != std::string::npos);
}

TEST_CASE("connect.hpp alone names the header of each scheme") {
  for (const auto& [url, header] : Variables{{"mpi://", "<distx/mpi.hpp>"},
                                             {"tcp://a:1", "<distx/tcp.hpp>"},
                                             {"env://", "<distx/tcp.hpp>"},
                                             {"slurm://", "<distx/tcp.hpp>"},
                                             {"file:///a", "<distx/file.hpp>"}})
    CHECK(refusal_of(url) == "distx: connect: invalid URL '" + url + "': it is not compiled in: include " + header);
}

}  // namespace
