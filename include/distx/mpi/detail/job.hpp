// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "distx/comm/calls/validate.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/detail/widened.hpp"
#include "distx/mpi/detail/datatypes.hpp"
#include "distx/mpi/detail/world.hpp"

namespace distx::detail::mpi {

/// Operands in a form that MPI can reduce; `send` is MPI_IN_PLACE if they are in `receive`.
struct Operands {
  const void* send = nullptr;
  void* receive = nullptr;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;
  std::size_t bytes = 1;

  [[nodiscard]] const void* send_at(std::size_t offset) const noexcept {
    return send == MPI_IN_PLACE ? send : static_cast<const std::byte*>(send) + offset * bytes;
  }
  [[nodiscard]] void* receive_at(std::size_t offset) const noexcept {
    return receive == nullptr ? nullptr : static_cast<std::byte*>(receive) + offset * bytes;
  }
};

/// One call in MPI's hands: its requests and everything that they need until they are complete.
///
/// Jobs are reused, so only the first calls allocate. MPI stores the address of a job, so it is not movable.
class Job {
 public:
  using IntLists = std::array<std::vector<int>, 2>;

  Job(const calls::RankOf& own, std::size_t max_count, const World& world)
      : self(own), most(max_count), world_(world) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Prepares for collectives on `comm`; messages use `messages`, and tags from `tag` on.
  /// @pre no request is in flight; `messages` outlives them
  void open(MPI_Comm comm, const Carrier& messages, bool started, int tag) noexcept {
    comm_ = comm;
    messages_ = &messages;
    started_ = started;
    tag_ = tag;
  }

  /// Calls the blocking MPI function with these arguments and the communicator, or its nonblocking counterpart with a
  /// request.
  template <class Blocking, class Starting, class... A>
  [[nodiscard]] int call(Blocking* blocking, Starting* starting, A... arguments) {
    if (!started_) return blocking(arguments..., comm_);
    return starting(arguments..., comm_, &add({}));
  }
  template <calls::Collective Call>
  void check(int code, const char* routine, const Call& c) const {
    if (code != MPI_SUCCESS) [[unlikely]]
      fail(code, routine, self.context(c));
  }

  template <calls::Collective Call>
  void send(const Call& c, const Unit& unit, const void* data, std::size_t units, int to, int tag) {
    const auto [type, count] = message(unit, units);
    check(MPI_Isend(data, count, type, (*messages_)[to], tag, messages_->comm, &add({.peer = to})), "MPI_Isend", c);
  }
  /// Starts a synchronous send, which cannot complete before the receiver has joined.
  template <calls::Collective Call>
  void send_synchronously(const Call& c, const Unit& unit, const void* data, std::size_t units, int to, int tag) {
    const auto [type, count] = message(unit, units);
    check(MPI_Issend(data, count, type, (*messages_)[to], tag, messages_->comm, &add({.peer = to})), "MPI_Issend", c);
  }
  template <calls::Collective Call>
  void receive(const Call& c, const Unit& unit, void* data, std::size_t units, int from, int tag) {
    const auto context = self.context(c);
    const Awaited awaited{true, false, from, tag, data, units, unit};
    MPI_Request& request = add(awaited);
    if (match(awaited, request, context)) {
      awaited_.back().matched = true;
    } else if (started_) {
      const auto [type, count] = message(unit, units);
      mpi::check(MPI_Irecv(data, count, type, (*messages_)[from], tag, messages_->comm, &request), "MPI_Irecv",
                 context);
      awaited_.back().matched = true;
    } else {
      ++unmatched_;
    }
  }
  /// Returns the tag of messages that are part of a collective.
  [[nodiscard]] int tag() const noexcept { return tag_; }

