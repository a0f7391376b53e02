// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The c10d backend: every collective of torch.distributed, on CPU tensors over the memory that the ranks of a host
// share, on CUDA tensors over NCCL.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <distx/comm/calls/make_op.hpp>

#include "cuda.hpp"
#include "group.hpp"

namespace distx_torch {

namespace {

using c10d::OpType;
using distx::calls::Call;
using distx::calls::CollectiveKind;
using Counts = std::vector<std::size_t>;

// --- Reductions

/// A reduction in distx's terms: a tensor whose elements the op reduces.
struct Reduction {
  Reduction(const c10d::ReduceOp& op, const at::Tensor& t) : op_(op) {
    using enum distx::OpKind;
    const auto type = t.scalar_type();
    const bool is_bool = type == at::kBool, is_complex = c10::isComplexType(type);
    distx::OpKind kind = sum;
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::PREMUL_SUM:
        kind = is_bool ? bit_or : sum;
        break;
      case c10d::ReduceOp::AVG:
        kind = average;
        break;
      case c10d::ReduceOp::PRODUCT:
        kind = is_bool ? bit_and : product;
        break;
      case c10d::ReduceOp::MIN:
        kind = min;
        break;
      case c10d::ReduceOp::MAX:
        kind = max;
        break;
      case c10d::ReduceOp::BAND:
        kind = bit_and;
        break;
      case c10d::ReduceOp::BOR:
        kind = bit_or;
        break;
      case c10d::ReduceOp::BXOR:
        kind = bit_xor;
        break;
      default:
        refuse("there is no such ReduceOp");
    }
    if (is_bool && t.is_cuda()) kind = kind == bit_or ? max : kind == bit_and ? min : kind;  // which NCCL has
    if (is_complex && kind != sum && kind != average)
      refuse("complex tensors can be summed and averaged, but " + std::string(name_of(kind)) + " is for real ones");
    try {
      any = distx::calls::make_op(kind, element_type_of(is_complex ? c10::toRealValueType(type) : type));
    } catch (const distx::InvalidArgument& error) {
      refuse(error.message());
    }
  }
  /// Returns the elements as the op takes them: a complex number is two.
  static Span<AnyElement> elements(const at::Tensor& t) {
    return distx_torch::elements(t.is_complex() ? at::view_as_real(t) : t);
  }
  /// Returns this rank's operand, contiguous.
  [[nodiscard]] at::Tensor operand(const at::Tensor& t) const {
    if (op_.op_ != c10d::ReduceOp::PREMUL_SUM) return packed(t);
    const auto* factor = static_cast<const c10d::NCCLPreMulSumSupplement*>(op_.supplement_.get());
    if (const auto& by = factor->tensor_factor; by.defined()) {
      // The caller may free it before this thread's stream has read it.
      if (by.is_cuda()) by.record_stream(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(by.device()));
      return packed(t.mul(by));
    }
    return packed(t.mul(factor->double_factor));
  }

  distx::calls::AnyOp any;

 private:
  c10d::ReduceOp op_;
};

// --- Work

/// A collective: its calls run on the thread that waits for it first, the caller's or the group's.
class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(std::shared_ptr<Group> group, OpType type, const char* title, const Tensors& inputs,
                 std::vector<Tensors> outputs, milliseconds timeout, Calls calls)
      : Work(group->rank, type, title, inputs),
        group_(std::move(group)),
        outputs_(std::move(outputs)),
        timeout_(timeout == c10d::kUnsetTimeout ? group_->timeout.load() : timeout),
        sequence_(++group_->sequence),
        calls_(std::move(calls)) {}

