// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "standin/runtime.hpp"

// Streams that are being captured: the work enqueued on them becomes nodes of a graph.
namespace standin {

struct Node {
  Work work;
  const Stream* stream = nullptr;
  std::set<std::size_t> after;  ///< nodes before it, its stream's last one among them
};

/// The nodes and streams that one capture has recorded so far.
struct Capture {
  struct Branch {
    std::shared_ptr<Stream> stream;
    std::set<std::size_t> after;  ///< what its next node comes after
  };

  std::shared_ptr<Stream> origin;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<Node> nodes;
  std::map<const Stream*, Branch> branches;
  std::set<void*> memory;  ///< that nodes allocate and none frees yet
  bool invalid = false;
};

/// All below is called under this mutex's lock.
[[nodiscard]] std::mutex& capture_mutex();
/// The capture that a stream takes part in, or null.
[[nodiscard]] std::shared_ptr<Capture> capture_of(const Stream& stream);
/// A stream takes part from now on, after these nodes.
void join(const std::shared_ptr<Capture>& capture, const std::shared_ptr<Stream>& stream,
          const std::set<std::size_t>& after);

}  // namespace standin
