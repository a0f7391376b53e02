// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A failure of one rank throws a typed error on all ranks within the deadline; the stand-in for NCCL makes them fail.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "../cuda/gate.hpp"
#include "comm/notified_of_mismatch.hpp"
#include "logged.hpp"
#include "nccl/ranks.hpp"
#include "standin/standin.hpp"

using distx::Cuda;
using nccl_test::on_gpu;
using nccl_test::on_ranks;

namespace {

using clock_type = std::chrono::steady_clock;

/// Messages of several ranks' threads.
class Messages {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    all_.push_back(text);
  }
  [[nodiscard]] bool all_have(std::size_t count, const std::string& words) const {
    for (const auto& text : all_) {
      INFO(text);
      CHECK(text.find(words) != std::string::npos);
    }
    return all_.size() == count;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

/// The message of the exception that `f` throws, with the type in front.
template <class F>
std::string ending_of(F&& f) {
  try {
    f();
  } catch (const distx::TimeoutError& error) {
    return std::string("TimeoutError ") + error.what();
  } catch (const distx::RevokedError& error) {
    return std::string("RevokedError ") + error.what();
  } catch (const distx::RankFailure& error) {
    return std::string("RankFailure ") + error.what();
  } catch (const distx::MismatchError& error) {
    return std::string("MismatchError ") + error.what();
  } catch (const distx::ConnectError& error) {
    return std::string("ConnectError ") + error.what();
  } catch (const distx::Error& error) {
    return std::string("Error ") + error.what();
  }
  return "nothing";
}

bool begins(const std::string& text, const std::string& beginning) { return text.rfind(beginning, 0) == 0; }
bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

constexpr std::chrono::milliseconds short_deadline{400};
constexpr std::chrono::seconds long_deadline{20};

}  // namespace

TEST_CASE("an error of one rank while a communicator is made is thrown on every rank") {
  for (const char* const function : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommSplit"}) {
    CAPTURE(function);
    Messages sentences;
    standin::fail_next(function, ncclSystemError);
    on_ranks(3, [&](auto& connector) {
      sentences.add(ending_of([&] { distx::NcclCommunicator comm(connector, {.deadline = long_deadline}); }));
    });
    CHECK(sentences.all_have(3, "ConnectError"));
    standin::fail_never();
  }
}

TEST_CASE("an invalid device, and a GPU used twice, are errors on every rank") {
  Messages none;
  on_ranks(2, [&](auto& connector) {
    distx::NcclOptions options{.deadline = long_deadline};
    if (connector.rank() == 1) options.device = 99;
    none.add(ending_of([&] { distx::NcclCommunicator comm(connector, options); }));
  });
  CHECK(none.all_have(2, "rank 1: invalid device 99"));
  Messages twice;
  on_ranks(2, [&](auto& connector) {
    twice.add(ending_of([&] { distx::NcclCommunicator comm(connector, {.deadline = long_deadline, .device = 0}); }));
  });
  CHECK(twice.all_have(2, "invalid usage"));
}

TEST_CASE("a rank that does not join a call causes a TimeoutError, and a RevokedError on itself") {
  for (const bool started : {false, true}) {
    CAPTURE(started);
    std::string late, early;
    const auto log = test::logged([&] {
      on_ranks(2, [&](auto& connector) {
        distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
        auto values = on_gpu(std::vector<float>(100, 1.0f));
        distx::all_reduce(comm, values, distx::sum);
        if (connector.rank() == 0) {
          const auto begin = clock_type::now();
          early = ending_of([&] {
            if (started)
              distx::start_all_reduce(comm, values, distx::sum).wait();
            else
              distx::all_reduce(comm, values, distx::sum);
          });
          CHECK(clock_type::now() - begin < std::chrono::seconds(10));
          CHECK(has(ending_of([&] { distx::barrier(comm); }), "RevokedError"));
          connector.barrier();
        } else {
          connector.barrier();
          late = ending_of([&] { distx::all_reduce(comm, values, distx::sum); });
        }
      });
    });
    CHECK(
        has(log, "on rank 0 of 2 (nccl): waiting for 0.1 s: other ranks have not made this call, or not completed it"));
    CHECK(begins(early, "TimeoutError"));
    CHECK(has(early, "timed out after 0.4 s waiting for other ranks"));
    CHECK(begins(late, "RevokedError"));
    CHECK(has(late, "rank 0 revoked the communicator: "));
  }
}

TEST_CASE("a stream that waits for a missing rank continues after the deadline") {
  std::string next;
  on_ranks(2, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    distx::all_reduce(comm, values, distx::sum);
    if (connector.rank() == 0) {
      const distx::CudaStream stream;
      distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);
      stream.synchronize();  // by the watcher: no call of distx's is being made
      next = ending_of([&] { distx::barrier(comm); });
    }
    connector.barrier();
  });
  CHECK(begins(next, "TimeoutError"));
  CHECK(has(next, "in an asynchronous call"));
}