  /// Makes the calls now; later errors are thrown by `wait`.
  void run() noexcept {
    std::exception_ptr error;
    try {
      const at::NoGradGuard no_grad;
      group_->run(calls_);
    } catch (...) {
      error = translated(std::current_exception(), timeout_);
    }
    calls_ = nullptr;
    finish(error);
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      const std::lock_guard lock(mutex_);
      future = future_;
    }
    if (future) complete(*future);
  }
  void start() {
    group_->queued.fetch_add(1);
    struct Task final : distx::detail::ProgressTask {
      explicit Task(c10::intrusive_ptr<CollectiveWork> w) : work(std::move(w)) {}
      void run() override {
        auto& queued = work->group_->queued;
        work->run();
        work.reset();  // before the backend, which waits for this number, releases the group: it may not end here
        queued.fetch_sub(1);
      }
      c10::intrusive_ptr<CollectiveWork> work;
    };
    task_ = std::make_shared<Task>(c10::intrusive_ptr<CollectiveWork>::reclaim_copy(this));
    group_->thread.submit(task_);
  }

  bool wait(milliseconds timeout) override {
    if (timeout == kNoTimeout && timeout_ < group_->deadline) timeout = timeout_;  // else the calls end by themselves
    if (task_ != nullptr && !isCompleted()) {
      if (timeout == kNoTimeout) {
        group_->thread.wait(*task_);
      } else {
        std::unique_lock lock(mutex_);
        if (!cv_.wait_for(lock, timeout, [this] { return completed_; })) {
          lock.unlock();
          const auto text = "Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                            c10d::opTypeToString(opType_) + " to complete";
          group_->revoke(text);  // the other ranks cannot complete it either
          C10_THROW_ERROR(DistBackendError, "distx: " + text);
        }
      }
    }
    const std::lock_guard lock(mutex_);
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }
  void abort() override { group_->revoke("a process group was aborted"); }
  Tensors result() override {
    TORCH_CHECK(isCompleted(), "distx: the result is asked for before the work is complete; call wait()");
    return outputs_.empty() ? Tensors() : outputs_[0];
  }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  milliseconds getTimeout() const { return timeout_; }  // of newer PyTorch's Work
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    bool done = false;
    {
      const std::lock_guard lock(mutex_);
      if (future_) return future_;
      const auto list = c10::ListType::create(c10::TensorType::get());
      future_ = c10::make_intrusive<c10::ivalue::Future>(outputs_.size() > 1 ? c10::ListType::create(list) : list);
      done = completed_;
    }
    if (done) complete(*future_);
    return future_;
  }

 private:
  void complete(c10::ivalue::Future& future) {
    if (exception_)
      future.setErrorIfNeeded(exception_);
    else if (outputs_.size() > 1)
      future.markCompleted(c10::IValue(outputs_));
    else
      future.markCompleted(c10::IValue(outputs_.empty() ? Tensors() : outputs_[0]));
  }

  std::shared_ptr<Group> group_;
  std::vector<Tensors> outputs_;
  milliseconds timeout_;
  std::uint64_t sequence_;
  Calls calls_;
  std::shared_ptr<distx::detail::ProgressTask> task_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A message: completed by the thread that waits or asks.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(std::shared_ptr<Group> group, std::shared_ptr<Message> message, OpType type, const char* title)
      : Work(group->rank, type, title, Tensors{message->tensor}),
        group_(std::move(group)),
        message_(std::move(message)),
        sequence_(++group_->sequence) {}

  bool isCompleted() override { return poll(); }
  bool isSuccess() const override { return message_->done && !message_->error; }
  std::exception_ptr exception() const override { return message_->error; }
  int sourceRank() const override { return message_->peer; }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  bool wait(milliseconds timeout) override {
    if (timeout == kNoTimeout) timeout = group_->timeout;
    if (distx::detail::wait_until(
            timeout, [&] { return poll(); }, [] { return false; }) != distx::detail::WaitEnd::ready)
      C10_THROW_ERROR(DistBackendError, "distx: Timed out waiting " + std::to_string(timeout.count()) + "ms for " +
                                            (message_->sends ? "send" : "recv") + " operation to complete");
    if (message_->error) std::rethrow_exception(message_->error);
    return true;
  }
  void abort() override { group_->revoke("a message was aborted"); }
  Tensors result() override { return {message_->tensor}; }

 private:
  bool poll() {
    if (!group_->test(*message_)) return false;
    if (!ended_.exchange(true)) finish(message_->error);
    return true;
  }
  std::shared_ptr<Group> group_;
  std::shared_ptr<Message> message_;
  std::uint64_t sequence_;
  std::atomic<bool> ended_{false};
};

