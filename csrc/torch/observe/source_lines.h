// Source lines: which line of the program an op came from. Only kept when asked for, since it takes the GIL
// and a look at Python's frames for every op.
//
// It is the innermost frame outside of PyTorch and remint. An op of the backward pass has the line of the
// forward op it belongs to: autograd numbers its nodes, and the node that is running has the number of the
// one that was made then. Where that is not known, it has the node's name. Beside the line stands the path of
// the module whose `forward` this thread is in; Python's hooks say which
// (remint.runtime.patches.module_paths).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace remint {

class SourceLines {
 public:
  struct Place {
    std::string line;
    std::string module;
    std::string text() const { return module.empty() ? line : module + " at " + line; }
  };

  // The number of the place that this thread is at; kNone if it is at none.
  std::uint32_t current();
  const Place& place(std::uint32_t number) const { return places_[number]; }
  std::vector<std::string> texts() const;

  // The path of the module that this thread is in from now on; empty: in none.
  static void enter_module(const std::string& path);

 private:
  std::uint32_t python_line();
  std::uint32_t number_of(const Place& place);

  std::vector<Place> places_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  // By the address of a code object: the file it is in, empty if that is not the program's. The objects are
  // kept, so that none gets the address of another.
  std::unordered_map<const void*, std::string> files_;
  std::uint64_t first_node_ = 0;
  std::vector<std::uint32_t> of_node_;  // by the sequence number of autograd's nodes, from first_node_ on
};

}  // namespace remint