TEST_CASE("an asynchronous error of NCCL is a RankFailure once, then revokes on every rank") {
  for (const bool watched : {false, true}) {
    CAPTURE(watched);
    std::string first, second, other;
    on_ranks(2, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
      auto values = on_gpu(std::vector<float>(100, 1.0f));
      distx::all_reduce(comm, values, distx::sum);
      distx::start_all_reduce(comm, values, distx::sum).wait();
      connector.barrier();
      if (connector.rank() == 0) {
        const distx::CudaStream stream;
        if (watched) {
          auto pending = distx::start_all_reduce(comm, values, distx::sum, stream);
          pending.wait(stream);
          standin::async_error(0, ncclRemoteError);
          stream.synchronize();
          first = ending_of([&] { distx::barrier(comm); });
        } else {
          auto pending = distx::start_all_reduce(comm, values, distx::sum, stream);
          standin::async_error(0, ncclRemoteError);
          first = ending_of([&] { pending.wait(); });
        }
        second = ending_of([&] { distx::barrier(comm); });
        connector.barrier();
      } else {
        connector.barrier();
        other = ending_of([&] { distx::barrier(comm); });
      }
    });
    CHECK(begins(first, "RankFailure"));
    CHECK(has(first, "remote process exited"));
    CHECK(has(first, "last error: stand-in: an operation on the network"));
    CHECK(begins(second, "RevokedError"));
    CHECK(begins(other, "RevokedError"));
    CHECK(has(other, "remote process exited"));
  }
}

TEST_CASE("revoke ends calls on every rank, with the reason") {
  std::string mine, others;
  on_ranks(2, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    if (connector.rank() == 0) {
      comm.revoke("no more data");
      mine = ending_of([&] { distx::all_reduce(comm, values, distx::sum); });
      CHECK(comm.native_handle() == nullptr);
    } else {
      others = ending_of([&] { distx::all_reduce(comm, values, distx::sum); });
    }
    connector.barrier();
  });
  CHECK(begins(mine, "RevokedError"));
  CHECK(begins(others, "RevokedError"));
  CHECK(has(others, "rank 0 revoked the communicator: no more data"));
}

TEST_CASE("destroying an asynchronous call, a group or a communicator while unwinding revokes") {
  for (const int what : {0, 1, 2}) {
    CAPTURE(what);
    std::string others;
    on_ranks(2, [&](auto& connector) {
      auto values = on_gpu(std::vector<float>(100, 1.0f));
      if (connector.rank() == 0) {
        distx::NcclCommunicator kept(connector, {.deadline = long_deadline});
        try {
          auto comm = what == 2 ? std::move(kept) : kept.share();
          if (what == 1) {
            const distx::NcclGroup group;
            auto pending = distx::start_all_reduce(comm, values, distx::sum);
            throw std::runtime_error("a bug");
          }
          auto pending = what == 0 ? distx::start_all_reduce(comm, values, distx::sum) : distx::Pending<distx::Cuda>();
          throw std::runtime_error("a bug");
        } catch (const std::runtime_error& error) {
          CHECK(std::string(error.what()) == "a bug");
        }
        connector.barrier();
      } else {
        distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
        others = ending_of([&] { distx::barrier(comm); });
        connector.barrier();
      }
    });
    CHECK(begins(others, "RevokedError"));
    CHECK(has(others, "exception"));
  }
}