// --- The backend

class Backend final : public c10d::Backend {
 public:
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout)
      : c10d::Backend(rank, size),
        group_(std::make_shared<Group>(store, rank, size, timeout)),
        options_(c10::make_intrusive<Options>("distx", timeout)) {
    init();
  }
  ~Backend() override {
    std::optional<pybind11::gil_scoped_release> release;  // calls in flight may need it to complete
    if (Py_IsInitialized() && PyGILState_Check()) release.emplace();
    shutdown();
    group_.reset();
    gpus_.clear();
  }

  const std::string getBackendName() const override { return "distx"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override {
    if (timeout > group_->deadline)
      TORCH_WARN("distx: the group was made with a timeout of ", group_->deadline.count(), " ms, which stays");
    group_->timeout = options_->timeout = std::min(timeout, group_->deadline);
  }
  std::uint64_t getSequenceNumberForGroup() override { return group_->sequence; }
  void setSequenceNumberForGroup() override {}
  void abort() override { group_->revoke("the process group was aborted"), gpus_.abort(); }
  void shutdown() override {
    distx::detail::wait_until(
        distx::no_timeout, [this] { return group_->queued.load() == 0; }, [] { return false; });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    const auto t = only(tensors, "broadcast");
    check_dense(t);
    return make(OpType::BROADCAST, "distx:broadcast", tensors, {tensors}, o,
                [this, t, root = root_of(o)](const Execute& execute) {
                  const auto buffer = rank_ == root ? packed(t) : room_for(t);
                  auto call = call_of(CollectiveKind::broadcast, elements(buffer), elements(buffer));
                  call.root = root;
                  execute(call);
                  if (rank_ != root) unpack(buffer, t);
                });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    const auto t = only(tensors, "all_reduce");
    if (t.layout() == at::kSparse) return allreduce_sparse(tensors, o);
    check_dense(t);
    return make(OpType::ALLREDUCE, "distx:all_reduce", tensors, {tensors}, o,
                [this, t, by = Reduction(o.reduceOp, t)](const Execute& execute) { all_reduce(execute, t, by); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    std::vector<Reduction> by;
    for (const auto& t : tensors) check_dense(t), by.emplace_back(o.reduceOp, t);
    return make(OpType::ALLREDUCE_COALESCED, "distx:all_reduce", tensors, {tensors}, o,
                [this, tensors, by = std::move(by)](const Execute& execute) {
                  for (std::size_t i = 0; i < tensors.size(); ++i) all_reduce(execute, tensors[i], by[i]);
                });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    const auto t = only(tensors, "all_reduce");
    if (o.reduceOp.op_ != c10d::ReduceOp::SUM || !t.is_cpu())
      refuse("sparse tensors can be summed only, and in host memory");
    return make(
        OpType::_ALLREDUCE_SPARSE, "distx:sparse_all_reduce", tensors, {tensors}, o, [this, t](const Execute& execute) {
          const auto mine = t.coalesce();
          const auto count = at::full({1}, mine._nnz(), at::kLong);
          const auto counts = at::empty({size_}, at::kLong);
          all_gather(execute, count, counts);
          const auto gathered = [&](const at::Tensor& rows) {  // {nnz, …} of each rank
            auto sizes = rows.sizes().vec();
            const auto each = rows.numel() / std::max<std::int64_t>(sizes[0], 1);
            sizes[0] = counts.sum().item<std::int64_t>();
            const auto all = at::empty(sizes, rows.options());
            Counts parts;
            for (int r = 0; r < size_; ++r)
              parts.push_back(static_cast<std::size_t>(counts[r].item<std::int64_t>() * each_of(each, rows)));
            all_gather(execute, rows.contiguous(), all, parts);
            return all;
          };
          t.copy_(
              at::sparse_coo_tensor(gathered(mine.indices().t()).t(), gathered(mine.values()), t.sizes()).coalesce());
        });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    const auto t = only(tensors, "reduce");
    check_dense(t);
    return make(OpType::REDUCE, "distx:reduce", tensors, {tensors}, o,
                [this, t, root = root_of(o), by = Reduction(o.reduceOp, t)](const Execute& execute) {
                  const auto send = by.operand(t);
                  auto call = call_of(CollectiveKind::reduce, by.elements(send), by.elements(send));
                  call.root = root;
                  call.op = by.any;
                  execute(call);
                  if (rank_ == root) unpack(send, t);
                });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    const auto t = only(inputs, "all_gather");
    if (outputs.size() != 1) refuse("all_gather: pass one list of outputs");
    check_list(outputs[0], t, size_, "all_gather");
    check_sizes(outputs[0], t, "all_gather");
    check_dense(t);
    return make(OpType::ALLGATHER, "distx:all_gather", inputs, outputs, o,
                [this, t, out = outputs[0]](const Execute& execute) { all_gather(execute, t, out); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& o) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, o);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) override {
    check_lengths(outputs, inputs, "all_gather_into_tensor");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_blocks(outputs[i], inputs[i], "all_gather_into_tensor");
      check_list({outputs[i]}, inputs[i], 1, "all_gather_into_tensor");
    }
    return make(OpType::_ALLGATHER_BASE, "distx:all_gather", inputs, {outputs}, o,
                [this, outputs, inputs](const Execute& execute) {
                  for (std::size_t i = 0; i < inputs.size(); ++i) {
                    const auto all = room_for(outputs[i]);
                    all_gather(execute, packed(inputs[i]), all);
                    unpack(all, outputs[i]);
                  }
                });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& o) override {
    if (outputs.size() != static_cast<std::size_t>(size_)) refuse("all_gather_coalesced: pass one list for each rank");
    for (const auto& list : outputs) {
      if (list.size() != inputs.size()) refuse("all_gather_coalesced: the lists have different lengths");
      for (std::size_t i = 0; i < list.size(); ++i) {
        check_list({list[i]}, inputs[i], 1, "all_gather_coalesced");
        check_sizes({list[i]}, inputs[i], "all_gather_coalesced");
      }
    }
    return make(OpType::ALLGATHER_COALESCED, "distx:all_gather", inputs, outputs, o,
                [this, outputs, inputs](const Execute& execute) {
                  for (std::size_t i = 0; i < inputs.size(); ++i) {
                    Tensors out;
                    for (const auto& list : outputs) out.push_back(list[i]);
                    all_gather(execute, inputs[i], out);
                  }
                });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& o) override {
    const auto t = only(inputs, "gather");
    const int root = root_of(o);
    if (outputs.size() != (rank_ == root ? 1u : 0u)) refuse("gather: a list of outputs is passed on the root only");
    const Tensors out = rank_ == root ? outputs[0] : Tensors();
    if (rank_ == root) check_list(out, t, size_, "gather"), check_sizes(out, t, "gather");
    check_dense(t);
    return make(OpType::GATHER, "distx:gather", inputs, outputs, o, [this, t, out, root](const Execute& execute) {
      const auto send = packed(t);
      const auto all = rank_ == root ? room_for(out) : at::Tensor();
      auto call = call_of(CollectiveKind::gather, elements(send), rank_ == root ? elements(all) : Span<AnyElement>());
      call.root = root;
      execute(call);
      if (rank_ == root) split_into(all, out);
    });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& o) override {
    const auto t = only(outputs, "scatter");
    const int root = root_of(o);
    if (inputs.size() != (rank_ == root ? 1u : 0u)) refuse("scatter: a list of inputs is passed on the root only");
    const Tensors in = rank_ == root ? inputs[0] : Tensors();
    if (rank_ == root) check_list(in, t, size_, "scatter"), check_sizes(in, t, "scatter");
    check_dense(t);
    return make(OpType::SCATTER, "distx:scatter", in.empty() ? outputs : in, {outputs}, o,
                [this, t, in, root](const Execute& execute) {
                  const auto send = rank_ == root ? joined(in) : at::Tensor();
                  const auto receive = room_for(t);
                  auto call = call_of(CollectiveKind::scatter, rank_ == root ? elements(send) : Span<AnyElement>(),
                                      elements(receive));
                  call.root = root;
                  execute(call);
                  unpack(receive, t);
                });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& o) override {
    const auto t = only(outputs, "reduce_scatter");
    if (inputs.size() != 1) refuse("reduce_scatter: pass one list of inputs");
    check_list(inputs[0], t, size_, "reduce_scatter");
    check_sizes({inputs[0][static_cast<std::size_t>(rank_)]}, t, "reduce_scatter");
    check_dense(t);
    return make(OpType::REDUCE_SCATTER, "distx:reduce_scatter", inputs[0], {outputs}, o,
                [this, t, in = inputs[0], by = Reduction(o.reduceOp, t)](const Execute& execute) {
                  reduce_scatter(execute, joined(in), t, by, counts_of(in));
                });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& o) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, o);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& o) override {
    std::vector<Reduction> by;
    check_lengths(outputs, inputs, "reduce_scatter_tensor");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_blocks(inputs[i], outputs[i], "reduce_scatter_tensor");
      check_list({outputs[i]}, inputs[i], 1, "reduce_scatter_tensor");
      by.emplace_back(o.reduceOp, inputs[i]);
    }
    return make(OpType::_REDUCE_SCATTER_BASE, "distx:reduce_scatter", inputs, {outputs}, o,
                [this, outputs, inputs, by = std::move(by)](const Execute& execute) {
                  for (std::size_t i = 0; i < inputs.size(); ++i)
                    reduce_scatter(execute, inputs[i], outputs[i], by[i], {});
                });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& o) override {
    check_list(inputs, inputs.at(0), size_, "all_to_all");
    check_list(outputs, inputs[0], size_, "all_to_all");
    return make(OpType::ALLTOALL, "distx:all_to_all", inputs, {outputs}, o,
                [this, outputs, inputs](const Execute& execute) {
                  const auto receive = room_for(outputs);
                  all_to_all(execute, joined(inputs), receive, counts_of(inputs), counts_of(outputs));
                  split_into(receive, outputs);
                });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& o) override {
    check_list({output}, input, 1, "all_to_all_single");
    check_dense(input);
    const auto sent = split_counts(input, input_sizes), received = split_counts(output, output_sizes);
    return make(OpType::ALLTOALL_BASE, "distx:all_to_all", {input}, {{output}}, o,
                [this, output, input, sent, received](const Execute& execute) {
                  const auto receive = room_for(output);
                  all_to_all(execute, packed(input), receive, sent, received);
                  unpack(receive, output);
                });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    const Calls calls = [](const Execute& execute) { execute(Call<>(distx::calls::Barrier<>{})); };
    if (!group_->for_cuda && (!has_cuda || o.device_ids.empty()))
      return make(OpType::BARRIER, nullptr, {}, {}, o, calls);
    const auto bound = getBoundDeviceId();
    const int gpu = !o.device_ids.empty() ? static_cast<int>(o.device_ids[0])
                    : bound               ? bound->index()
                                          : Gpus::current();
    return gpus_.of(*group_, gpu)
        ->collective(OpType::BARRIER, nullptr, Tensors(), std::vector<Tensors>(), ++group_->sequence, calls);
  }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_for_all) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return message(OpType::SEND, only(tensors, "send"), to, tag, "distx:send");
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return message(OpType::RECV, only(tensors, "recv"), from, tag, "distx:recv");
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return message(OpType::RECVANYSOURCE, only(tensors, "recv"), -1, tag, "distx:recvAnySource");
  }
  /// Makes the communicator of a GPU, before the first call. Collective.
  void connect(int gpu) { static_cast<void>(gpus_.of(*group_, gpu)); }

 private:
  template <class Options>
  [[nodiscard]] int root_of(const Options& o) const {
    if (o.rootRank < 0 || o.rootRank >= size_)
      refuse("invalid root " + std::to_string(o.rootRank) + ": must be in [0, " + std::to_string(size_) + ")");
    return static_cast<int>(o.rootRank);
  }
  void check_blocks(const at::Tensor& all, const at::Tensor& one, const char* operation) const {
    check_dense(all), check_dense(one);
    if (all.numel() != one.numel() * size_)
      refuse(std::string(operation) + ": a tensor of " + std::to_string(all.numel()) + " elements for " +
             std::to_string(size_) + " blocks of " + std::to_string(one.numel()));
  }
  [[nodiscard]] Counts split_counts(const at::Tensor& t, const std::vector<std::int64_t>& sizes) const {
    c10d::checkSplitSizes(sizes, t, size_);
    Counts counts;
    const std::int64_t rows = t.dim() > 0 ? t.size(0) : 0, each = rows > 0 ? t.numel() / rows : 0;
    for (int r = 0; r < size_; ++r)
      counts.push_back(
          static_cast<std::size_t>(each * (sizes.empty() ? rows / size_ : sizes[static_cast<std::size_t>(r)])));
    return counts;
  }
  [[nodiscard]] static std::int64_t each_of(std::int64_t each, const at::Tensor& rows) {
    if (rows.size(0) > 0) return each;
    std::int64_t product = 1;
    for (std::int64_t d = 1; d < rows.dim(); ++d) product *= rows.size(d);
    return product;
  }

  static Call<> call_of(CollectiveKind kind, Span<AnyElement> send, Span<AnyElement> receive) {
    Call<> call;
    call.kind = kind;
    call.send = send;
    call.receive = receive;
    return call;
  }

  void all_reduce(const Execute& execute, const at::Tensor& t, const Reduction& by) {
    const auto buffer = by.operand(t);
    auto call = call_of(CollectiveKind::all_reduce, by.elements(buffer), by.elements(buffer));
    call.op = by.any;
    execute(call);
    unpack(buffer, t);
  }
  void all_gather(const Execute& execute, const at::Tensor& send, const at::Tensor& all, const Counts& counts = {}) {
    auto call = call_of(CollectiveKind::all_gather, elements(send), elements(all));
    call.counts = counts;
    execute(call);
  }
  void all_gather(const Execute& execute, const at::Tensor& t, const Tensors& out) {
    const auto all = room_for(out);
    all_gather(execute, packed(t), all);
    split_into(all, out);
  }
  void reduce_scatter(const Execute& execute, const at::Tensor& in, const at::Tensor& out, const Reduction& by,
                      Counts counts) {
    const auto send = by.operand(in), receive = room_for(out);
    if (in.is_complex())
      for (auto& count : counts) count *= 2;
    auto call = call_of(CollectiveKind::reduce_scatter, by.elements(send), by.elements(receive));
    call.op = by.any;
    call.counts = counts;
    execute(call);
    unpack(receive, out);
  }
  void all_to_all(const Execute& execute, const at::Tensor& send, const at::Tensor& receive, const Counts& sent,
                  const Counts& received) {
    auto call = call_of(CollectiveKind::all_to_all, elements(send), elements(receive));
    call.counts = sent;
    call.receive_counts = received;
    execute(call);
  }

  WorkPtr message(OpType type, const at::Tensor& t, int peer, int tag, const char* title) {
    check_dense(t);
    if (t.is_cuda()) {
      if (type == OpType::RECVANYSOURCE) refuse("recv: NCCL receives from a rank that is named; pass src");
      return gpus_.of(*group_, t.get_device())->message(type == OpType::SEND, t, peer, ++group_->sequence);
    }
    return c10::make_intrusive<MessageWork>(
        group_, type == OpType::SEND ? group_->send(t, peer, tag) : group_->receive(t, peer, tag), type, title);
  }

  /// Starts a collective. A synchronous one in host memory is made at once, on this thread, if none is queued: the
  /// caller waits anyway.
  template <class Options>
  WorkPtr make(OpType type, const char* title, const Tensors& inputs, std::vector<Tensors> outputs, const Options& o,
               Calls calls) {
    const auto check_device = [&](const Tensors& list) {
      for (const auto& t : list)
        if (t.device() != inputs[0].device())
          refuse("tensors on " + t.device().str() + " and on " + inputs[0].device().str() +
                 "; pass them on one device");
    };
    check_device(inputs);
    for (const auto& list : outputs) check_device(list);
    if (!inputs.empty() && inputs[0].is_cuda())
      return gpus_.of(*group_, inputs[0].get_device())
          ->collective(type, title, inputs, std::move(outputs), ++group_->sequence, calls);
    auto work = c10::make_intrusive<CollectiveWork>(group_, type, title, inputs, std::move(outputs), o.timeout,
                                                    std::move(calls));
    if (!o.asyncOp && work->getTimeout() >= group_->deadline && group_->queued.load() == 0)
      work->run();
    else
      work->start();
    return work;
  }

  std::shared_ptr<Group> group_;
  Gpus gpus_;
  c10::intrusive_ptr<Options> options_;
  std::uint64_t monitored_ = 0;
};

