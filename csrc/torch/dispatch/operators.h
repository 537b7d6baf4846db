// What is known about an operator from its schema, looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace remint {

struct Operator {
  // How an argument is written.
  enum class Write : std::uint8_t {
    kNo,
    kInPlace,     // reads and writes it
    kOverwrites,  // writes all of it without reading it
    kSideEffect,  // writes it, and nothing else that the op makes depends on what was in it
  };

  // What a composite op does with the memory of its arguments, with other ops in between, where it is not
  // seen.
  enum class ByAddress : std::uint8_t {
    kNothing,
    kIntegers,  // reads lengths, indices or batch sizes
    kAll,       // reads all of them, and writes those that its schema says
    kWrites,    // writes all of them, whatever its schema says
    kKeeps,     // keeps them in an object
  };

  c10::OperatorHandle handle;
  std::string name;
  std::vector<Write> writes;  // per argument
  bool writes_any = false;
  bool returns_tensors = false;
  bool view = false;            // touches no bytes: needs nothing resident
  bool seeded = false;          // draws random numbers
  bool uninitialized = false;   // makes bytes that nobody has written
  bool may_accumulate = false;  // autograd may make a gradient of what it returns
  bool pins_arguments = false;  // whoever gets its arguments may keep their addresses
  bool collective = false;      // talks to other ranks: one rank alone must never run it again
  bool may_retry = false;       // a kernel that found no memory may run once more from the start
  ByAddress by_address = ByAddress::kNothing;
  // Batch norm: the first of the two arguments that are running statistics, which no training output depends
  // on, and the argument that says whether it is training (-1: always).
  int statistics = -1;
  int training = -1;
  int generator = -1;                     // the argument that is a generator
  int device = -1;                        // the argument that says where its results are
  mutable std::atomic<bool> gone{false};  // no longer registered: `handle` is not to be used

  explicit Operator(const c10::OperatorHandle& op);
};

// The facts about `op`. Never freed: recipes point to them.
const Operator& operator_facts(const c10::OperatorHandle& op);
// `op` is no longer registered: its address may become that of another.
void operator_gone(const c10::OperatorHandle& op);

}  // namespace remint