TEST_CASE("an exception that ends a rank revokes on the others") {
  std::string others;
  CHECK_THROWS(on_ranks(2, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
    connector.barrier();
    if (connector.rank() == 1) throw std::runtime_error("out of data");
    others = ending_of([&] { distx::barrier(comm); });
  }));
  CHECK(begins(others, "RevokedError"));
}

TEST_CASE("an error code of NCCL is a BackendError that names the routine") {
  for (const bool grouped : {false, true}) {
    CAPTURE(grouped);
    std::string mine;
    on_ranks(1, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
      auto values = on_gpu(std::vector<float>(100, 1.0f));
      if (!grouped) {
        standin::fail_next("ncclAllReduce", ncclInternalError);
        mine = ending_of([&] { distx::all_reduce(comm, values, distx::sum); });
      } else {
        distx::Pending<distx::Cuda> pending;
        {
          const distx::NcclGroup group;
          pending = distx::start_all_reduce(comm, values, distx::sum);
          standin::fail_next("ncclAllReduce", ncclInternalError);
          mine = ending_of([&] { auto second = distx::start_all_reduce(comm, values, distx::sum); });
        }
        // NCCL has refused the whole group.
        CHECK(has(ending_of([&] { pending.wait(); }), "internal error"));
      }
      CHECK(has(ending_of([&] { distx::all_reduce(comm, values, distx::sum); }), "RevokedError"));
    });
    standin::fail_never();
    CHECK(begins(mine, "Error"));
    CHECK(has(mine, "internal error"));
    CHECK(has(mine, "ncclAllReduce: "));
  }
}

TEST_CASE("destroying a communicator waits for its calls, and leaves no CUDA error") {
  on_ranks(1, [](auto& connector) {
    const distx::CudaStream stream;
    test::Gate gate(stream);
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    const auto asked = standin::calls("cudaEventQuery");
    std::jthread opener;
    {
      distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
      distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);
      opener = std::jthread([&] {
        while (standin::calls("cudaEventQuery") < asked + 3) std::this_thread::yield();
        gate.open();
      });
    }
    CHECK(cudaGetLastError() == cudaSuccess);
  });
}

TEST_CASE("destroying a communicator waits a bounded time for the host's other processes") {
  // NCCL ends a communicator together with theirs.
  for (const char* const function : {"ncclCommDestroy", "ncclCommAbort"}) {
    CAPTURE(function);
    std::size_t before = 0;
    on_ranks(1, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
      before = standin::calls(function);
      standin::hang(function);
      if (std::string_view(function) == "ncclCommAbort") comm.revoke("the test says so");
    });
    CHECK(standin::calls(function) >= before + 3);
    standin::hang_no_more();
  }
}

TEST_CASE("shrink works after a failure if NcclOptions::shrinkable is set, and names the option if not") {
  for (const bool shrinkable : {true, false}) {
    CAPTURE(shrinkable);
    on_ranks(3, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = short_deadline, .shrinkable = shrinkable});
      auto values = on_gpu(std::vector<float>(100, 1.0f));
      distx::all_reduce(comm, values, distx::sum);
      if (connector.rank() != 1) {
        CHECK(ending_of([&] { distx::all_reduce(comm, values, distx::sum); }) != "nothing");
        const auto words = ending_of([&] {
          auto smaller = comm.shrink({1});
          auto ones = on_gpu(std::vector<float>(100, 1.0f));
          distx::all_reduce(smaller, ones, distx::sum);
          CHECK(nccl_test::on_host(ones)[5] == 2.0f);
          CHECK(smaller.size() == 2);
        });
        if (shrinkable)
          CHECK(words == "nothing");
        else
          CHECK(has(words, "set NcclOptions::shrinkable"));
      }
      connector.barrier();
    });
  }
}

TEST_CASE("the deadline applies to making a communicator with a rank whose GPU has stopped") {
  standin::never_arrives(1);
  Messages sentences;
  on_ranks(2, [&](auto& connector) {
    sentences.add(ending_of([&] { distx::NcclCommunicator comm(connector, {.deadline = short_deadline}); }));
  });
  standin::never_arrives(1, false);
  CHECK(sentences.all_have(2, "timed out"));
}