  /// Prepares a reduction of `send` into `receive`, which is empty if this rank receives no result.
  [[nodiscard]] Operands reduction(const calls::AnyOp& op, Span<const AnyElement> send, Span<AnyElement> receive) {
    Operands o;
    const bool wide = is_narrow_float(send.type());
    if (wide) {
      float* const sums = floats(send.size());
      detail::widen(send, sums);
      const bool receives = receive.data() != nullptr;
      o = {receives ? MPI_IN_PLACE : sums, receives ? sums : nullptr, MPI_FLOAT, MPI_OP_NULL, sizeof(float)};
    } else {
      o = {send.data() == receive.data() ? MPI_IN_PLACE : send.data(), receive.data(), datatype_of(send.type()),
           MPI_OP_NULL, send.element_bytes()};
    }
    reduce_by(op, wide, o);
    if (o.receive != nullptr) finish_with(op, wide, o.receive, receive);
    return o;
  }
  /// Prepares the op and the datatype that carries it.
  void reduce_by(const calls::AnyOp& op, bool wide, Operands& o) {
    if (op.kind() != OpKind::user) {
      o.op = op_of(op.kind());
      return;
    }
    user_.op = wide ? op.widened() : op;
    auto& type = user_types_[static_cast<std::size_t>(user_.op.type())];
    if (!type) type = carrying(o.type, user_);
    o.type = type.native_handle();
    o.op = world_.user_op(op.commutative());
  }
  /// Schedules the local work at the end: the op's `finish` on `result`, and the copy to `target`.
  void finish_with(const calls::AnyOp& op, bool wide, void* result, Span<AnyElement> target) {
    if (!op.finishes() && result == target.data()) return;
    finish_.emplace(Finish{wide ? op.widened() : op, result, target});
  }
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return scratch_.data();
  }
  [[nodiscard]] float* floats(std::size_t count) { return reinterpret_cast<float*>(scratch(count * sizeof(float))); }

  /// Returns whether MPI still uses this object, whose memory must then never be freed.
  [[nodiscard]] bool left_behind() const noexcept { return left_behind_; }
  [[nodiscard]] bool idle() const noexcept { return requests_.empty(); }

