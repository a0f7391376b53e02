// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what comm.hpp declares: see core/version.hpp.
#include <algorithm>
#include <cstdio>

#include "distx/connect/connect.hpp"
#include "distx/connect/detail/announced_ranks.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/detail/local_failure_channel.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

DISTX_INLINE std::shared_ptr<FailureChannel> local_failure_channel() { return std::make_shared<LocalFailureChannel>(); }

DISTX_INLINE std::vector<Launcher>& launchers() {
  static std::vector<Launcher> known;
  return known;
}

DISTX_INLINE std::optional<Announced> announced_mpi_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"})
    if (const auto size = parse_int(variable(name))) return Announced{name, *size};
  return std::nullopt;
}

DISTX_INLINE std::optional<SourcedNumber> rank_announced_for(int size) {
  for (const auto& one : announced_ranks())
    if ((one.family == LauncherFamily::mpi || one.family == LauncherFamily::slurm) && !one.at_least && one.rank &&
        one.size.value == size)
      return one.rank;
  return std::nullopt;
}

/// Compares what a launcher will connect with what the others announce: before, since it may wait for ranks that are
/// elsewhere.
inline void check_before(const Launcher& launcher) {
  std::optional<AnnouncedRanks> chosen;
  if (launcher.name == "file") chosen = announced_by_family(LauncherFamily::distx);
  if (launcher.name == "torchrun" || launcher.name == "env") chosen = announced_by_family(LauncherFamily::torch);
  if (launcher.name == "slurm") chosen = announced_by_family(LauncherFamily::slurm);
  if (chosen) check_other_launchers(*chosen);
}
/// The same for a URL of a launcher, which has the rank and the size or leaves them to variables.
inline void check_before(const ConnectUrl& url) {
  if ((url.scheme() != "tcp" && url.scheme() != "file") || variable("DISTX_JOIN") == "1") return;
  const auto number = [&](const std::string& name, const char* variable_name) -> std::optional<SourcedNumber> {
    const auto own = parse_int(url.parameter(name));
    if (!own) return announced_number(variable_name);
    return SourcedNumber{*own, name + "=" + url.parameter(name) + " in DISTX_CONNECT"};
  };
  if (auto size = number("size", "DISTX_SIZE"))
    check_other_launchers({LauncherFamily::distx, *size, number("rank", "DISTX_RANK")});
}
/// Compares what MPI or PMIx has connected with what the others announce: their variables do not say it of every MPI.
inline void check_after(const Launcher& launcher, const AnyConnector& connector) {
  if (launcher.name != "mpi" && launcher.name != "pmix") return;
  const auto number = [&](const char* what, int value) {
    return SourcedNumber{value, std::string(what) + " " + std::to_string(value) + " of " + std::string(launcher.name)};
  };
  check_other_launchers({LauncherFamily::mpi, number("size", connector.size()), number("rank", connector.rank())});
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
  if (auto text = detail::variable("DISTX_CONNECT"); !text.empty()) {
    const detail::ConnectUrl url(std::move(text), "DISTX_CONNECT");
    detail::check_before(url);
    return detail::connect_to(url, argc, argv);
  }
  const auto fail = [](const std::string& message) { throw ConnectError(message, {.operation = "connect"}); };
  if (detail::variable("DISTX_FILE").empty() && detail::joins_running_job("connect"))
    fail(
        "DISTX_JOIN=1 does not say which job to join: set DISTX_FILE to its folder, or DISTX_CONNECT to its address, "
        "as tcp://host:port");
  for (const auto& launcher : detail::launchers())
    if (launcher.started_by_it()) {
      detail::check_before(launcher);
      auto connector = launcher.connect(argc, argv);
      detail::check_after(launcher, connector);
      detail::log_connection(connector, launcher.name, detail::reason_of(launcher));
      return connector;
    }
  if (!detail::variable("DISTX_FILE").empty() && detail::parse_int(detail::variable("DISTX_SIZE")) != 1)
    fail("DISTX_FILE is set but file-based rendezvous is not compiled in: include <distx/file.hpp>");
  for (const auto& other : detail::announced_ranks()) {
    if (other.size.value <= 1) continue;
    const auto& advice = detail::advice_of(other.family);
    const std::string scheme(advice.scheme.substr(0, advice.scheme.find(':')));
    const auto& all = detail::launchers();
    const bool included = std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == scheme; });
    fail(other.size.source + " says that a launcher started several ranks, " +
         (included ? "but others announce one: set DISTX_CONNECT=" + std::string(advice.scheme)
                   : "which no included header connects: include <" + std::string(advice.header) + ">") +
         ", or set DISTX_CONNECT=self:// if the processes are separate jobs");
  }
  AnyConnector alone = SelfConnector();
  detail::log_connection(alone, "none", "no launcher's variables are set");
  return alone;
}

DISTX_INLINE AnyConnector connect() {
  detail::NoArguments none;
  return connect(none.count, none.values);
}

DISTX_INLINE AnyConnector connect(std::string_view url) {
  detail::NoArguments none;
  return detail::connect_to(detail::ConnectUrl(std::string(url), "URL"), none.count, none.values);
}

}  // namespace distx::inline DISTX_ABI