TEST_CASE("the deadline applies to a first call that a rank does not join") {
  for (const bool started : {false, true}) {
    CAPTURE(started);
    std::string words;
    on_ranks(2, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
      auto values = on_gpu(std::vector<float>(std::size_t{1} << 20, 1.0f));  // by an algorithm that is not connected
      if (connector.rank() == 0)
        words = ending_of([&] {
          if (started) {
            auto pending = distx::start_all_reduce(comm, values, distx::sum);
            pending.wait();
          } else {
            distx::all_reduce(comm, values, distx::sum);
          }
        });
      connector.barrier();
    });
    CHECK(begins(words, "TimeoutError"));
  }
}

TEST_CASE("deadlines apply while cudaEventQuery blocks") {
  std::string next;
  on_ranks(2, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    if (connector.rank() == 0) {
      const distx::CudaStream stream;
      distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);
      standin::hang("cudaEventQuery");  // as where another thread is inside cudaFree
      stream.synchronize();
      standin::hang_no_more();
      next = ending_of([&] { distx::barrier(comm); });
    }
    connector.barrier();
  });
  CHECK(begins(next, "TimeoutError"));
}

TEST_CASE("ncclTimeout is a TimeoutError, and a library older than the header is refused") {
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    standin::fail_next("ncclAllReduce", static_cast<ncclResult_t>(8));
    CHECK(begins(ending_of([&] { distx::all_reduce(comm, values, distx::sum); }), "TimeoutError"));
  });
  standin::fail_never();
  standin::nccl_version(NCCL_VERSION_CODE - 1);
  Messages sentences;
  on_ranks(2, [&](auto& connector) {
    sentences.add(ending_of([&] { distx::NcclCommunicator comm(connector, {.deadline = long_deadline}); }));
  });
  standin::nccl_version(NCCL_VERSION_CODE);
  CHECK(sentences.all_have(2, "compiled for"));
}

TEST_CASE("shrink works after a rank is lost in the network") {
  on_ranks(3, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline, .shrinkable = true});
    auto values = on_gpu(std::vector<float>(100, 1.0f));
    distx::all_reduce(comm, values, distx::sum);
    connector.barrier();
    if (connector.rank() != 1) {
      standin::async_error(connector.rank(), ncclRemoteError);
      CHECK(ending_of([&] { distx::all_reduce(comm, values, distx::sum); }) != "nothing");
      CHECK(ending_of([&] {
              auto smaller = comm.shrink({1});
              auto ones = on_gpu(std::vector<float>(100, 1.0f));
              distx::all_reduce(smaller, ones, distx::sum);
              CHECK(nccl_test::on_host(ones)[5] == 2.0f);
            }) == "nothing");
    }
    connector.barrier();
  });
}

TEST_CASE("the deadline applies to a blocking reduction on the host") {
  Messages sentences;
  on_ranks(2, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = short_deadline});
    connector.barrier();
    if (connector.rank() == 1) standin::never_arrives(1);
    connector.barrier();
    auto shorts = on_gpu(std::vector<short>(100, short{1}));
    sentences.add(ending_of([&] { distx::all_reduce(comm, shorts, distx::sum); }));
    connector.barrier();
  });
  standin::never_arrives(1, false);
  CHECK(sentences.all_have(2, "timed out"));
}

TEST_CASE("a blocking call of a new shape that differs throws MismatchError on every rank") {
  Messages of_length, of_op, of_operation;
  on_ranks(3, [&](auto& connector) {
    const bool odd = connector.rank() == 2;
    const auto differs = [&](Messages& messages, auto&& call) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
      distx::Buffer<float, Cuda> values(1000);
      messages.add(ending_of([&] { call(comm, values.span()); }));
    };
    differs(of_length, [&](auto& comm, auto values) {
      distx::all_reduce(comm, values, distx::sum);  // equal calls before do not matter
      distx::all_reduce(comm, values.first(odd ? 8 : 10), distx::sum);
    });
    differs(of_op, [&](auto& comm, auto values) {
      odd ? distx::all_reduce(comm, values, distx::max) : distx::all_reduce(comm, values, distx::sum);
    });
    differs(of_operation, [&](auto& comm, auto values) {
      odd ? distx::broadcast(comm, values, 0) : distx::all_reduce(comm, values, distx::sum);
    });
  });
  CHECK(of_length.all_have(3, "MismatchError"));
  CHECK(of_op.all_have(3, "MismatchError"));
  CHECK(of_operation.all_have(3, "MismatchError"));
}