  /// Returns whether all requests are complete and the sizes of the received messages have been checked.
  bool test(const ErrorContext& context) {
    if (requests_.empty()) return true;
    for (std::size_t i = 0; i < awaited_.size() && unmatched_ > 0; ++i)
      if (!awaited_[i].matched && match(awaited_[i], requests_[i], context)) found(awaited_[i]);
    if (unmatched_ > 0) return false;
    int flag = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, statuses_.data());
    completed(code, flag != 0, context);
    return flag != 0;
  }
  void wait(const ErrorContext& context) {
    if (requests_.empty()) return;
    for (std::size_t i = 0; i < awaited_.size() && unmatched_ > 0; ++i) {
      if (awaited_[i].matched) continue;
      MPI_Message arrived = MPI_MESSAGE_NULL;
      MPI_Status status;
      mpi::check(MPI_Mprobe((*messages_)[awaited_[i].peer], awaited_[i].tag, messages_->comm, &arrived, &status),
                 "MPI_Mprobe", context);
      take(awaited_[i], arrived, status, requests_[i], context);
      found(awaited_[i]);
    }
    const int code = MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data());
    completed(code, true, context);
  }

  /// Does the local work after the communication.
  void finish() {
    if (user_.error != nullptr || finish_) [[unlikely]]
      end_reduction();
  }

  /// Gives up the requests in flight: cancels receives and lets the rest complete for some time, so MPI does not read
  /// memory that its owner frees; MPI keeps the requests that do not complete. A receive that has begun cannot be
  /// cancelled, and is waited for. Messages from and to a rank that `is_lost` are not.
  template <class IsLost>
  void abandon(std::chrono::milliseconds patience, IsLost&& is_lost) noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && awaited_[i].receives) MPI_Cancel(&requests_[i]);
    const auto has_ended = [](MPI_Request& request) {
      int complete = 0;
      return request == MPI_REQUEST_NULL || MPI_Test(&request, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
             complete != 0;
    };
    const auto all = [&](auto&& holds) {
      for (std::size_t i = 0; i < requests_.size(); ++i)
        if (!has_ended(requests_[i]) && !holds(awaited_[i])) return false;
      return true;
    };
    const auto sends = [](const Awaited& awaited) { return !awaited.receives; };
    const auto vain = [&](const Awaited& awaited) { return awaited.peer >= 0 && is_lost(awaited.peer); };
    (void)detail::wait_until(
        no_timeout, [&] { return all(sends); },
        [&] { return all([&](const Awaited& awaited) { return sends(awaited) || vain(awaited); }); });
    const auto end = detail::wait_until(
        patience, [&] { return all([](const Awaited&) { return false; }); }, [&] { return all(vain); });
    if (end != detail::WaitEnd::ready) left_behind_ = true;
    clear();
    finish_.reset();
    user_.error = nullptr;
  }

  static constexpr std::chrono::milliseconds a_moment{100};

  const calls::RankOf self;
  const std::size_t most;  ///< the maximum number of units in one call of MPI
  IntLists counts;
  IntLists places;

 private:
  void end_reduction() {
    if (user_.error != nullptr) std::rethrow_exception(std::exchange(user_.error, nullptr));
    if (!finish_) return;
    const Finish f = *std::exchange(finish_, std::nullopt);
    const auto count = f.target.size();
    const void* const source = f.result;
    if (f.op.finishes()) f.op.reduce(&f.result, 1, &source, 1, count, self.size);
    if (f.result == f.target.data() || count == 0) return;
    if (is_narrow_float(f.target.type()))
      detail::narrow(static_cast<const float*>(source), f.target);
    else
      std::memcpy(f.target.data(), source, f.target.size_bytes());
  }

  /// The message of a request, and what is expected of a received one; `matched` once MPI has matched it.
  struct Awaited {
    bool receives = false;
    bool matched = true;
    int peer = -1;  ///< the other rank of a message
    int tag = 0;
    void* data = nullptr;
    std::size_t units = 0;
    Unit unit{};
  };
  struct Finish {
    calls::AnyOp op;
    void* result;
    Span<AnyElement> target;
  };
  struct Message {
    MPI_Datatype type;
    int count;
  };

  MPI_Request& add(const Awaited& awaited) {
    awaited_.push_back(awaited);
    statuses_.emplace_back();
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }
  Message message(const Unit& unit, std::size_t units) {
    if (units <= most) [[likely]]
      return {unit.type, static_cast<int>(units)};
    return {large_.emplace_back(large_type(unit, units, most)).native_handle(), 1};
  }
  void clear() noexcept {
    requests_.clear();
    unmatched_ = 0;
    statuses_.clear();
    awaited_.clear();
    large_.clear();
  }

  void completed(int code, bool all, const ErrorContext& context) {
    if (code != MPI_SUCCESS) {
      for (const auto& status : statuses_)
        if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
          fail(status.MPI_ERROR, "MPI_Waitall", context);
      fail(code, "MPI_Waitall", context);
    }
    if (!all) return;
    for (std::size_t i = 0; i < awaited_.size(); ++i)
      if (awaited_[i].receives) compare(awaited_[i], statuses_[i], context);
    clear();
  }
  // Checks the size of a message before MPI may write it: Open MPI, with some protocols for large messages, writes past
  // the end of a receive that is too small. An asynchronous receive must be posted at once so that blocking sends can
  // progress, and is checked first only if its message has already arrived.
  bool match(const Awaited& awaited, MPI_Request& request, const ErrorContext& context) {
    int flag = 0;
    MPI_Message arrived = MPI_MESSAGE_NULL;
    MPI_Status status;
    mpi::check(MPI_Improbe((*messages_)[awaited.peer], awaited.tag, messages_->comm, &flag, &arrived, &status),
               "MPI_Improbe", context);
    if (flag != 0) take(awaited, arrived, status, request, context);
    return flag != 0;
  }
  void take(const Awaited& awaited, MPI_Message arrived, const MPI_Status& status, MPI_Request& request,
            const ErrorContext& context) {
    compare(awaited, status, context);
    const auto [type, count] = message(awaited.unit, awaited.units);
    mpi::check(MPI_Imrecv(awaited.data, count, type, &arrived, &request), "MPI_Imrecv", context);
  }
  void found(Awaited& awaited) noexcept {
    awaited.matched = true;
    --unmatched_;
  }
  static void compare(const Awaited& awaited, const MPI_Status& status, const ErrorContext& context) {
    MPI_Count arrived = 0;
    mpi::check(MPI_Get_elements_x(&status, awaited.unit.type, &arrived), "MPI_Get_elements_x", context);
    if (arrived == static_cast<MPI_Count>(awaited.units)) return;
    const auto per_element = awaited.unit.per_element;
    throw MismatchError(
        "expects " + std::to_string(awaited.units / per_element) + " elements, rank " + std::to_string(awaited.peer) +
            " sends " +
            (arrived == MPI_UNDEFINED ? std::string("no whole number of them")
                                      : std::to_string(static_cast<std::size_t>(arrived) / per_element)),
        context);
  }

  const World& world_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  const Carrier* messages_ = nullptr;
  bool started_ = false;
  bool left_behind_ = false;
  int tag_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Awaited> awaited_;
  std::size_t unmatched_ = 0;
  std::vector<unique_datatype> large_;
  std::optional<Finish> finish_;
  Buffer<std::byte> scratch_;
  UserOp user_;
  std::array<unique_datatype, distx::detail::element_type_count> user_types_;
};

}  // namespace distx::detail::mpi
