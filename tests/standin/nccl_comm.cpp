// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NCCL's communicators: how they are made, asked, and ended.
#include "standin/nccl_comm.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "standin/device.hpp"
#include "standin/standin.hpp"

namespace standin {

namespace {

struct Comms {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Comm>> alive;
  std::map<std::string, std::shared_ptr<Clique>> ids;  ///< given out; their cliques once the first rank has joined
  std::set<int> never;
  std::uintptr_t number = 0;
  std::deque<std::string> words{""};  // given out, and kept
};

Comms& all() {
  static auto* comms = new Comms;
  return *comms;
}

std::atomic<int>& all_version() {
  static std::atomic<int> version{NCCL_VERSION_CODE};
  return version;
}

std::string key_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

ncclComm_t add(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard lock(all().mutex);
  const auto handle = reinterpret_cast<ncclComm_t>(std::uintptr_t{0xCC000000} + 16 * ++all().number);
  all().alive[handle] = comm;
  return handle;
}

void remove(ncclComm_t handle) {
  const std::lock_guard lock(all().mutex);
  all().alive.erase(handle);
}

void configure(Comm& comm, const ncclConfig_t* config) {
  if (config == nullptr) return;
  require(config->magic == 0xcafebeef && config->size <= sizeof(ncclConfig_t), ncclInvalidArgument);
  const auto given = [](int value) { return value != NCCL_CONFIG_UNDEF_INT; };
  require(!given(config->blocking) || config->blocking == 0 || config->blocking == 1, ncclInvalidArgument);
  require(!given(config->minCTAs) || config->minCTAs > 0, ncclInvalidArgument);
  require(!given(config->maxCTAs) || config->maxCTAs > 0, ncclInvalidArgument);
  require(!given(config->minCTAs) || !given(config->maxCTAs) || config->minCTAs <= config->maxCTAs,
          ncclInvalidArgument);
  require(!given(config->cgaClusterSize) || (config->cgaClusterSize >= 0 && config->cgaClusterSize <= 8),
          ncclInvalidArgument);
  if (given(config->blocking)) comm.blocking = config->blocking == 1;
  if (config->commName != nullptr) comm.name = config->commName;
}

/// Waits for the others, whose GPUs must all be different ones.
ncclResult_t meet(const Comm& comm) {
  comm.clique->join(comm.device);
  const auto cards =
      comm.clique->gather("init", comm.rank, {comm.device}, comm.clique->size, [&] { return comm.stopped.load(); });
  if (!cards) return ncclInternalError;
  for (const auto& [rank, card] : *cards)
    for (const auto& [other, others] : *cards)
      if (rank < other && same_device(static_cast<int>(card[0]), static_cast<int>(others[0]))) return ncclInvalidUsage;
  return ncclSuccess;
}

void init(ncclComm_t* result, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  require(result != nullptr && size >= 1 && rank >= 0 && rank < size, ncclInvalidArgument);
  *result = nullptr;
  auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->device = current_device();
  configure(*comm, config);
  {
    const std::lock_guard lock(all().mutex);
    const auto found = all().ids.find(key_of(id));
    require(found != all().ids.end(), ncclSystemError);  // nobody listens there
    if (found->second == nullptr) found->second = std::make_shared<Clique>(size);
    comm->clique = found->second;
  }
  require(comm->clique->size == static_cast<std::size_t>(size), ncclInternalError);
  *result = add(comm);
  launch_job({comm}, [comm, handle = *result, id, result] {
    const ncclResult_t code = meet(*comm);
    {
      const std::lock_guard lock(all().mutex);
      all().ids.erase(key_of(id));
    }
    if (code != ncclSuccess) remember("ncclCommInitRank", code);
    if (code != ncclSuccess && comm->blocking) {
      remove(handle);
      *result = nullptr;
    }
    return code;
  });
}

/// A communicator of some of another's ranks: those whose cards have the same first number, ordered by the second.
void make_child(const std::shared_ptr<Comm>& parent, const std::string& key, std::int64_t color, std::int64_t order,
                std::size_t expected, ncclComm_t* result, const ncclConfig_t* config) {
  require(result != nullptr, ncclInvalidArgument);
  *result = nullptr;
  auto comm = std::make_shared<Comm>();
  comm->device = parent->device;
  comm->blocking = parent->blocking;
  configure(*comm, config);
  const bool takes_part = color != NCCL_SPLIT_NOCOLOR;
  if (takes_part) comm->clique = std::make_shared<Clique>(1);  // until the others have joined
  launch_job({parent, comm}, [=] {
    const auto cards = parent->clique->gather(key, parent->rank, {color, order, parent->device}, expected,
                                              [&] { return parent->stopped || comm->stopped; });
    if (!cards) return ncclInternalError;
    if (!takes_part) return ncclSuccess;
    std::vector<std::pair<std::int64_t, int>> members;
    for (const auto& [rank, card] : *cards)
      if (card[0] == color) members.emplace_back(card[1], rank);
    std::ranges::sort(members);
    const auto mine = std::ranges::find(members, std::pair(order, parent->rank));
    comm->rank = static_cast<int>(mine - members.begin());
    auto clique = parent->clique->child(key + " color " + std::to_string(color), static_cast<int>(members.size()));
    for (const auto& [rank, card] : *cards)
      if (card[0] == color) clique->join(static_cast<int>(card[2]));
    {
      const std::lock_guard lock(comm->mutex);
      comm->clique = std::move(clique);
    }
    *result = add(comm);
    return ncclSuccess;
  });
}

void stop(Comm& comm) {
  comm.stopped = true;
  const std::lock_guard lock(comm.mutex);
  comm.clique->wake();
}

}  // namespace

bool Comm::hangs() const {
  const std::lock_guard lock(all().mutex);
  return error != ncclSuccess || all().never.contains(rank);
}

void never_arrives(int rank, bool never) {
  const std::lock_guard lock(all().mutex);
  if (never)
    all().never.insert(rank);
  else
    all().never.erase(rank);
}

void nccl_version(int code) { all_version() = code; }

void async_error(ncclComm_t handle, ncclResult_t code) {
  const auto comm = comm_of(handle);
  comm->error = code;
  if (code == ncclRemoteError) comm->proxy_failed = true;
  comm->clique->wake();
  remember("an operation on the network", code);
}

void async_error(int rank, ncclResult_t code) {
  std::vector<ncclComm_t> handles;
  {
    const std::lock_guard lock(all().mutex);
    for (const auto& [handle, comm] : all().alive)
      if (comm->rank == rank && comm->used) handles.push_back(handle);
  }
  for (const ncclComm_t handle : handles) async_error(handle, code);
}

void remember(const char* function, ncclResult_t code) {
  const std::lock_guard lock(all().mutex);
  all().words.push_back(std::string("stand-in: ") + function + ": " + ncclGetErrorString(code));
}

std::shared_ptr<Comm> comm_of(ncclComm_t handle) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().alive.find(handle);
  require(found != all().alive.end(), ncclInvalidArgument);
  return found->second;
}