TEST_CASE("an asynchronous collective of a new shape that differs throws MismatchError on every rank") {
  const auto check = [](bool grouped, bool followed) {
    CAPTURE(grouped);
    CAPTURE(followed);
    Messages of_length, of_type, of_operation;
    const auto begin = clock_type::now();
    on_ranks(3, [&](auto& connector) {
      const bool odd = connector.rank() == 2;
      const auto differs = [&](Messages& messages, auto&& start) {
        distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
        distx::Buffer<float, Cuda> values(1000);
        distx::start_all_reduce(comm, values.span(), distx::sum).wait();
        messages.add(ending_of([&] {
          distx::Pending<Cuda> pending;
          {
            std::optional<distx::NcclGroup> group;
            if (grouped) group.emplace();
            pending = start(comm, values.span());
          }
          if (!followed) return pending.wait();
          pending.wait(distx::CudaStreamRef());
          while (clock_type::now() - begin < long_deadline) distx::barrier(comm);
        }));
        connector.barrier();
      };
      differs(of_length, [&](auto& comm, auto values) {
        return distx::start_all_reduce(comm, values.first(odd ? 8 : 10), distx::sum);
      });
      distx::Buffer<int, Cuda> integers(1000);
      differs(of_type, [&](auto& comm, auto values) {
        return odd ? distx::start_broadcast(comm, integers, 0) : distx::start_broadcast(comm, values, 0);
      });
      differs(of_operation, [&](auto& comm, auto values) {
        return odd ? distx::start_broadcast(comm, values, 0) : distx::start_all_reduce(comm, values, distx::max);
      });
    });
    CHECK(of_length.all_have(3, "MismatchError"));
    CHECK(of_length.all_have(3, "passes"));
    CHECK(of_type.all_have(3, "MismatchError"));
    CHECK(of_operation.all_have(3, "MismatchError"));
    CHECK(clock_type::now() - begin < long_deadline / 2);
  };
  for (const bool grouped : {false, true})
    for (const bool followed : {false, true}) check(grouped, followed);
}

TEST_CASE("a message of a new shape that differs throws MismatchError on both ranks") {
  Messages of_length, of_none, of_type, of_exchange, of_list;
  const auto begin = clock_type::now();
  on_ranks(3, [&](auto& connector) {
    const int rank = connector.rank();
    const auto differs = [&](Messages& messages, auto&& send, auto&& receive) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
      distx::Buffer<float, Cuda> values(1000);
      const std::string ending = ending_of([&] {
        if (rank == 0) send(comm, values.span());
        if (rank == 2) receive(comm, values.span());
        if (rank != 1) distx::barrier(comm);
      });
      if (rank != 1) messages.add(ending);
      connector.barrier();
    };
    const auto of = [](std::size_t count) {
      return std::pair([count](auto& comm, auto values) { distx::send(comm, values.first(count), 2); },
                       [count](auto& comm, auto values) { distx::receive(comm, values.first(count), 0); });
    };
    differs(of_length, of(10).first, of(8).second);
    differs(of_none, of(0).first, of(8).second);
    distx::Buffer<int, Cuda> integers(10);
    differs(of_type, of(10).first, [&](auto& comm, auto) { distx::receive(comm, integers, 0); });
    differs(
        of_exchange,
        [](auto& comm, auto values) { distx::send_receive(comm, values.first(10), 2, values.subspan(500, 10), 2); },
        [](auto& comm, auto values) { distx::send_receive(comm, values.first(9), 0, values.subspan(500, 10), 0); });
    differs(
        of_list,
        [](auto& comm, auto values) {
          distx::send(comm, std::vector<distx::Span<float, Cuda>>{values.first(1), values.subspan(500, 2)}, 2);
        },
        [](auto& comm, auto values) {
          distx::receive(comm, std::vector<distx::Span<float, Cuda>>{values.first(2), values.subspan(500, 1)}, 0);
        });
  });
  CHECK(of_length.all_have(2, "MismatchError"));
  CHECK(of_length.all_have(2, "expects 8 elements of type float32, rank 0 sends 10 elements of type float32"));
  CHECK(of_none.all_have(2, "MismatchError"));
  CHECK(of_type.all_have(2, "expects 10 elements of type int32, rank 0 sends 10 elements of type float32"));
  CHECK(of_exchange.all_have(2, "MismatchError"));
  CHECK(of_list.all_have(2, "in a list of other lengths"));
  CHECK(clock_type::now() - begin < long_deadline / 2);
}

