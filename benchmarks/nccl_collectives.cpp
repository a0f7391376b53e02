// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times collectives in GPU memory and those of NCCL itself, in the columns of nccl-tests; needs only CUDA and NCCL.
// Its ranks are processes that tools/ranks starts, or threads. Without a GPU it exits with status 77.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include <distx/comm.hpp>
#include <distx/file.hpp>
#include <distx/threads.hpp>

#include "timing/nccl_table.hpp"

namespace {

using timing::Operation;

struct Options {
  timing::NcclTable table;
  int threads = 0;
};

constexpr const char* usage =
    "nccl_collectives [--op all|NAME,NAME…] [--min BYTES] [--max BYTES] [--factor N] [--iterations N] [--warmup N]\n"
    "  [--rounds N] [--threads N]\n"
    "Times collectives beside NCCL itself. BYTES may end in K, M or G. Start ranks, one a GPU, with tools/ranks N;\n"
    "with tools/ranks --one-gpu N they share one; with --threads N they are threads, one a GPU.\n";

std::uint64_t number(std::string_view flag, std::string_view text, std::uint64_t least) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::size_t power = unit.empty() ? 0 : std::string_view("KMG").find(unit[0]) + 1;
  const bool known = unit.empty() || (power > 0 && (unit.size() == 1 || unit.substr(1) == "iB"));
  const bool fits = error == std::errc() && known && (power == 0 || flag.starts_with("--m")) && value >> 30 == 0;
  if (!fits || value << (10 * power) < least)
    throw std::invalid_argument(std::string(flag) + ": '" + std::string(text) + "' is no number from " +
                                std::to_string(least) + " on (--help lists the flags)");
  return value << (10 * power);
}

std::vector<Operation> operations_named(std::string_view names) {
  if (names == "all") return timing::NcclTable().operations;
  std::vector<Operation> found;
  for (std::size_t from = 0; from <= names.size();) {
    const std::size_t comma = std::min(names.find(',', from), names.size());
    const std::string_view name = names.substr(from, comma - from);
    const auto here = std::find_if(timing::operations.begin(), timing::operations.end(),
                                   [&](Operation operation) { return timing::name_of(operation) == name; });
    if (here == timing::operations.end()) {
      std::string known = "all";
      for (const Operation operation : timing::operations) known.append(", ").append(timing::name_of(operation));
      throw std::invalid_argument("--op: there is no '" + std::string(name) + "', there are " + known);
    }
    found.push_back(*here);
    from = comma + 1;
  }
  return found;
}

Options options_of(int argc, char** argv) {
  Options options;
  timing::NcclTable& table = options.table;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(std::string(flag) + " needs a value (--help lists the flags)");
    const std::string_view text = argv[i + 1];
    const auto count = [&](int least) { return static_cast<int>(number(flag, text, static_cast<unsigned>(least))); };
    if (flag == "--op")
      table.operations = operations_named(text);
    else if (flag == "--min")
      table.least = number(flag, text, 4);
    else if (flag == "--max")
      table.most = number(flag, text, 4);
    else if (flag == "--factor")
      table.factor = static_cast<unsigned>(count(2));
    else if (flag == "--iterations")
      table.iterations = count(1);
    else if (flag == "--warmup")
      table.warmup = count(0);
    else if (flag == "--rounds")
      table.rounds = count(1);
    else if (flag == "--threads")
      options.threads = count(1);
    else
      throw std::invalid_argument("there is no flag " + std::string(flag) + " (--help lists them)");
  }
  if (table.least > table.most) throw std::invalid_argument("--min is more than --max");
  return options;
}

int run(const Options& options) {
  if (options.threads == 0) {
    distx::AnyConnector connector = distx::connect();
    return timing::print_nccl_table(connector, options.table);
  }
  int status = 0;
  distx::spawn(distx::threads(options.threads), [&](distx::ThreadConnector& mine) {
    distx::AnyConnector connector(std::move(mine));
    const int of_rank = timing::print_nccl_table(connector, options.table);
    if (connector.rank() == 0) status = of_rank;
  });
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    std::fputs(usage, stdout);
    return 0;
  }
  try {
    return run(options_of(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "nccl_collectives: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
