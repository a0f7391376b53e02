// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdio>

#include "distx/connect/connect.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/core/detail/inline.hpp"

namespace distx {

namespace detail {

DISTX_INLINE std::vector<Launcher>& launchers() {
  static std::vector<Launcher> known;
  return known;
}

DISTX_INLINE std::optional<int> environment_number(const char* name) { return parse_int(variable(name)); }

DISTX_INLINE std::optional<Announced> announced_by(std::initializer_list<const char*> variables) {
  for (const char* name : variables)
    if (const auto size = environment_number(name)) return Announced{name, *size};
  return std::nullopt;
}

DISTX_INLINE std::optional<Announced> announced_mpi_ranks() {
  return announced_by({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"});
}

/// Writes a line to stderr on the root rank if DISTX_LOG=info.
inline void log_connection(const AnyConnector& connector, std::string_view launcher, const std::string& reason) {
  if (variable("DISTX_LOG") != "info" || connector.rank() != connector.root_rank()) return;
  std::fprintf(stderr, "distx: connect: launcher '%.*s' (%s), %d ranks, %d on this host\n",
               static_cast<int>(launcher.size()), launcher.data(), reason.c_str(), connector.size(),
               connector.local_size());
}

/// Returns the reason to choose a launcher, for the log.
inline std::string reason_of(const Launcher& launcher) {
  if (launcher.reason != nullptr) return launcher.reason();
  const auto mpi = announced_mpi_ranks();
  return mpi ? mpi->variable + " is set" : "it recognized its variables";
}

/// Returns the header whose launcher has that name; empty if there is none.
inline std::string_view header_of(std::string_view scheme) noexcept {
  if (scheme == "mpi") return "distx/mpi.hpp";
  if (scheme == "pmix") return "distx/pmix.hpp";
  if (scheme == "file") return "distx/file.hpp";
  if (scheme == "tcp" || scheme == "env" || scheme == "slurm") return "distx/tcp.hpp";
  return {};
}

DISTX_INLINE AnyConnector connect_to(const ConnectUrl& url, int& argc, char**& argv) {
  const auto only_scheme = [&] {
    if (!url.is_scheme_alone()) url.refuse(url.scheme() + ":// has no further parts");
  };
  const auto logged = [&](AnyConnector connector) {
    log_connection(connector, url.scheme(), url.to_string());
    return connector;
  };
  if (url.scheme() != "tcp" && url.scheme() != "file" && joins_running_job(url.scheme()))
    url.refuse("DISTX_JOIN=1 needs tcp:// or file://: the ranks of other launchers cannot be joined");
  if (url.scheme() == "self") {
    only_scheme();
    return logged(SelfConnector());
  }
  if (url.scheme() == "threads") url.refuse("threads are started by distx::spawn(n, f), not by connect");
  for (const auto& launcher : launchers())
    if (launcher.name == url.scheme()) {
      if (launcher.connect_to != nullptr) return logged(launcher.connect_to(url));
      only_scheme();
      return logged(launcher.connect(argc, argv));
    }
  if (const auto header = header_of(url.scheme()); !header.empty())
    url.refuse("it is not compiled in: include <" + std::string(header) + ">");
  url.refuse("unknown scheme '" + url.scheme() + "'; known are mpi, pmix, tcp, env, slurm, file and self");
}

}  // namespace detail

DISTX_INLINE bool register_launcher(const Launcher& launcher) {
  auto& all = detail::launchers();
  auto place = all.end();
  for (auto known = all.begin(); known != all.end(); ++known) {
    if (known->name == launcher.name) return false;
    if (place == all.end() && known->last && !launcher.last) place = known;
  }
  all.insert(launcher.by_name ? all.begin() : place, launcher);
  return true;
}

DISTX_INLINE AnyConnector connect(int& argc, char**& argv) {
  if (auto url = detail::variable("DISTX_CONNECT"); !url.empty())
    return detail::connect_to(detail::ConnectUrl(std::move(url), "DISTX_CONNECT"), argc, argv);
  if (detail::variable("DISTX_FILE").empty() && detail::joins_running_job("connect"))
    throw ConnectError(
        "DISTX_JOIN=1 does not say which job to join: set DISTX_FILE to its folder, or DISTX_CONNECT to its address, "
        "as tcp://host:port",
        {.operation = "connect"});
  for (const auto& launcher : detail::launchers())
    if (launcher.started_by_it()) {
      auto connector = launcher.connect(argc, argv);
      detail::log_connection(connector, launcher.name, detail::reason_of(launcher));
      return connector;
    }
  const auto fail = [](const std::string& message) { throw ConnectError(message, {.operation = "connect"}); };
  if (!detail::variable("DISTX_FILE").empty() && detail::environment_number("DISTX_SIZE") != 1)
    fail("DISTX_FILE is set but file-based rendezvous is not compiled in: include <distx/file.hpp>");
  if (const auto mpi = detail::announced_mpi_ranks(); mpi && mpi->size > 1)
    fail("an MPI launcher started " + std::to_string(mpi->size) + " ranks (" + mpi->variable +
         " is set) but MPI is not compiled in: include <distx/mpi.hpp>");
  if (const auto torch = detail::announced_by({"WORLD_SIZE"}); torch && torch->size > 1)
    fail("torchrun started " + std::to_string(torch->size) +
         " ranks (WORLD_SIZE is set) but TCP is not compiled in: include <distx/tcp.hpp>");
  AnyConnector alone = SelfConnector();
  detail::log_connection(alone, "none", "no launcher's variables are set");
  return alone;
}

DISTX_INLINE AnyConnector connect() {
  int argc = 0;
  char* arguments[] = {nullptr};
  char** argv = arguments;
  return connect(argc, argv);
}

DISTX_INLINE AnyConnector connect(std::string_view url) {
  int argc = 0;
  char* arguments[] = {nullptr};
  char** argv = arguments;
  return detail::connect_to(detail::ConnectUrl(std::string(url), "URL"), argc, argv);
}

}  // namespace distx
