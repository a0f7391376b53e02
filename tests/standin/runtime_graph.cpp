// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions on captures and graphs. A graph runs on separate streams, one for each stream that was
// captured, so that an order that was not captured is not kept.
#include <map>
#include <set>
#include <utility>

#include "standin/capture.hpp"
#include "standin/device.hpp"

namespace standin {

namespace {

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<Stream>> streams;  ///< of an instance
  std::map<const Stream*, std::size_t> stream_of;
  bool keeps_memory = false;  ///< allocates memory that it does not free, so it can be launched once
  bool launched = false;
  Point last;  ///< of an instance: two launches of it do not overlap
};

struct Graphs {
  std::mutex captures;
  std::map<const Stream*, std::shared_ptr<Capture>> capturing;
  std::mutex mutex;
  std::map<cudaGraph_t, Graph> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> instances;
  std::uintptr_t number = 0;

  static constexpr std::uintptr_t first_graph = 0x6A000000, first_instance = 0x6E000000;

  /// The graph, or instance, of a handle. @pre the lock is held
  /// @{
  Graph& of(cudaGraph_t handle) { return of(graphs, handle, "graph", first_graph); }
  std::shared_ptr<Graph>& of(cudaGraphExec_t handle) {
    return of(instances, handle, "instance of a graph", first_instance);
  }
  /// @}

 private:
  template <class Handle, class T>
  T& of(std::map<Handle, T>& alive, Handle handle, const char* what, std::uintptr_t first) const {
    const auto found = alive.find(handle);
    if (found != alive.end()) return found->second;
    const auto address = reinterpret_cast<std::uintptr_t>(handle);
    forbid_destroyed(what, address > first && address <= first + 16 * number);
    fail(cudaErrorInvalidValue);
  }
};

Graphs& all() {
  static auto* graphs = new Graphs;
  return *graphs;
}

/// Returns these nodes and all nodes before them.
std::set<std::size_t> before(const std::vector<Node>& nodes, const std::set<std::size_t>& ends) {
  std::set<std::size_t> reached = ends;
  for (std::size_t i = nodes.size(); i-- > 0;)
    if (reached.contains(i)) reached.insert(nodes[i].after.begin(), nodes[i].after.end());
  return reached;
}

/// Streams that took part without coming back to the first one leave work that nobody would wait for.
bool joined(const Capture& capture) {
  const auto reached = before(capture.nodes, capture.branches.at(capture.origin.get()).after);
  return reached.size() == capture.nodes.size();
}

}  // namespace

std::mutex& capture_mutex() { return all().captures; }

std::shared_ptr<Capture> capture_of(const Stream& stream) {
  const auto found = all().capturing.find(&stream);
  return found == all().capturing.end() ? nullptr : found->second;
}

void join(const std::shared_ptr<Capture>& capture, const std::shared_ptr<Stream>& stream,
          const std::set<std::size_t>& after) {
  require(stream->kind != Stream::Kind::legacy, cudaErrorStreamCaptureImplicit);
  const auto own = capture_of(*stream);
  if (own != nullptr && own != capture) {
    own->invalid = capture->invalid = true;
    fail(cudaErrorStreamCaptureMerge);
  }
  require(all().capturing.contains(capture->origin.get()), cudaErrorCapturedEvent);  // of a capture that has ended
  all().capturing[stream.get()] = capture;
  Capture::Branch& branch = capture->branches[stream.get()];
  branch.stream = stream;
  branch.after.insert(after.begin(), after.end());
}

/// What cudaThreadExchangeStreamCaptureMode sets.
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

bool capturing_on(int device) {
  const std::lock_guard lock(capture_mutex());
  for (const auto& [stream, capture] : all().capturing)
    if (stream->device == device && stream->kind == Stream::Kind::blocking) return true;
  return false;
}

void forbid_while_capturing() {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return;
  const std::lock_guard lock(capture_mutex());
  for (const auto& [stream, capture] : all().capturing)
    require(capture->mode != cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported);
}