void Backend::monitoredBarrier(const c10d::BarrierOptions& o, bool wait_for_all) {
  const auto timeout = o.timeout == c10d::kUnsetTimeout ? group_->timeout.load() : o.timeout;
  const auto end = std::chrono::steady_clock::now() + timeout;
  TorchStore store{group_->store};
  const auto key = "monitored/" + std::to_string(++monitored_) + "/";
  if (rank_ != 0) {
    store.set(key + std::to_string(rank_), "here");
    if (store.get(key + "0", timeout) != "passed")
      C10_THROW_ERROR(DistBackendError, "Rank " + std::to_string(rank_) +
                                            " successfully reached monitoredBarrier, but received errors while waiting "
                                            "for send/recv from rank 0. Please check rank 0 logs for faulty rank.");
    return;
  }
  std::vector<int> missing;
  for (int r = 1; r < size_ && (wait_for_all || missing.empty()); ++r) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0 && !wait_for_all) {
      store.set(key + "0", "failed");
      C10_THROW_ERROR(DistBackendError,
                      "Rank 0 timed out in monitoredBarrier after " + std::to_string(timeout.count()) + " ms.");
    }
    if (!store.get(key + std::to_string(r), std::max(left, milliseconds(0)))) missing.push_back(r);
  }
  store.set(key + "0", missing.empty() ? "passed" : "failed");
  if (missing.empty()) return;
  std::string ranks;
  for (const int r : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  C10_THROW_ERROR(DistBackendError, (missing.size() > 1 || wait_for_all ? "Ranks " : "Rank ") + ranks +
                                        " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) +
                                        " ms");
}

}  // namespace

}  // namespace distx_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
         std::optional<int> gpu) -> c10::intrusive_ptr<c10d::Backend> {
        try {
          auto backend = c10::make_intrusive<distx_torch::Backend>(store, rank, size, timeout);
          if (gpu) backend->connect(*gpu);
          return backend;
        } catch (const distx::Error&) {
          std::rethrow_exception(distx_torch::translated(std::current_exception(), timeout));
        }
      },
      pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"),
      pybind11::arg("gpu") = pybind11::none(), pybind11::call_guard<pybind11::gil_scoped_release>());
  m.attr("has_cuda") = distx_torch::has_cuda;
}
