// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How NCCL connects at first use: collectives by algorithm, all ranks together; messages by peer, where both sides have
// to connect the same in the same call.
#include "standin/nccl_comm.hpp"

namespace standin {

namespace {

using What = Op::What;

constexpr std::size_t large = std::size_t{1} << 20;

/// Names the connection that a collective needs: NCCL chooses by operation and size.
std::string algorithm_of(const Op& op) {
  if (op.what != What::all_reduce) return "ring";
  return op.count * bytes_of(op.type) < large ? "tree" : "large";
}

/// Takes note of the peers of an operation that consists of messages.
void note_peers(const Op& op, const Comm& comm, Connections& needed) {
  const bool is_root = op.root == comm.rank;
  const auto every_rank = [&](std::set<int>& peers) {
    for (int rank = 0; rank < static_cast<int>(comm.clique->size); ++rank) peers.insert(rank);
  };
  switch (op.what) {
    case What::send:
      needed.sends.insert(op.root);
      break;
    case What::receive:
      needed.receives.insert(op.root);
      break;
    case What::all_to_all:
      every_rank(needed.sends);
      every_rank(needed.receives);
      break;
    case What::gather:
      if (is_root) every_rank(needed.receives);
      needed.sends.insert(op.root);
      break;
    case What::scatter:
      if (is_root) every_rank(needed.sends);
      needed.receives.insert(op.root);
      break;
    default:
      needed.algorithms.insert(algorithm_of(op));
  }
}

/// Returns the connections that the operations need and that are not there yet.
Connections missing(const Comm& comm, const std::vector<Op>& ops) {
  Connections needed;
  for (const Op& op : ops) note_peers(op, comm, needed);
  for (const auto& name : comm.connections.algorithms) needed.algorithms.erase(name);
  for (const int peer : comm.connections.sends) needed.sends.erase(peer);
  for (const int peer : comm.connections.receives) needed.receives.erase(peer);
  needed.sends.erase(comm.rank);
  needed.receives.erase(comm.rank);
  return needed;
}

/// NCCL's exchange with the peers at each distance. It takes for granted that a peer's message mirrors this rank's.
ncclResult_t connect_peers(Comm& comm, const Connections& needed) {
  const auto stopped = [&] { return comm.stopped.load(); };
  const int size = static_cast<int>(comm.clique->size);
  const auto post = [&](int peer, const std::string& key, Clique::Card card) {
    comm.clique->post(comm.rank, peer, key, std::move(card));
  };
  const auto take = [&](int peer, const std::string& key) { return comm.clique->take(peer, comm.rank, key, stopped); };
  for (const std::string step : {"connect at distance ", "connected at distance "})
    for (int distance = 1; distance < size; ++distance) {
      const int to = (comm.rank + distance) % size, from = (comm.rank + size - distance) % size;
      const std::int64_t sends = needed.sends.contains(to) ? 1 : 0, receives = needed.receives.contains(from) ? 1 : 0;
      const std::string key = step + std::to_string(distance);
      if (sends + receives == 0) continue;
      if (to == from) {
        // One message for both directions: of another length it is truncated, of the same length misread.
        post(to, key, {sends, receives});
        const auto theirs = take(to, key);
        if (!theirs || *theirs != Clique::Card{receives, sends}) return ncclInternalError;
        continue;
      }
      if (receives != 0) post(from, key + " upwards", {});
      if (sends != 0) post(to, key + " downwards", {});
      if (sends != 0 && !take(to, key + " upwards")) return ncclInternalError;
      if (receives != 0 && !take(from, key + " downwards")) return ncclInternalError;
    }
  return ncclSuccess;
}

}  // namespace

bool needs_connecting(const Comm& comm, const std::vector<Op>& ops) {
  const Connections needed = missing(comm, ops);
  return !needed.algorithms.empty() || !needed.sends.empty() || !needed.receives.empty();
}

ncclResult_t connect(Comm& comm, const std::vector<Op>& ops) {
  comm.used = true;
  const Connections needed = missing(comm, ops);
  for (const auto& name : needed.algorithms) {
    const auto met =
        comm.clique->gather("connect " + name, comm.rank, {}, comm.clique->size, [&] { return comm.stopped.load(); });
    if (!met) return ncclInternalError;
  }
  const ncclResult_t code = connect_peers(comm, needed);
  if (code != ncclSuccess) {
    remember("first contact: Message truncated, or connection data of another kind", code);
    return code;
  }
  comm.connections.algorithms.insert(needed.algorithms.begin(), needed.algorithms.end());
  comm.connections.sends.insert(needed.sends.begin(), needed.sends.end());
  comm.connections.receives.insert(needed.receives.begin(), needed.receives.end());
  return ncclSuccess;
}

}  // namespace standin