TEST_CASE("a rank that starts another call than one that was compared causes an error on every rank") {
  for (const auto check : {distx::Check::first_use, distx::Check::every_call}) {
    CAPTURE(static_cast<int>(check));
    Messages of_new, of_known, of_message;
    on_ranks(2, [&](auto& connector) {
      const bool odd = connector.rank() == 1;
      const auto differs = [&](Messages& messages, auto&& call) {
        distx::NcclCommunicator comm(connector, {.deadline = short_deadline, .check = check});
        distx::Buffer<float, Cuda> values(1000);
        messages.add(ending_of([&] { call(comm, values.span()); }));
        connector.barrier();
      };
      const auto reduces = [](auto& comm, auto values, std::size_t count) {
        distx::start_all_reduce(comm, values.first(count), distx::sum).wait();
      };
      differs(of_new, [&](auto& comm, auto values) {
        reduces(comm, values, 10);
        reduces(comm, values, odd ? 8 : 10);
      });
      differs(of_known, [&](auto& comm, auto values) {
        reduces(comm, values, 10);
        reduces(comm, values, 8);
        reduces(comm, values, odd ? 8 : 10);
      });
      differs(of_message, [&](auto& comm, auto values) {
        for (const std::size_t count : {std::size_t{10}, odd ? std::size_t{8} : std::size_t{10}}) {
          if (odd)
            distx::start_receive(comm, values.first(count), 0).wait();
          else
            distx::start_send(comm, values.first(count), 1).wait();
        }
      });
    });
    const char* const words = check == distx::Check::every_call ? "MismatchError" : "timed out";
    CHECK(of_new.all_have(2, words));
    CHECK(of_known.all_have(2, words));
    CHECK(of_message.all_have(2, words));
  }
}

TEST_CASE("a rank that is notified of a mismatch throws MismatchError once") {
  on_ranks(3, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
    test::check_notified_of_mismatch(comm);
    connector.barrier();
  });
}

TEST_CASE("a rank that is notified of another one's failed allocation throws RevokedError with the code ENOMEM") {
  on_ranks(3, [&](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = long_deadline});
    test::check_notified_of_failed_allocation(comm);
    connector.barrier();
  });
}

TEST_CASE("a rank that is notified of another one's own error throws NonFiniteError, or what is not a rank loss") {
  using Comm = distx::NcclCommunicator;
  for (auto* const check : {test::check_notified_of_not_finite<Comm>, test::check_notified_of_own_error<Comm>})
    on_ranks(3, [&](auto& connector) {
      Comm comm(connector, {.deadline = long_deadline});
      check(comm);
      connector.barrier();
    });
}

TEST_CASE("a blocking call of a known shape, or with Check::off, is one call of NCCL") {
  for (const auto check : {distx::Check::first_use, distx::Check::off}) {
    on_ranks(2, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.deadline = long_deadline, .check = check});
      distx::Buffer<float, Cuda> values(1000);
      if (check == distx::Check::first_use) distx::all_reduce(comm, values, distx::sum);
      connector.barrier();
      const auto before = standin::calls("ncclAllGather");
      connector.barrier();
      distx::all_reduce(comm, values, distx::sum);
      connector.barrier();
      CHECK(standin::calls("ncclAllGather") == before);
    });
  }
}