std::size_t live_graphs() {
  const std::lock_guard lock(all().mutex);
  return all().graphs.size() + all().instances.size();
}

}  // namespace standin

using namespace standin;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return runtime_called("cudaStreamBeginCapture", [&] {
    const auto stream = stream_of(handle, current_device());
    require(stream->kind != Stream::Kind::legacy, cudaErrorStreamCaptureUnsupported);
    const std::lock_guard lock(capture_mutex());
    require(capture_of(*stream) == nullptr, cudaErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->mode = mode;
    capture->branches[stream.get()].stream = stream;
    all().capturing[stream.get()] = capture;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return runtime_called("cudaStreamEndCapture", [&] {
    require(graph != nullptr, cudaErrorInvalidValue);
    *graph = nullptr;
    const auto stream = stream_of(handle, current_device());
    std::shared_ptr<Capture> capture;
    {
      const std::lock_guard lock(capture_mutex());
      capture = capture_of(*stream);
      require(capture != nullptr, cudaErrorIllegalState);
      require(capture->origin == stream, cudaErrorStreamCaptureUnmatched);
      for (const auto& [branch, which] : capture->branches) all().capturing.erase(branch);
    }
    require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    require(joined(*capture), cudaErrorStreamCaptureUnjoined);
    const std::lock_guard lock(all().mutex);
    *graph = reinterpret_cast<cudaGraph_t>(Graphs::first_graph + 16 * ++all().number);
    all().graphs[*graph].keeps_memory = !capture->memory.empty();
    all().graphs[*graph].nodes = std::move(capture->nodes);
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return runtime_called("cudaThreadExchangeStreamCaptureMode", [&] {
    require(mode != nullptr, cudaErrorInvalidValue);
    std::swap(*mode, mode_of_thread);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return runtime_called("cudaStreamIsCapturing", [&] {
    require(status != nullptr, cudaErrorInvalidValue);
    const auto stream = stream_of(handle, current_device());
    require(stream->kind != Stream::Kind::legacy || !capturing_on(stream->device), cudaErrorStreamCaptureImplicit);
    const std::lock_guard lock(capture_mutex());
    const auto capture = capture_of(*stream);
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long flags) {
  return runtime_called("cudaGraphInstantiate", [&] {
    require(instance != nullptr && flags == 0, cudaErrorInvalidValue);
    const std::lock_guard lock(all().mutex);
    auto made = std::make_shared<Graph>(all().of(graph));
    for (const Node& node : made->nodes)
      if (made->stream_of.emplace(node.stream, made->streams.size()).second)
        made->streams.push_back(
            std::make_shared<Stream>(current_device(), Stream::Kind::free, static_cast<unsigned>(7 * ++all().number)));
    *instance = reinterpret_cast<cudaGraphExec_t>(Graphs::first_instance + 16 * ++all().number);
    all().instances[*instance] = std::move(made);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  return runtime_called("cudaGraphLaunch", [&] {
    const auto stream = stream_of(stream_handle, current_device());
    const std::lock_guard lock(all().mutex);
    const std::shared_ptr<Graph> graph = all().of(handle);
    require(!graph->keeps_memory || !std::exchange(graph->launched, true), cudaErrorInvalidValue);
    const Point begin = enqueue(stream, [] {}, {graph->last});
    std::vector<Point> points;
    for (const Node& node : graph->nodes) {
      std::vector<Point> after{begin};
      for (const std::size_t earlier : node.after) after.push_back(points[earlier]);
      points.push_back(graph->streams[graph->stream_of.at(node.stream)]->enqueue(node.work, std::move(after)));
    }
    graph->last = enqueue(stream, [graph] {}, points);
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return runtime_called("cudaGraphDestroy", [&] {
    const std::lock_guard lock(all().mutex);
    static_cast<void>(all().of(graph));
    all().graphs.erase(graph);
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  return runtime_called("cudaGraphExecDestroy", [&] {
    const std::lock_guard lock(all().mutex);
    for (const auto& stream : all().of(instance)->streams) stream->close();
    all().instances.erase(instance);
  });
}
