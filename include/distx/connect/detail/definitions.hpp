// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The definitions of what comm.hpp declares: see core/version.hpp.
#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "distx/connect/connect.hpp"
#include "distx/connect/detail/announced_ranks.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The failure channel of ranks in one process.
class LocalFailureChannel final : public FailureChannel {
 public:
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      reasons_.emplace(identity, reason);
    } catch (...) {
      lost_ = true;  // without memory for the reason, every identity reports a failure
    }
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = reasons_.find(identity); found != reasons_.end()) return found->second;
    if (lost_) return "a failure whose reason could not be stored: out of memory";
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> reasons_;
  bool lost_ = false;
};

DISTX_INLINE std::shared_ptr<FailureChannel> local_failure_channel() { return std::make_shared<LocalFailureChannel>(); }

DISTX_INLINE std::vector<Launcher>& launchers() {
  static std::vector<Launcher> known;
  return known;
}

DISTX_INLINE const Launcher* launcher_named(std::string_view name) {
  const auto found = std::ranges::find(launchers(), name, &Launcher::name);
  return found == launchers().end() ? nullptr : &*found;
}

DISTX_INLINE std::optional<Announced> announced_mpi_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"})
    if (const auto size = parse_int(variable(name))) return Announced{name, *size};
  return std::nullopt;
}

/// Compares what a launcher will connect with what the others announce: before, since it may wait for ranks that are
/// elsewhere.
inline void check_before(const Launcher& launcher) {
  if (launcher.name == "mpi" || launcher.name == "pmix") return;
  if (const auto chosen = announced_to(launcher.name == "torchrun" ? "env" : launcher.name))
    check_other_launchers(*chosen);
}
/// Compares what MPI or PMIx has connected with what the others announce: their variables do not say it of every MPI.
inline void check_after(const Launcher& launcher, const AnyConnector& connector) {
  if (launcher.name != "mpi" && launcher.name != "pmix") return;
  const auto number = [&](const char* what, int value) {
    return SourcedNumber{value, std::string(what) + " " + std::to_string(value) + " of " + std::string(launcher.name)};
  };
  check_other_launchers({"mpi", number("size", connector.size()), number("rank", connector.rank())});
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

/// Connects as a URL says.
inline AnyConnector connect_to(const ConnectUrl& url, int& argc, char**& argv) {
  const auto& scheme = url.scheme();
  if (scheme != "tcp" && scheme != "file" && joins_running_job(scheme))
    url.refuse("DISTX_JOIN=1 needs tcp:// or file://: the ranks of other launchers cannot be joined");
  if (scheme == "threads") url.refuse("threads are started by distx::spawn(n, f), not by connect");
  const bool is_self = scheme == "self";
  const auto* const launcher = launcher_named(scheme);
  if (!is_self && launcher == nullptr) {
    if (const auto* const advice = advice_on(scheme))
      url.refuse(std::string("it is not compiled in: include ") + advice->header);
    url.refuse("unknown scheme '" + scheme + "'; known are mpi, pmix, tcp, env, slurm, file and self");
  }
  const bool takes_url = !is_self && launcher->connect_to != nullptr;
  if (!takes_url && !url.is_scheme_alone()) url.refuse(scheme + ":// has no further parts");
  auto connector = is_self     ? AnyConnector(SelfConnector())
                   : takes_url ? launcher->connect_to(url)
                               : launcher->connect(argc, argv);
  log_connection(connector, scheme, url.to_string());
  return connector;
}

}  // namespace detail

DISTX_INLINE bool register_launcher(const Launcher& launcher) {
  if (detail::launcher_named(launcher.name) != nullptr) return false;
  auto& all = detail::launchers();
  const auto before_last = launcher.last ? all.end() : std::ranges::find(all, true, &Launcher::last);
  all.insert(launcher.by_name ? all.begin() : before_last, launcher);
  return true;
}

DISTX_INLINE AnyConnector connect(int& argc, char**& argv) {
  if (auto text = detail::variable("DISTX_CONNECT"); !text.empty())
    return detail::connect_to({std::move(text), detail::ConnectUrl::from_variable}, argc, argv);
  const auto fail = [](const std::string& message) { throw ConnectError(message, {.operation = "connect"}); };
  if (!detail::is_set("DISTX_FILE") && detail::joins_running_job("connect"))
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
  if (detail::is_set("DISTX_FILE") && detail::parse_int(detail::variable("DISTX_SIZE")) != 1)
    fail("DISTX_FILE is set but file-based rendezvous is not compiled in: include <distx/file.hpp>");
  for (const auto& other : detail::announced_ranks()) {
    if (other.size.value <= 1) continue;
    const bool included = detail::launcher_named(other.launcher) != nullptr;
    fail(other.size.source + " says that a launcher started several ranks, " +
         (included ? "but others announce one: set DISTX_CONNECT=" + std::string(other.launcher) + "://"
                   : std::string("which no included header connects: include ") +
                         detail::advice_on(other.launcher)->header) +
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
  return detail::connect_to({std::string(url), "URL"}, none.count, none.values);
}

}  // namespace distx::inline DISTX_ABI
