// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NCCL's groups, and how operations come to their streams.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "standin/capture.hpp"
#include "standin/nccl_comm.hpp"

namespace standin {

namespace {

/// Operations of one communicator on one stream, which run as one.
struct Batch {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<Stream> stream;
  std::vector<Op> ops;
};

struct Job {
  std::vector<std::shared_ptr<Comm>> comms;
  std::function<ncclResult_t()> run;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Batch> batches;
  std::vector<Job> jobs;
};

thread_local Group group;

bool is_capturing(const Stream& stream) {
  const std::lock_guard lock(capture_mutex());
  return capture_of(stream) != nullptr;
}

/// Counts the graphs, and their instances, that have operations of a communicator.
std::shared_ptr<void> reference_of_graph(const std::shared_ptr<Comm>& comm) {
  ++comm->in_graphs;
  return {nullptr, [comm](void*) { --comm->in_graphs; }};
}

void enqueue_batch(const Batch& batch) {
  const std::lock_guard lock(batch.comm->mutex);
  if (is_capturing(*batch.stream)) {
    enqueue(batch.stream,
            [comm = batch.comm, ops = batch.ops, reference = reference_of_graph(batch.comm)] {
              ++comm->running;
              comm->clique->run(*comm, ops);
              --comm->running;
              comm->clique->wake();
            },
            {});
    return;
  }
  ++batch.comm->running;
  const auto run = [comm = batch.comm, ops = batch.ops] {
    comm->clique->run(*comm, ops);
    --comm->running;
    comm->clique->wake();
  };
  // Operations of one communicator run one after the other, regardless of their streams.
  batch.comm->last = enqueue(batch.stream, run, {batch.comm->last});
}

/// Runs in the background: until it has ended, the communicators' state is ncclInProgress.
void in_background(const std::vector<std::shared_ptr<Comm>>& comms, std::function<ncclResult_t()> run) {
  for (const auto& comm : comms) ++comm->jobs;
  std::thread([comms, run = std::move(run)] {
    const ncclResult_t code = run();
    for (const auto& comm : comms) {
      if (code != ncclSuccess) comm->error = code;
      --comm->jobs;
    }
  }).detach();
}

std::vector<Op> ops_of(const std::vector<Batch>& batches) {
  std::vector<Op> ops;
  for (const Batch& batch : batches) ops.insert(ops.end(), batch.ops.begin(), batch.ops.end());
  return ops;
}

/// Connects and enqueues one communicator's operations.
ncclResult_t connect_and_enqueue(const std::vector<Batch>& batches) {
  const ncclResult_t code = connect(*batches.front().comm, ops_of(batches));
  if (code == ncclSuccess)
    for (const Batch& batch : batches) enqueue_batch(batch);
  return code;
}

/// Each communicator proceeds by itself: one that blocks holds the caller, of the others only the state tells.
/// @return ncclInProgress if something is in progress
ncclResult_t start(const std::vector<Batch>& batches) {
  std::vector<std::vector<Batch>> by_comm;
  for (const Batch& batch : batches) {
    const auto same = [&](const auto& other) { return other.front().comm == batch.comm; };
    const auto found = std::ranges::find_if(by_comm, same);
    if (found == by_comm.end())
      by_comm.push_back({batch});
    else
      found->push_back(batch);
  }
  ncclResult_t result = ncclSuccess;
  std::vector<std::thread> threads;
  std::vector<ncclResult_t> results(by_comm.size(), ncclSuccess);
  for (std::size_t i = 0; i < by_comm.size(); ++i) {
    const auto& own = by_comm[i];
    const auto& comm = own.front().comm;
    if (std::ranges::any_of(own, [](const Batch& batch) { return is_capturing(*batch.stream); })) {
      results[i] = connect_and_enqueue(own);
    } else if (!comm->blocking) {
      // NCCL has a thread for every group. Here some have one, and the others are done with at once.
      if (comm->issued++ % 8 == 0 || needs_connecting(*comm, ops_of(own))) {
        in_background({comm}, [own] { return connect_and_enqueue(own); });
      } else {
        comm->unasked = true;
        results[i] = connect_and_enqueue(own);
      }
      result = ncclInProgress;
    } else if (by_comm.size() == 1) {
      results[i] = connect_and_enqueue(own);
    } else {
      threads.emplace_back([&results, &own, i] { results[i] = connect_and_enqueue(own); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const ncclResult_t code : results)
    if (code != ncclSuccess) result = code;
  return result;
}

ncclResult_t run(const std::vector<Job>& jobs) {
  ncclResult_t result = ncclSuccess;
  std::vector<std::thread> threads;
  std::vector<ncclResult_t> results(jobs.size(), ncclSuccess);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!jobs[i].comms.front()->blocking) {
      in_background(jobs[i].comms, jobs[i].run);
      result = ncclInProgress;
    } else {
      threads.emplace_back([&results, &jobs, i] { results[i] = jobs[i].run(); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const ncclResult_t code : results)
    if (code != ncclSuccess) result = code;
  return result;
}

}  // namespace

void note_in_group(ncclResult_t code) {
  if (group.depth > 0 && group.error == ncclSuccess && code != ncclInProgress) group.error = code;
}

void launch(const std::shared_ptr<Comm>& comm, cudaStream_t handle, Op op) {
  const auto stream = stream_of(handle, comm->device);
  require(stream->device == comm->device, ncclUnhandledCudaError);
  if (group.depth == 0) {
    const ncclResult_t code = start({{comm, stream, {op}}});
    if (code != ncclSuccess) fail(code);
    return;
  }
  for (Batch& batch : group.batches) {
    if (batch.comm != comm || batch.stream != stream) continue;
    batch.ops.push_back(op);
    return;
  }
  group.batches.push_back({comm, stream, {op}});
}

void launch_job(const std::vector<std::shared_ptr<Comm>>& comms, std::function<ncclResult_t()> job) {
  if (group.depth > 0) {
    group.jobs.push_back({comms, std::move(job)});
    return;
  }
  ncclResult_t code = ncclInProgress;
  if (comms.front()->blocking)
    code = job();
  else
    in_background(comms, std::move(job));
  if (code != ncclSuccess) fail(code);
}

void wait_for_operations(const Comm& comm) {
  while (comm.running > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void wait_for_graphs(const Comm& comm) {
  while (comm.in_graphs > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void wait_until_idle(const Comm& comm) {
  while (comm.running > 0 || comm.jobs > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace standin

using namespace standin;

ncclResult_t ncclGroupStart() {
  return nccl_called("ncclGroupStart", [] { ++group.depth; });
}

ncclResult_t ncclGroupEnd() {
  return nccl_called("ncclGroupEnd", [] {
    require(group.depth > 0, ncclInvalidUsage);
    if (--group.depth > 0) return;
    const Group all = std::exchange(group, Group());
    if (all.error != ncclSuccess) fail(all.error);
    require(all.jobs.empty() || all.batches.empty(), ncclInvalidUsage);  // not both together
    const ncclResult_t code = all.jobs.empty() ? start(all.batches) : run(all.jobs);
    if (code != ncclSuccess) fail(code);
  });
}
