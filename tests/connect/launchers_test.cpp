// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <string>

#include "connect/environment.hpp"
#include "connect/over_tcp.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/file/launcher.hpp"
#include "distx/connect/tcp/detail/slurm_hosts.hpp"
#include "distx/connect/tcp/launcher.hpp"
#include "words.hpp"

namespace {

namespace tcp = distx::detail::tcp;
namespace file = distx::detail::file;
using test::each;
using test::Environment;
using test::Messages;
using Variables = Environment::Values;

distx::AnyConnector by_tcp_url(const std::string& url) {
  return tcp::connect_by_url(distx::detail::ConnectUrl(url, "URL"));
}
distx::AnyConnector by_file_url(const std::string& url) {
  return file::connect_by_url(distx::detail::ConnectUrl(url, "URL"));
}

/// Returns the message of the error that `f` throws.
template <class F>
std::string error_of(F&& f) {
  try {
    (void)f();
  } catch (const distx::Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("tcp:// and file:// connect the ranks that their URLs describe") {
  const Environment bare(Variables{});
  const std::string place = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  const test::NewFolder folder;
  for (const bool in_folder : {false, true})
    CHECK(each(3, [&](int rank) {
            const std::string terms = "?rank=" + std::to_string(rank) + "&size=3&timeout=60";
            auto connector =
                in_folder ? by_file_url("file://" + folder.path().string() + terms) : by_tcp_url(place + terms);
            if (connector.rank() != rank || connector.size() != 3) throw std::runtime_error("another rank");
            if (in_folder != (connector.target<distx::FileConnector>() != nullptr))
              throw std::runtime_error("another connector");
            connector.barrier();
          }) == Messages(3));
}

TEST_CASE("tcp:// takes the rank and the size from variables, and refuses contradictions") {
  const auto url = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  const Environment one(Variables{{"DISTX_RANK", "0"}, {"DISTX_SIZE", "1"}});
  CHECK(by_tcp_url(url).size() == 1);
  CHECK(error_of([&] { return by_tcp_url(url + "?size=2"); }) ==
        "distx: connect: invalid URL '" + url + "?size=2': size=2 in URL contradicts DISTX_SIZE=1");
  const Environment indexed(Variables{{"JOB_COMPLETION_INDEX", "0"}});
  CHECK(by_tcp_url(url + "?size=1").rank() == 0);
}

TEST_CASE("the rank of DISTX_CONNECT is compared with other launchers' unless one of them announces it") {
  const auto url = "tcp://127.0.0.1:" + std::to_string(test::free_port()) + "?size=2&timeout=0";
  const auto error = [&](const std::string& rank, Variables variables) {
    variables.merge(Variables{{"DISTX_CONNECT", url + rank}, {"WORLD_SIZE", "2"}, {"RANK", "0"}});
    const Environment set(variables);
    return error_of([] { return distx::connect(); });
  };
  CHECK(test::contains(error("&rank=1", {}), "rank=1 in DISTX_CONNECT contradicts RANK=0: two launchers announce"));
  CHECK(test::contains(error("", {{"DISTX_RANK", "1"}}), "DISTX_RANK=1 contradicts RANK=0: two launchers announce"));
  CHECK(test::contains(error("", {{"JOB_COMPLETION_INDEX", "1"}}), "timed out after 0 s"));
  CHECK(test::contains(error("", {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}), "timed out"));
  CHECK(test::contains(error("", {{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "3"}}),
                       "size=2 in DISTX_CONNECT contradicts WORLD_SIZE=3"));
}

TEST_CASE("with DISTX_JOIN=1, tcp:// and file:// join a running job, and refuse a rank and a size") {
  const std::string place = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  const test::NewFolder folder;
  const std::string in_folder = "file://" + folder.path().string();
  for (const auto& url : {place, in_folder}) {
    const Environment joining(Variables{{"DISTX_JOIN", "1"}});
    const auto message = [&](const std::string& text) {
      return error_of([&] { return url == place ? by_tcp_url(text) : by_file_url(text); });
    };
    CHECK(test::contains(message(url + "?rank=0"),
                         "DISTX_JOIN=1 contradicts rank=0: a process that joins receives its rank"));
    CHECK(test::contains(message(url + "?size=2"), "DISTX_JOIN=1 contradicts size=2"));
    CHECK(test::contains(message(url + "?timeout=0"), "timed out after 0 s: no job runs"));
    const Environment with_rank(Variables{{"DISTX_JOIN", "1"}, {"DISTX_RANK", "1"}});
    CHECK(test::contains(message(url),
                         "DISTX_JOIN=1 contradicts DISTX_RANK=1: a process that joins receives its rank; unset"));
    const Environment invalid(Variables{{"DISTX_JOIN", "yes"}});
    CHECK(test::contains(message(url), "invalid DISTX_JOIN 'yes': must be a number in [0, 1]"));
  }
  const Environment alone(Variables{{"DISTX_JOIN", "1"}});
  CHECK(test::contains(error_of([] { return distx::connect(); }),
                       "DISTX_JOIN=1 does not say which job to join: set DISTX_FILE to its folder, or DISTX_CONNECT"));
  CHECK(test::contains(error_of([] { return distx::connect("self://"); }), "DISTX_JOIN=1 needs tcp:// or file://"));
}

TEST_CASE("malformed parts of tcp:// and file:// throw ConnectError that names them") {
  const Environment bare(Variables{});
  const auto tcp_error = [](const std::string& url) { return error_of([&] { return by_tcp_url(url); }); };
  const auto contains = [](const std::string& text, const std::string& part) {
    if (text.find(part) == std::string::npos) MESSAGE(text);
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(tcp_error("tcp://a:1"), "the size is missing: add size=…, or set DISTX_SIZE"));
  CHECK(contains(tcp_error("tcp://a:1?size=2"), "the rank is missing: add rank=…, or set DISTX_RANK"));
  CHECK(contains(tcp_error("tcp://a:1?size=2&rank=x"), "invalid rank 'x': must be a number in [0, 65535]"));
  CHECK(contains(tcp_error("tcp://a:1?size=2&rank=2"), "rank=2 in URL contradicts size=2 in URL"));
  CHECK(contains(tcp_error("tcp://a:1?size=0"), "invalid size '0'"));
  CHECK(contains(tcp_error("tcp://a?size=1"), "'a' is not host:port"));
  CHECK(contains(tcp_error("tcp://a:x?size=1"), "'a:x' is not host:port"));
  CHECK(contains(tcp_error("tcp://:1?size=1"), "':1' is not host:port"));
  CHECK(contains(tcp_error("tcp://a:1/b?size=1"), "unexpected path '/b'"));
  CHECK(contains(tcp_error("tcp://a:1?sise=1"), "unknown parameter 'sise'; tcp:// has rank, size, bind, timeout"));
  const auto file_error = [](const std::string& url) { return error_of([&] { return by_file_url(url); }); };
  CHECK(contains(file_error("file://a/b?rank=0&size=1"), "a folder's URL has three slashes, as file:///a/b"));
  CHECK(contains(file_error("file://"), "the folder is missing"));
  CHECK(tcp::endpoint_from("[::1]:5").host == "::1");
}

TEST_CASE("the variables of torchrun are checked, and errors name them") {
  const Variables right{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const auto error = [&](const Variables& changes) {
    Variables all = right;
    for (const auto& [name, value] : changes) all[name] = value;
    const Environment set(all);
    return error_of([] { return tcp::connect_by_variables(); });
  };
  const std::string start = "distx: connect (env): ";
  CHECK(error({{"WORLD_SIZE", ""}}) == start + "WORLD_SIZE is not set");
  CHECK(error({{"WORLD_SIZE", "two"}}) == start + "invalid WORLD_SIZE 'two': must be a number in [1, 65536]");
  CHECK(error({{"RANK", ""}}) == start + "RANK is not set");
  CHECK(error({{"RANK", "2"}}) == start + "RANK=2 contradicts WORLD_SIZE=2: the rank must be in [0, 2)");
  CHECK(error({{"MASTER_ADDR", ""}}) == start + "MASTER_ADDR is not set");
  CHECK(error({{"MASTER_PORT", ""}}) == start + "MASTER_PORT is not set");
  CHECK(error({{"MASTER_PORT", "65536"}}) == start + "invalid MASTER_PORT '65536': must be a number in [1, 65535]");
  CHECK(error({{"LOCAL_WORLD_SIZE", "3"}}) ==
        start + "LOCAL_WORLD_SIZE=3 contradicts WORLD_SIZE=2: a host has at most all ranks");
  CHECK(error({{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "1"}}) ==
        start + "LOCAL_RANK=1 contradicts LOCAL_WORLD_SIZE=1: the rank must be in [0, 1)");
  CHECK(error({{"RANK", "0"}, {"MASTER_ADDR", "192.0.2.1"}}).find("set DISTX_TOKEN on every rank") !=
        std::string::npos);
  CHECK(error({{"WORLD_SIZE", "1"}, {"RANK", ""}}) == "no error");
  CHECK(error({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"MASTER_ADDR", ""}}) == "no error");
}

TEST_CASE("the variables of Slurm are checked, and errors name them") {
  const Variables right{
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NODELIST", "node[01-02]"}, {"SLURM_JOB_ID", "7"}};
  const auto error = [&](const Variables& changes) {
    Variables all = right;
    for (const auto& [name, value] : changes) all[name] = value;
    const Environment set(all);
    return error_of([] { return tcp::connect_in_slurm(); });
  };
  const std::string start = "distx: connect (slurm): ";
  CHECK(error({{"SLURM_PROCID", "2"}}) ==
        start + "SLURM_PROCID=2 contradicts SLURM_NTASKS=2: the rank must be in [0, 2)");
  CHECK(error({{"SLURM_PROCID", ""}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}) ==
        start + "SLURM_PROCID is not set");
  CHECK(error({{"SLURM_NTASKS", "x"}}) == start + "invalid SLURM_NTASKS 'x': must be a number in [1, 65536]");
  CHECK(error({{"SLURM_STEP_NODELIST", ""}}) == start + "SLURM_STEP_NODELIST is not set");
  CHECK(error({{"SLURM_STEP_NODELIST", "node[01"}}) ==
        start + "invalid SLURM_STEP_NODELIST 'node[01': must be a list such as node[01-03,7]");
  CHECK(error({{"SLURM_JOB_ID", ""}}) == start + "SLURM_JOB_ID is not set");
  CHECK(error({{"SLURM_JOB_ID", "4294967296"}}) ==
        start + "invalid SLURM_JOB_ID '4294967296': must be a number in [0, 4294967295]");
  CHECK(test::contains(error({{"SLURM_JOB_ID", "4294967295"}, {"SLURM_STEP_ID", "-1"}}), "invalid SLURM_STEP_ID '-1'"));
  CHECK(error({{"SLURM_NTASKS", "1"}}) == "no error");
}

/// Stands in for MPI: connects the number of ranks that the test sets, regardless of the variables.
int mpi_size = 0;
struct PretendedMpi : distx::SelfConnector {
  [[nodiscard]] int size() const noexcept { return mpi_size; }
};

TEST_CASE("ranks that MPI connects are compared with what the other launchers announce") {
  CHECK(distx::register_launcher({.name = "mpi",
                                  .started_by_it = [] { return mpi_size > 0; },
                                  .connect = [](int&, char**&) -> distx::AnyConnector { return PretendedMpi(); }}));
  const auto error = [](int size, const Variables& variables) {
    mpi_size = size;
    const Environment set(variables);
    const auto message = error_of([] { return distx::connect(); });
    mpi_size = 0;
    return message;
  };
  const Variables torch{{"WORLD_SIZE", "2"}, {"RANK", "0"}}, mpirun{{"OMPI_COMM_WORLD_SIZE", "2"}};
  const Variables mpiexec{{"PMI_SIZE", "2"}}, srun{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  for (const auto& other : {torch, mpirun, mpiexec, srun}) {
    CHECK(test::contains(error(1, other), "size 1 of mpi contradicts "));
    CHECK(error(2, other) == "no error");
  }
  CHECK(error(2, {{"WORLD_SIZE", "1"}, {"RANK", "0"}}) == "no error");
  CHECK(error(1, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}}) == "no error");
  // mpirun starts its daemons as tasks of Slurm, and a variable of mpiexec counts the ranks of one host.
  CHECK(error(4, srun) == "no error");
  CHECK(error(2, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}}) == "no error");
  CHECK(error(4, {{"MPI_LOCALNRANKS", "2"}}) == "no error");
  // mpirun in a batch script, or in the shell of `salloc -n 1`, which may be a separate step.
  const Variables script{{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  const Variables shell{{"SLURM_JOB_ID", "7"},
                        {"SLURM_PROCID", "0"},
                        {"SLURM_STEP_ID", "4294967290"},
                        {"SLURM_STEP_NUM_TASKS", "1"},
                        {"SLURM_STEP_NODELIST", "node1"}};
  for (const auto& own : {script, shell}) CHECK(error(2, own) == "no error");
  CHECK(test::contains(error(4, torch),
                       "size 4 of mpi contradicts WORLD_SIZE=2: two launchers announce different ranks; "
                       "start the ranks by one of them, unset what the other sets (of WORLD_SIZE), or "
                       "choose by DISTX_CONNECT=mpi:// or env://"));
  CHECK(test::contains(error(2, {{"WORLD_SIZE", "2"}, {"RANK", "1"}}), "rank 0 of mpi contradicts RANK=1"));
  CHECK(test::contains(error(1, {{"PMIX_NAMESPACE", "job"}, {"PMIX_RANK", "1"}}), "contradicts PMIX_RANK=1"));
}

TEST_CASE("separate jobs of PyTorch's variables in the tasks of another launcher are refused") {
  for (const char* const outer : {"OMPI_COMM_WORLD_", "PMI_"}) {
    const auto error = [&](int ranks, int rank, int task) {
      const Environment set({{"WORLD_SIZE", std::to_string(ranks)},
                             {"RANK", std::to_string(rank)},
                             {std::string(outer) + "SIZE", "2"},
                             {std::string(outer) + "RANK", std::to_string(task)}});
      return error_of([] { return distx::connect(); });
    };
    const auto size = " contradicts " + std::string(outer) + "SIZE=2: ";
    for (int rank = 0; rank < 3; ++rank)
      for (int task = 0; task < 2; ++task) CHECK(test::contains(error(3, rank, task), "WORLD_SIZE=3" + size));
    const auto number = " contradicts " + std::string(outer) + "RANK=";
    CHECK(test::contains(error(4, 2, 0), "RANK=2" + number + "0: "));
    CHECK(test::contains(error(4, 1, 1), "RANK=1" + number + "1: "));
    CHECK(test::contains(error(4, 3, 1), "MASTER_ADDR is not set"));  // not refused
  }
}

TEST_CASE("the first host of a Slurm list") {
  for (const auto& [list, host] : Variables{{"node1", "node1"},
                                            {"node1,node2", "node1"},
                                            {"node[01-03,7]", "node01"},
                                            {"node[7,01-03],gpu1", "node7"},
                                            {"rack[2-3]-node[001-004].cluster,b", "rack2-node001.cluster"},
                                            {"a-b.c", "a-b.c"}})
    CHECK(tcp::first_slurm_host(list) == host);
  for (const char* list : {"", ",node1", "node[", "node[]", "node]", "node[a-b]", "node[1", "[,1]"})
    CHECK(!tcp::first_slurm_host(list));
  CHECK(tcp::slurm_port(2147483647, 2147483647) < 30000);
  CHECK(tcp::slurm_port(0, 0) >= 15000);
  CHECK(tcp::slurm_port(5, 0) != tcp::slurm_port(5, 1));
}

}  // namespace