void ensure_ready(const Comm& comm) {
  require(comm.jobs == 0 && !comm.unasked, ncclInvalidArgument);
  if (comm.error != ncclSuccess) fail(comm.error.load());
  require(!comm.revoked && !comm.finalized, ncclInvalidUsage);
}

std::size_t live_communicators() {
  const std::lock_guard lock(all().mutex);
  return all().alive.size();
}

}  // namespace standin

using namespace standin;

ncclResult_t ncclGetVersion(int* version) {
  return nccl_called("ncclGetVersion", [&] {
    require(version != nullptr, ncclInvalidArgument);
    *version = all_version();
  });
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  const std::lock_guard lock(all().mutex);
  return all().words.back().c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_called("ncclGetUniqueId", [&] {
    require(id != nullptr, ncclInvalidArgument);
    *id = ncclUniqueId{};
    const std::lock_guard lock(all().mutex);
    const std::uintptr_t number = ++all().number;
    std::memcpy(id->internal, &number, sizeof number);
    std::memset(id->internal + sizeof number, 0x1D, sizeof id->internal - sizeof number);
    all().ids[key_of(*id)] = nullptr;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl_called("ncclCommInitRankConfig", [&] { init(comm, size, id, rank, config); });
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return nccl_called("ncclCommInitRank", [&] { init(comm, size, id, rank, nullptr); });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int order, ncclComm_t* result, ncclConfig_t* config) {
  return said_early(nccl_called("ncclCommSplit", [&] {
    const auto comm = comm_of(handle);
    require(comm->jobs == 0, ncclInvalidArgument);
    require(comm->error == ncclSuccess && !comm->finalized, ncclInvalidUsage);
    require(color >= 0 || color == NCCL_SPLIT_NOCOLOR, ncclInvalidArgument);
    require(comm->running == 0, ncclInvalidUsage);  // NCCL may hang
    make_child(comm, "split " + std::to_string(comm->children++), color, order, comm->clique->size, result, config);
  }));
}

ncclResult_t ncclCommShrink(ncclComm_t handle, int* excluded, int count, ncclComm_t* result, ncclConfig_t* config,
                            int flags) {
  return said_early(nccl_called("ncclCommShrink", [&] {
    const auto comm = comm_of(handle);
    require(excluded != nullptr && count > 0 && static_cast<std::size_t>(count) < comm->clique->size,
            ncclInvalidArgument);
    require(flags == NCCL_SHRINK_DEFAULT || flags == NCCL_SHRINK_ABORT, ncclInvalidArgument);
    const std::set<int> gone(excluded, excluded + count);
    require(gone.size() == static_cast<std::size_t>(count) && !gone.contains(comm->rank), ncclInvalidArgument);
    std::string key = "shrink without";
    for (const int rank : gone) {
      require(rank >= 0 && static_cast<std::size_t>(rank) < comm->clique->size, ncclInvalidArgument);
      key += ' ' + std::to_string(rank);
    }
    if (flags == NCCL_SHRINK_ABORT) {
      stop(*comm);
      wait_until_idle(*comm);
      comm->stopped = false;
      comm->error = ncclSuccess;
      if (comm->proxy_failed) fail(ncclRemoteError);  // kept by the proxy, where it is found again
    } else {
      require(comm->jobs == 0, ncclInvalidArgument);
      if (comm->error != ncclSuccess) fail(comm->error.load());
      require(comm->running == 0, ncclInvalidUsage);  // NCCL may hang
    }
    make_child(comm, key, 0, comm->rank, comm->clique->size - gone.size(), result, config);
  }));
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return nccl_called("ncclCommFinalize", [&] {
    const auto comm = comm_of(handle);
    ensure_ready(*comm);
    comm->finalized = true;
    launch_job({comm}, [comm] {
      wait_for_operations(*comm);
      wait_for_graphs(*comm);
      return ncclSuccess;
    });
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return nccl_called("ncclCommDestroy", [&] {
    const auto comm = comm_of(handle);
    wait_until_idle(*comm);  // indefinitely, if a peer does not join
    wait_for_graphs(*comm);
    remove(handle);
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return nccl_called("ncclCommAbort", [&] {
    const auto comm = comm_of(handle);
    stop(*comm);
    remove(handle);
    wait_until_idle(*comm);
    wait_for_graphs(*comm);
    drop_registrations(handle);
  });
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
  return nccl_called("ncclCommRevoke", [&] {
    require(flags == NCCL_REVOKE_DEFAULT, ncclInvalidArgument);
    const auto comm = comm_of(handle);
    require(!comm->finalized, ncclInvalidUsage);
    comm->revoked = true;
    stop(*comm);
    wait_until_idle(*comm);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* code) {
  return nccl_called("ncclCommGetAsyncError", [&] {
    require(code != nullptr, ncclInvalidArgument);
    const auto comm = comm_of(handle);
    *code = comm->unasked.exchange(false) || comm->jobs > 0 ? ncclInProgress : comm->error.load();
  });
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  return nccl_called("ncclCommCount", [&] {
    require(count != nullptr, ncclInvalidArgument);
    const auto comm = comm_of(handle);
    require(comm->jobs == 0, ncclInvalidArgument);
    *count = static_cast<int>(comm->clique->size);
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return nccl_called("ncclCommUserRank", [&] {
    require(rank != nullptr, ncclInvalidArgument);
    const auto comm = comm_of(handle);
    require(comm->jobs == 0, ncclInvalidArgument);
    *rank = comm->rank;
  });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  return nccl_called("ncclCommCuDevice", [&] {
    require(device != nullptr, ncclInvalidArgument);
    const auto comm = comm_of(handle);
    require(comm->jobs == 0, ncclInvalidArgument);
    *device = comm->device;
  });
}
